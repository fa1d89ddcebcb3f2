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

    clients: also ask each client about its own rows; stationarity: rounds between measurements of |J w*| on all
    clients' full data, 0 for never; improved: ask the round's participants whether the new model is better for them.
    """

    problem: Problem
    federation: Federation
    every: int = 1
    clients: bool = False
    stationarity: int = 0
    improved: bool = False

    def __post_init__(self) -> None:
        at_server = self.federation.server is not None
        own = self.federation.at_server() if at_server else None
        self._runner = None if own is None else ClientRunner(self.problem, own, Layers(finite=False))
        self._split = "test" if self.federation.test is not None else "train"

    def due(self, t: int, rounds: int) -> bool:
        return t % self.every == 0 or t == rounds

    def client_metrics(self, t: int, before: State, after: State, fleet: Door, rounds: int) -> dict[str, Any]:
        """What is measured by asking clients about a round: stationarity, and who gained."""
        found: dict[str, Any] = {}
        if self.improved:
            clients = list(fleet.asked)
            old, new = (self._total_losses(_model(state), clients, fleet) for state in (before, after))
            both = [client for client in old if client in new]
            found["improved"] = improved_share([old[c] for c in both], [new[c] for c in both])
        if self.stationarity and (t % self.stationarity == 0 or t == rounds):
            found["stationarity"] = self._stationarity(_model(after), fleet)
        return found

    def _total_losses(self, shared: dict[str, Tensor], clients: list[int], fleet: Door) -> dict[int, float]:
        """Each client's sum over its objectives of the mean loss on its training rows."""
        request = Request("evaluate", shared, options={"split": "train"})
        losses: dict[int, float] = {}
        for s in fleet.ask(clients, request):
            total = s["values"][:, self.problem.loss_places].sum(1) / s["n"]
            losses.update(zip(s.clients, total.tolist(), strict=True))
        return losses

    def _stationarity(self, shared: dict[str, Tensor], fleet: Door) -> float:
        """|J w*|, w* the min-norm weights of the full-data Jacobian: 0 at Pareto-stationary points."""
        everyone = fleet.cohort(0, "evaluate", len(fleet))
        total = fleet.sum(everyone, Request("full-jacobian", shared))
        J = (total["H"] / torch.where(total["heard"] > 0, total["heard"], 1.0).unsqueeze(1))[total["heard"] > 0]
        gram = (J @ J.T).double().numpy()
        w = min_norm(gram)
        return float(np.sqrt(max(w @ gram @ w, 0.0)))

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
                name: spread([t[o.name][name] for t in tables if o.name in t], high_is_bad=name != "accuracy")
                for name in o.values
            }
            for o in self.problem.objectives
            if any(o.name in t for t in tables)
        }


def _model(state: State) -> dict[str, Tensor]:
    return {"x": state["x"], "buffers": state["buffers"]}
