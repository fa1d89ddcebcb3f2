"""How good a model is: on the server's test data or, where it has none, by asking the clients. The same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.algorithms.base import objective_weights
from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner
from polyfed.core.algorithm import State
from polyfed.core.door import Door
from polyfed.core.errors import RunStopped
from polyfed.core.federation import Federation, Rows
from polyfed.core.layer import Layers
from polyfed.core.messages import Option, Request
from polyfed.core.problem import Problem
from polyfed.metrics import improved_share, spread, weighted_mean
from polyfed.weights import min_norm

Table = dict[str, dict[str, float]]  # objective -> loss and metrics
Personal = Callable[[State, Sequence[int]], Tensor | None]  # a state and clients -> each one's own model, or none


@dataclass
class Evaluation:
    """Evaluates every so many rounds, and in the last.

    clients: also ask each client about its own rows; improved: ask the round's participants whether the new model is
    no worse for them, by the function they train on, sum_s omega_s f_is; splits: whose losses and metrics are logged
    besides; optimum: a model x*, 'x' and 'buffers', that every evaluation measures the distance and FMGDA's Delta_Q to.
    The others are rounds between measurements, 0 for never. On all clients' full data, stationarity: |J w*| with
    min-norm weights, after the round; own_stationarity: |J lambda| at the round's start, with the method's own weights
    (FMGDA's d-bar); client_stationarity: the shortest convex combination of the gradients of the clients'
    sum_s omega_s f_is, after the round (FedMGDA's Theorem 1). On the participants' own rows, progress: what local
    training gained (FedCMOO's Figure 11). weighting: what a client counts in the means of J and of Delta_Q's losses.
    """

    problem: Problem
    federation: Federation
    every: int = 1
    clients: bool = False
    improved: bool = False
    stationarity: int = 0
    own_stationarity: int = 0
    client_stationarity: int = 0
    progress: int = 0
    splits: Sequence[str] = ()
    optimum: Mapping[str, Tensor] | None = None
    weighting: str = "uniform"
    _least: Tensor | None = field(default=None, init=False, repr=False)  # f_s(x*)

    def __post_init__(self) -> None:
        at_server = self.federation.server is not None
        own = self.federation.at_server() if at_server else None
        self._runner = None if own is None else ClientRunner(self.problem, own, Layers(finite=False))
        self._participation: NDArray[np.int64] = np.zeros(len(self.federation), dtype=np.int64)  # rounds, by client

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
        return torch.from_numpy(objective_weights(weights.double().numpy(), a, fleet.holds[clients]))

    def _total_losses(
        self, shared: dict[str, Tensor], clients: list[int], omega: Tensor, fleet: Door
    ) -> dict[int, float]:
        """Each client's sum_s omega_s f_is, f_is the mean loss on its training rows."""
        request = Request("evaluate", shared, options={"split": "train"})
        counts = omega > 0  # what has no weight may be infinite
        losses: dict[int, float] = {}
        for s in fleet.ask(clients, request):
            f = s["values"][:, self.problem.loss_places].double() / s["n"].unsqueeze(1)
            losses.update(zip(s.clients, (f[:, counts] @ omega[counts]).tolist(), strict=True))
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
        values, heard, n = (torch.cat([s[name] for s in stacks]).double() for name in ("values", "heard", "n"))
        a = (heard > 0) * (n if self.weighting == "size" else torch.ones_like(n)).unsqueeze(1)
        return (a * values[:, self.problem.loss_places] / n.unsqueeze(1)).sum(0) / a.sum(0)

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
        by = self._omega(weights, everyone, fleet).to(H.dtype) * held
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
        tables: dict[str, Table] = {}
        if self.clients or not at_server:
            values, heard, clients = self._ask(theirs, state, fleet, personal)
            tables[theirs] = self._table(values.sum(0), heard.sum(0))
            found = {"clients": self._spread(values, heard, clients)} if self.clients else {}
        if at_server:
            tables["test"] = self._own(_model(state))
        for split in self.splits:
            if split not in tables:
                values, heard, _ = self._ask(split, state, fleet, personal)
                tables[split] = self._table(values.sum(0), heard.sum(0))
        if self.splits:
            found["splits"] = {split: _apart(tables[split]) for split in self.splits}
        return {**_apart(tables[main]), "split": main, **found}

    def _own(self, shared: dict[str, Tensor]) -> Table:
        assert self._runner is not None
        reply, _ = self._runner(Job(0, Request("evaluate", shared, options={"split": "test"}), None))
        if reply.error:
            raise RunStopped(f"The model could not be evaluated on the server's test data: {reply.error}.")
        return self._table(reply.arrays["values"].numpy(), reply.arrays["heard"].numpy())

    def _with_rows(self, split: str, fleet: Door) -> list[int]:
        """The clients that have something to measure on."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        rows: Rows | None = getattr(self.federation, split)
        return everyone if rows is None else [c for c in everyone if c >= len(rows) or rows.length[c]]

    def _ask(
        self, split: str, state: State, fleet: Door, personal: Personal | None
    ) -> tuple[NDArray[Any], NDArray[Any], list[int]]:
        """Every client's sums over the rows of a split, how many there were for each objective, and whose they are."""
        clients = self._with_rows(split, fleet)
        own_models = personal(state, clients) if personal else None
        each = {} if own_models is None else {"x": own_models.to(self.problem.dtype)}
        shared = {name: a for name, a in _model(state).items() if name not in each}
        stacks = list(fleet.ask(clients, Request("evaluate", shared, each, {"split": split})))
        values, heard = (torch.cat([s[name] for s in stacks]).double().numpy() for name in ("values", "heard"))
        return values, heard, [client for s in stacks for client in s.clients]

    def _table(self, values: NDArray[Any], heard: NDArray[Any]) -> Table:
        """Means from sums, by objective; an objective without examples is left out."""
        rows = iter(values.tolist())
        table = {
            o.name: {name: next(rows) / max(float(n), 1.0) for name in o.values}
            for o, n in zip(self.problem.objectives, heard, strict=True)
        }
        return {name: row for (name, row), n in zip(table.items(), heard, strict=True) if n > 0}

    def _spread(
        self, values: NDArray[Any], heard: NDArray[Any], clients: Sequence[int]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Over the clients: the spread of the loss and of every metric, and means that count clients otherwise."""
        tables = [self._table(v, h) for v, h in zip(values, heard, strict=True)]
        rounds = self._participation[list(clients)]
        found: dict[str, dict[str, dict[str, float]]] = {}
        for k, o in enumerate(self.problem.objectives):
            here = [i for i, table in enumerate(tables) if o.name in table]
            for name, metric in o.measured.items() if here else ():
                v = [tables[i][o.name][name] for i in here]
                found.setdefault(o.name, {})[name] = {
                    **spread(v, high_is_bad=metric.better == "lower"),
                    "mean_by_examples": weighted_mean(v, heard[here, k]),
                    "mean_by_participation": weighted_mean(v, rounds[here]),
                }
        return found


def _apart(table: Table) -> dict[str, Any]:
    """The losses, and the metrics without them."""
    metrics = {name: {key: v for key, v in row.items() if key != "loss"} for name, row in table.items()}
    return {"losses": {name: row["loss"] for name, row in table.items()}, "metrics": metrics}


def _model(state: State) -> dict[str, Tensor]:
    return {"x": state["x"], "buffers": state["buffers"]}


def _shortest(gradients: Tensor) -> float:
    """|w* G|, w* the min-norm weights of the rows: 0 at Pareto-stationary points."""
    gram = (gradients.double() @ gradients.double().T).numpy()
    w = min_norm(gram)
    return float(np.sqrt(max(w @ gram @ w, 0.0)))
