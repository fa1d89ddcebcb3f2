"""How good a model is: on the server's test data or, where it has none, by asking the clients. The same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner
from polyfed.core.algorithm import State
from polyfed.core.door import Door
from polyfed.core.errors import RunStopped
from polyfed.core.federation import Federation
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.problem import Problem
from polyfed.metrics import improved_share, spread
from polyfed.weights import min_norm

Table = dict[str, dict[str, float]]  # objective -> loss and metrics
Personal = Callable[[State, Sequence[int]], Tensor | None]  # a state and clients -> each one's own model, or none


@dataclass
class Evaluation:
    """Evaluates every so many rounds, and in the last.

    clients: also ask each client about its own rows; improved: ask the round's participants whether the new model is
    better for them. The others are rounds between measurements on all clients' full data, 0 for never:
    stationarity: |J w*| with min-norm weights, after the round; own_stationarity: |J lambda| at the round's start, with
    the method's own weights (FMGDA's d-bar); client_stationarity: the shortest convex combination of the clients'
    gradients, after the round (FedMGDA's Theorem 1). weighting: what a client counts in the means of J.
    """

    problem: Problem
    federation: Federation
    every: int = 1
    clients: bool = False
    improved: bool = False
    stationarity: int = 0
    own_stationarity: int = 0
    client_stationarity: int = 0
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        at_server = self.federation.server is not None
        own = self.federation.at_server() if at_server else None
        self._runner = None if own is None else ClientRunner(self.problem, own, Layers(finite=False))
        self._split = "test" if self.federation.test is not None else "train"

    def due(self, t: int, rounds: int) -> bool:
        return t % self.every == 0 or t == rounds

    def client_metrics(
        self, t: int, before: State, after: State, fleet: Door, rounds: int, weights: Tensor | None = None
    ) -> dict[str, Any]:
        """What is measured by asking clients about a round: stationarity, and who gained.

        weights: the method's own, of the objectives.
        """
        found: dict[str, Any] = {}
        if self.improved:
            clients = list(fleet.asked)
            old, new = (self._total_losses(_model(state), clients, fleet) for state in (before, after))
            both = [client for client in old if client in new]
            found["improved"] = improved_share([old[c] for c in both], [new[c] for c in both])
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

    def _total_losses(self, shared: dict[str, Tensor], clients: list[int], fleet: Door) -> dict[int, float]:
        """Each client's sum over its objectives of the mean loss on its training rows."""
        request = Request("evaluate", shared, options={"split": "train"})
        losses: dict[int, float] = {}
        for s in fleet.ask(clients, request):
            total = s["values"][:, self.problem.loss_places].sum(1) / s["n"]
            losses.update(zip(s.clients, total.tolist(), strict=True))
        return losses

    def _jacobian(self, shared: dict[str, Tensor], fleet: Door) -> Tensor:
        """J (M, d), the objectives' gradients on all clients' full data; NaN for what nobody holds."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        total = fleet.sum(everyone, Request("full-jacobian", shared, options={"weight": self.weighting}))
        return total["H"] / total["heard"].unsqueeze(1)

    def _client_stationarity(self, shared: dict[str, Tensor], fleet: Door, weights: Tensor | None) -> float:
        """The shortest convex combination of the clients' gradients, of their objectives under the method's weights."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        stacks = list(fleet.ask(everyone, Request("full-jacobian", shared)))
        H, held = torch.cat([s["H"] for s in stacks]), torch.cat([s["heard"] for s in stacks])
        lam = held if weights is None else weights.to(H.dtype) * held
        lam = lam / lam.sum(1, keepdim=True).clamp(min=torch.finfo(H.dtype).tiny)
        return _shortest(torch.einsum("nm,nmd->nd", lam, H))

    def __call__(self, state: State, fleet: Door, personal: Personal | None = None) -> dict[str, Any]:
        """{'losses': ..., 'metrics': ...} and, by client, the spread of each.

        personal: every client's own model, where the method learns one; then clients are asked about theirs.
        """
        shared = _model(state)
        found: dict[str, Any] = {}
        everyone = self._with_rows(fleet)
        own_models = personal(state, everyone) if personal else None
        if self.clients or self._runner is None or own_models is not None:
            values, heard = self._ask(shared, fleet, everyone, own_models)
            table = self._table(values.sum(0), heard.sum(0))
            if self.clients:
                found["clients"] = self._spread(values, heard)
        if self._runner is not None and own_models is None:
            table = self._own(shared)
        losses = {name: row.pop("loss") for name, row in table.items()}
        return {"losses": losses, "metrics": table, **found}

    def _own(self, shared: dict[str, Tensor]) -> Table:
        assert self._runner is not None
        reply, _ = self._runner(Job(0, Request("evaluate", shared, options={"split": "test"}), None))
        if reply.error:
            raise RunStopped(f"The model could not be evaluated on the server's test data: {reply.error}.")
        return self._table(reply.arrays["values"].numpy(), reply.arrays["heard"].numpy())

    def _with_rows(self, fleet: Door) -> list[int]:
        """The clients that have something to measure on."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        if (test := self.federation.test) is None or self._split != "test":
            return everyone
        return [c for c in everyone if c >= len(test) or test.length[c]]

    def _ask(
        self, shared: dict[str, Tensor], fleet: Door, clients: list[int], own_models: Tensor | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        each = {} if own_models is None else {"x": own_models.to(self.problem.dtype)}
        shared = {name: a for name, a in shared.items() if name not in each}
        stacks = list(fleet.ask(clients, Request("evaluate", shared, each, {"split": self._split})))
        values, heard = (torch.cat([s[name] for s in stacks]).double().numpy() for name in ("values", "heard"))
        return values, heard

    def _table(self, values: NDArray[Any], heard: NDArray[Any]) -> Table:
        """Means from sums, by objective; an objective without examples is left out."""
        rows = iter(values.tolist())
        table = {
            o.name: {name: next(rows) / max(float(n), 1.0) for name in o.values}
            for o, n in zip(self.problem.objectives, heard, strict=True)
        }
        return {name: row for (name, row), n in zip(table.items(), heard, strict=True) if n > 0}

    def _spread(self, values: NDArray[Any], heard: NDArray[Any]) -> dict[str, dict[str, dict[str, float]]]:
        """Over the clients: the spread of the loss and of every metric."""
        tables = [self._table(v, h) for v, h in zip(values, heard, strict=True)]
        return {
            o.name: {
                name: spread([t[o.name][name] for t in tables if o.name in t], high_is_bad=metric.better == "lower")
                for name, metric in o.measured.items()
            }
            for o in self.problem.objectives
            if any(o.name in t for t in tables)
        }


def _model(state: State) -> dict[str, Tensor]:
    return {"x": state["x"], "buffers": state["buffers"]}


def _shortest(gradients: Tensor) -> float:
    """|w* G|, w* the min-norm weights of the rows: 0 at Pareto-stationary points."""
    gram = (gradients.double() @ gradients.double().T).numpy()
    w = min_norm(gram)
    return float(np.sqrt(max(w @ gram @ w, 0.0)))
