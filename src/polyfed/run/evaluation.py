"""How good a model is: on the server's test data or, where it has none, by asking the clients. The same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.algorithms.base import objective_weights
from polyfed.client.device import HOST
from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner
from polyfed.core.algorithm import State
from polyfed.core.door import Door
from polyfed.core.errors import NobodyAnswered, RunStopped
from polyfed.core.federation import Federation
from polyfed.core.layer import Layers
from polyfed.core.messages import Option, Request
from polyfed.core.metric import SplitMetric
from polyfed.core.problem import Problem
from polyfed.metrics import improved_share, spread, weighted_mean
from polyfed.run.personalised import FineTuning
from polyfed.run.wholesplit import Bounds, Reasons, SplitTotals, by_objective, defined
from polyfed.weights import min_norm

Table = dict[str, dict[str, float]]  # objective -> loss and metrics
Personal = Callable[[State, Sequence[int]], Tensor | None]  # a state and clients -> each one's own model, or none
NO_ROW: NDArray[np.float64] = np.zeros(0)


@dataclass(frozen=True)
class Figures:
    """What is reported of a split: losses and metrics by objective, what those lie between that are rounded, and why
    others could not be computed."""

    table: Table
    bounds: Bounds
    not_computed: Reasons = field(default_factory=dict)

    def lines(self) -> dict[str, Any]:
        """The losses, the metrics without them, and bounds and reasons where there are any."""
        metrics = {name: {key: v for key, v in row.items() if key != "loss"} for name, row in self.table.items()}
        found = {"losses": {name: row["loss"] for name, row in self.table.items()}, "metrics": metrics}
        some = {"bounds": self.bounds, "not_computed": self.not_computed}
        return {**found, **{key: rows for key, rows in some.items() if rows}}


@dataclass(frozen=True)
class Asked:
    """Clients' replies about a split: each one's sums (clients, K), its rows for each objective (clients, M), and the
    statistics of all of them together."""

    clients: list[int]
    values: NDArray[Any]
    heard: NDArray[Any]
    whole: SplitTotals


@dataclass
class Evaluation:
    """Evaluates every so many rounds, and in the last.

    clients: also ask each client about its own rows, for the spread of every figure over them; per_client: for every
    client's own figures, which go into a file of their own; improved: ask the round's participants whether the new
    model is no worse for them, by the function they train on, sum_s omega_s f_is; splits: whose losses and metrics are
    logged besides; personalise: how clients fine-tune the model, to be measured with what it becomes, too; optimum: a
    model x*, 'x' and 'buffers', that every evaluation measures the distance and FMGDA's Delta_Q to.
    The others are rounds between measurements, 0 for never. On all clients' full data, stationarity: |J w*| with
    min-norm weights, after the round; own_stationarity: |J lambda| at the round's start, with the method's own weights
    (FMGDA's d-bar); client_stationarity: the shortest convex combination of the gradients of the clients'
    sum_s omega_s f_is, after the round (FedMGDA's Theorem 1). On the participants' own rows, progress: what local
    training gained (FedCMOO's Figure 11). weighting: what a client counts in the means of J and of Delta_Q's losses.
    device: where the server's own test rows are measured.
    """

    problem: Problem
    federation: Federation
    every: int = 1
    clients: bool = False
    per_client: bool = False
    improved: bool = False
    stationarity: int = 0
    own_stationarity: int = 0
    client_stationarity: int = 0
    progress: int = 0
    splits: Sequence[str] = ()
    personalise: FineTuning | None = None
    optimum: Mapping[str, Tensor] | None = None
    weighting: str = "uniform"
    device: torch.device = HOST
    _least: Tensor | None = field(default=None, init=False, repr=False)  # f_s(x*)
    _warned: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)  # metrics that were told of

    def __post_init__(self) -> None:
        self._runner = None if self.federation.server is None else self._on(self.device)
        self._participation: NDArray[np.int64] = np.zeros(len(self.federation), dtype=np.int64)  # rounds, by client

    def _on(self, device: torch.device) -> ClientRunner:
        """Who measures the server's own rows; on the host where a GPU has no room for them."""
        try:
            return ClientRunner(self.problem, self.federation.at_server(), Layers(finite=False), device=device)
        except torch.cuda.OutOfMemoryError:
            return self._on(HOST)

    def due(self, t: int, rounds: int) -> bool:
        return t % self.every == 0 or t == rounds

    def took_part(self, clients: Sequence[int]) -> None:
        """These clients were asked in a round."""
        self._participation[list(clients)] += 1

    def client_metrics(
        self, t: int, before: State, after: State, fleet: Door, rounds: int, weights: Tensor | None = None
    ) -> dict[str, Any]:
        """What is measured by asking clients about a round: stationarity, the way to x*, who gained and how much.

        weights: the method's own, of the objectives.
        """
        found: dict[str, Any] = {}
        if self.improved:
            clients = list(fleet.asked)
            trained = list(dict.fromkeys(c for some, _ in fleet.trained for c in some)) or clients
            omega = self._omega(weights, trained, fleet)
            old, new = (self._total_losses(_model(state), clients, omega, fleet) for state in (before, after))
            both = [client for client in old if client in new]
            found["improved"] = improved_share([old[c] for c in both], [new[c] for c in both])
        if self._due(self.progress, t, rounds) and fleet.trained:
            found["progress"] = self._progress(_model(before), fleet, weights)
        if self.optimum is not None and self.due(t, rounds):
            found["distance"] = float((after["x"] - self.optimum["x"]).norm())
            if weights is not None:
                found["delta_q"] = self._delta_q(_model(before), self.optimum, fleet, weights)
        if self._due(self.stationarity, t, rounds):
            J = self._jacobian(_model(after), fleet)
            found["stationarity"] = _shortest(J[~J.isnan().any(1)])
        if self._due(self.own_stationarity, t, rounds) and weights is not None:
            J = self._jacobian(_model(before), fleet).nan_to_num()
            found["own_stationarity"] = float((weights.to(J.dtype) @ J).norm())
        if self._due(self.client_stationarity, t, rounds):
            found["client_stationarity"] = self._client_stationarity(_model(after), fleet, weights)
        return found

    def _due(self, every: int, t: int, rounds: int) -> bool:
        return bool(every) and (t % every == 0 or t == rounds)

    def _omega(self, weights: Tensor | None, clients: list[int], fleet: Door) -> Tensor:
        """omega_s (M,): what these clients multiply f_s by when they train together; 1 if the method has no weights."""
        if weights is None:
            return torch.ones(len(self.problem.names), dtype=torch.float64)
        n = fleet.examples[clients].astype(float)
        a = n if self.weighting == "size" else np.ones_like(n)
        stakes = self._stakes(clients, fleet).numpy()
        return torch.from_numpy(objective_weights(weights.double().numpy(), a, stakes))

    def _stakes(self, clients: list[int], fleet: Door) -> Tensor:
        """What of omega_s is each client's (clients, M): all, or by size the part of its rows that has a label."""
        every = fleet.fractions if self.weighting == "size" else fleet.holds
        return torch.from_numpy(every[clients].astype(float))

    def _total_losses(
        self, shared: dict[str, Tensor], clients: list[int], omega: Tensor, fleet: Door
    ) -> dict[int, float]:
        """Each client's sum_s omega_s f_is, f_is the mean loss on its training rows."""
        request = Request("evaluate", shared, options={"split": "train"})
        losses: dict[int, float] = {}
        for s in fleet.ask(clients, request):
            f = s["values"][:, self.problem.loss_places].double() / s["heard"].clamp(min=1)
            own = omega * self._stakes(list(s.clients), fleet)
            counted = torch.where(own > 0, own * f, 0.0)  # what has no weight may be infinite
            losses.update(zip(s.clients, counted.sum(1).tolist(), strict=True))
        return losses

    def _progress(self, before: dict[str, Tensor], fleet: Door, weights: Tensor | None) -> Table:
        """Means over the participants of what local training gained on their own rows, whichever way better is."""
        M = len(self.problem.names)
        lam = torch.full((M,), 1 / M) if weights is None else weights
        change, heard = np.zeros(self.problem.dims["K"]), np.zeros(M)
        for clients, request in fleet.trained:
            shared = {**before, **request.shared, "weights": lam.to(self.problem.dtype)}
            options: dict[str, Option] = {"work": request.work, "options": dict(request.options)}
            total = fleet.sum(clients, Request("progress", shared, request.each, options))
            change += total["change"].double().numpy()
            heard += total["heard"].double().numpy()
        better = {o.name: {name: metric.better for name, metric in o.measured.items()} for o in self.problem.objectives}
        return {
            name: {key: value if better[name][key] == "higher" else -value for key, value in row.items()}
            for name, row in self._table(change, heard).items()
        }

    def _delta_q(self, x: dict[str, Tensor], optimum: Mapping[str, Tensor], fleet: Door, weights: Tensor) -> float:
        """sum_s lambda_s [f_s(x_t) - f_s(x*)], FMGDA's Theorem 3."""
        if self._least is None:
            self._least = self._mean_losses(optimum, fleet)
        above = (self._mean_losses(x, fleet) - self._least).nan_to_num()
        return float(weights.to(above.dtype) @ above)

    def _mean_losses(self, model: Mapping[str, Tensor], fleet: Door) -> Tensor:
        """f_s (M,) over all clients' training rows, the clients counting as for the method; NaN if nobody holds s."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        stacks = list(fleet.ask(everyone, Request("evaluate", model, options={"split": "train"})))
        values, heard = (torch.cat([s[name] for s in stacks]).double() for name in ("values", "heard"))
        a = heard if self.weighting == "size" else (heard > 0).double()
        return (a * values[:, self.problem.loss_places] / heard.clamp(min=1)).sum(0) / a.sum(0)

    def _jacobian(self, shared: dict[str, Tensor], fleet: Door) -> Tensor:
        """J (M, d), the objectives' gradients on all clients' full data; NaN for what nobody holds."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        total = fleet.sum(everyone, Request("full-jacobian", shared, options={"weight": self.weighting}))
        return total["H"] / total["heard"].unsqueeze(1)

    def _client_stationarity(self, shared: dict[str, Tensor], fleet: Door, weights: Tensor | None) -> float:
        """The shortest convex combination of the clients' gradients of sum_s omega_s f_is, among all clients.

        Whoever holds nothing that counts has no gradient, and would make it 0. Without weights, of the clients' means.
        """
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        stacks = list(fleet.ask(everyone, Request("full-jacobian", shared)))
        H, held = torch.cat([s["H"] for s in stacks]), torch.cat([s["heard"] for s in stacks])
        own = self._stakes([c for s in stacks for c in s.clients], fleet) if weights is not None else 1.0
        by = (self._omega(weights, everyone, fleet) * own).to(H.dtype) * held
        if weights is None:
            by = by / by.sum(1, keepdim=True).clamp(min=1)
        return _shortest(torch.einsum("nm,nmd->nd", by, H)[by.any(1)])

    def __call__(self, state: State, fleet: Door, personal: Personal | None = None) -> dict[str, Any]:
        """{'losses': ..., 'metrics': ..., 'split': ...}, those of other splits and, by client, the spread of each.

        personal: every client's own model, where the method learns one; then clients are asked about theirs.
        """
        own = personal is not None and personal(state, self._with_rows("train", fleet)[:1]) is not None
        at_server = self._runner is not None and not own
        theirs = "test" if self.federation.test is not None else "train"  # what clients are asked about
        main = "test" if at_server else theirs
        found: dict[str, Any] = {}
        figures: dict[str, Figures] = {}
        if self.clients or self.per_client or not at_server:
            asked = self._ask(theirs, state, fleet, personal, each=self.clients or self.per_client)
            figures[theirs] = self._figures(asked, fleet)
            found = self._by_client(asked, theirs, len(fleet))
        if at_server:
            figures["test"] = self._own(_model(state))
        for split in self.splits:
            if split not in figures:
                figures[split] = self._figures(self._ask(split, state, fleet, personal), fleet)
        if self.splits:
            found["splits"] = {split: figures[split].lines() for split in self.splits}
        if self.personalise is not None:
            found["personalised"] = self._personalised(self.personalise, state, fleet)
        return {**figures[main].lines(), "split": main, **found}

    def _personalised(self, tuning: FineTuning, state: State, fleet: Door) -> dict[str, Any]:
        """The same figures of what the model becomes on each client's rows, by the split that it is measured on.

        Whose steps diverge is left out, and named among the failures; a run does not end because all of them do.
        """
        shared = {**_model(state), "omega": tuning.weights(self.problem)}
        options = {**tuning.options(fleet), **self._wanted(tuning.split)}
        clients = [c for c in self._with_rows(tuning.split, fleet) if fleet.examples[c]]
        try:
            asked = self._answers(clients, Request("personalise", shared, options=options), fleet, each=self.clients)
        except NobodyAnswered:
            return {tuning.split: Figures({}, {}).lines()}
        spread = {"clients": self._spread(self._tables(asked), asked.heard, asked.clients)} if self.clients else {}
        return {tuning.split: {**self._figures(asked, fleet).lines(), **spread}}

    def _by_client(self, asked: Asked, split: str, clients: int) -> dict[str, Any]:
        """The spread of every figure over the clients, every client's own, and the rows that both are of."""
        if not self.clients and not self.per_client:
            return {}
        tables = self._tables(asked)
        found: dict[str, Any] = {"clients_split": split}
        if self.clients:
            found["clients"] = self._spread(tables, asked.heard, asked.clients)
        if self.per_client:
            found["per_client"] = self._each(tables, asked.clients, clients)
        return found

    def _tables(self, asked: Asked) -> list[Table]:
        """Every client's own figures."""
        whole = asked.whole.rows(len(asked.clients))
        return [self._table(v, h, w) for v, h, w in zip(asked.values, asked.heard, whole, strict=True)]

    def _own(self, shared: dict[str, Tensor]) -> Figures:
        assert self._runner is not None
        job = Job(0, Request("evaluate", shared, options=self._wanted("test")), None)
        reply, _ = self._runner(job)
        if reply.error and self._runner.device != HOST:  # whose memory may be full: from now on here
            self._runner = self._on(HOST)
            reply, _ = self._runner(job)
        if reply.error:
            raise RunStopped(f"The model could not be evaluated on the server's test data: {reply.error}.")
        whole = SplitTotals(self.problem)
        one = {name: a.unsqueeze(0) for name, a in reply.arrays.items()}
        whole.add(one)
        return self._figures(Asked([0], one["values"].double().numpy(), one["heard"].double().numpy(), whole))

    def _wanted(self, split: str) -> dict[str, Option]:
        """The options of an evaluation: statistics are sent where there is a metric that is made of them."""
        some = any(o.over_split for o in self.problem.objectives)
        return {"split": split, "statistics": True} if some else {"split": split}

    def _with_rows(self, split: str, fleet: Door) -> list[int]:
        """The clients that have something to measure on, whether or not they have something to train on."""
        found: list[int] = np.flatnonzero(fleet.population.rows(split)).tolist()
        return found

    def _ask(self, split: str, state: State, fleet: Door, personal: Personal | None, *, each: bool = False) -> Asked:
        """Every client's sums over the rows of a split; each: whether its own figures of the whole split are wanted."""
        clients = self._with_rows(split, fleet)
        own_models = personal(state, clients) if personal else None
        sent = {} if own_models is None else {"x": own_models.to(self.problem.dtype)}
        shared = {name: a for name, a in _model(state).items() if name not in sent}
        return self._answers(clients, Request("evaluate", shared, sent, self._wanted(split)), fleet, each=each)

    def _answers(self, clients: list[int], request: Request, fleet: Door, *, each: bool) -> Asked:
        """What clients measure; each: whether every client's own figures of the whole split are wanted.

        Statistics are added up as they come: a histogram of every client at once would fill the memory.
        """
        whole = SplitTotals(self.problem, each=each)
        answered: list[int] = []
        values: list[Tensor] = []
        heard: list[Tensor] = []
        for stack in fleet.ask(clients, request):
            whole.add(stack.arrays)
            answered.extend(stack.clients)
            values.append(stack["values"].double())
            heard.append(stack["heard"].double())
        return Asked(answered, torch.cat(values).numpy(), torch.cat(heard).numpy(), whole)

    def _figures(self, asked: Asked, fleet: Door | None = None) -> Figures:
        """All clients together: pooled, not the mean of theirs. Who spoiled a figure is among the fleet's failures."""
        table = self._table(asked.values.sum(0), asked.heard.sum(0), asked.whole.row())
        there = {name: row for name, row in asked.whole.bounds().items() if name in table}
        reasons = {name: row for name, row in asked.whole.not_computed().items() if name in table}
        if reasons:
            self._warn(reasons)
        if reasons and fleet is not None:
            fleet.failures.extend((asked.clients[i], why) for i, why in asked.whole.spoilers().items())
        return Figures(table, there, reasons)

    def _warn(self, reasons: Reasons) -> None:
        """Once of each metric: it may be the function that is wrong."""
        for objective, name, why in ((o, name, why) for o, row in reasons.items() for name, why in row.items()):
            if (objective, name) not in self._warned:
                self._warned.add((objective, name))
                text = f"The metric {name!r} of objective {objective!r} could not be computed, and is NaN: {why}."
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _table(self, values: NDArray[Any], heard: NDArray[Any], whole: NDArray[np.float64] = NO_ROW) -> Table:
        """Means from sums, by objective, and the figures of the whole split; an objective without examples is left out.

        A figure of the whole split that is called 'loss' stands in place of the mean loss.
        """
        rows = iter(values.tolist())
        table = {
            o.name: {name: next(rows) / max(float(n), 1.0) for name in o.values}
            for o, n in zip(self.problem.objectives, heard, strict=True)
        }
        for objective, name, value in by_objective(self.problem, whole) if len(whole) else ():
            table[objective][name] = value
        return {name: row for (name, row), n in zip(table.items(), heard, strict=True) if n > 0}

    def _spread(
        self, tables: Sequence[Table], heard: NDArray[Any], clients: Sequence[int]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Over the clients: the spread of the loss and of every metric, and means that count clients otherwise.

        A client whose rows do not define a figure of the whole split, all of one class say, is not in that one's.
        """
        rounds = self._participation[list(clients)]
        found: dict[str, dict[str, dict[str, float]]] = {}
        for k, o in enumerate(self.problem.objectives):
            holds = [i for i, table in enumerate(tables) if o.name in table]
            for name, metric in o.reported.items():
                whole = isinstance(metric, SplitMetric)
                here = [i for i in holds if not whole or defined(tables[i][o.name][name])]
                if not here:
                    continue
                v = [tables[i][o.name][name] for i in here]
                found.setdefault(o.name, {})[name] = {
                    **spread(v, high_is_bad=metric.better == "lower"),
                    "mean_by_examples": weighted_mean(v, heard[here, k]),
                    "mean_by_participation": weighted_mean(v, rounds[here]),
                }
        return found

    def _each(self, tables: Sequence[Table], clients: Sequence[int], among: int) -> dict[str, dict[str, NDArray[Any]]]:
        """Every figure of every client, NaN for those that were not measured."""
        found = {o.name: {name: np.full(among, np.nan) for name in o.reported} for o in self.problem.objectives}
        for client, table in zip(clients, tables, strict=True):
            for objective, row in table.items():
                for name, value in row.items():
                    found[objective][name][client] = value
        return found


def _model(state: State) -> dict[str, Tensor]:
    return {"x": state["x"], "buffers": state["buffers"]}


def _shortest(gradients: Tensor) -> float:
    """|w* G|, w* the min-norm weights of the rows: 0 at Pareto-stationary points."""
    gram = (gradients.double() @ gradients.double().T).numpy()
    w = min_norm(gram)
    return float(np.sqrt(max(w @ gram @ w, 0.0)))
