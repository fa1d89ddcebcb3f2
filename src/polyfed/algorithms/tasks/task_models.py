"""What MOCHA and its baselines share: one linear model a task, tied by Omega, and the measures of the whole problem.

    min over W, Omega of  P = sum_t c_t sum_i l(w_t^T x_t^i, y_t^i) + R(W, Omega)                                (1)

with the dual  D = -sum_t c_t sum_i l*(-beta_t^i) - R*(V),  V = X alpha,  alpha = c beta                         (3)

(the paper minimises -D). c_t is 1 (the paper's sum) or 1 / n_t (its code's mean). A node is a client; nodes may share
a task (Remark 4). The problem's module is one task's linear model: with a bias, tasks have a constant feature, which
is regularised like any other. 'x' of the state is the mean of all tasks' models, for clients never seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.algorithms import Algorithm, State
from polyfed.algorithms.tasks.regularisers import AnyRegulariser, Clustered, Matrix, Regulariser
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.fleet import Stack
from polyfed.core.messages import Option, Request
from polyfed.core.problem import Problem
from polyfed.core.settings import NotNegative, Positive, settings

Index = NDArray[np.int64]
ROUNDING = 1e-9  # of the values: by which a gap that is 0 may be below it


@settings
class TaskModels(Algorithm):
    """One linear model a task, tied by a regulariser.

    Args:
        loss: 'hinge', 'smoothed-hinge', 'logistic' (labels -1 and 1, or 0 and 1 read as such) or 'squared'.
        smoothing: of the smoothed hinge.
        loss_scale: 'sum' over a task's rows, or their 'mean'.
        regulariser: how tasks are tied, a dict with a name and settings.
        tasks: the task of every node, in order; each its own if not given.
        standardise: features with mean 0 and variance 1 over all nodes' rows, from one sum in the first round; without
            a bias they are only scaled.
        stop_gap: the run ends when an evaluation finds a duality gap of at most this part of the primal value.
    """

    loss: Literal["hinge", "smoothed-hinge", "logistic", "squared"] = "hinge"
    smoothing: Positive = 0.5
    loss_scale: Literal["sum", "mean"] = "sum"
    regulariser: AnyRegulariser = Clustered()
    tasks: list[Annotated[int, Field(ge=0)]] | None = None
    standardise: bool = False
    stop_gap: NotNegative = 0.0

    def init(self, problem: Problem) -> State:
        """W is made in the first round, when the number of nodes is known."""
        return dict(problem.initial())

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse another model than one linear one, and what does not go with so many nodes."""
        shapes = [tuple(p.shape) for p in problem.params.values()]
        if len(problem.names) > 1 or shapes[0][:1] != (1,) or len(shapes[0]) != 2 or shapes[1:] not in ([], [(1,)]):
            raise BadInput(
                "Task methods learn one linear model with one output: give the data set one binary or squared "
                f"objective and set model.name = 'linear'. Found {len(problem.names)} objectives, parameters {shapes}."
            )
        if self.tasks is not None and len(self.tasks) != clients:
            raise BadInput(
                f"algorithm.tasks should name a task for each of the {clients} clients. Found {len(self.tasks)}."
            )
        self.rule.start(1 + int(self.task_of(range(clients)).max()))

    # what a task is

    def task_of(self, nodes: Sequence[int]) -> Index:
        """The task of each of these nodes."""
        mine = np.asarray(nodes, dtype=np.int64)
        return mine if self.tasks is None else np.asarray(self.tasks, dtype=np.int64)[mine]

    def counts(self, fleet: Door) -> Index:
        """n_t: rows of each task."""
        return np.bincount(self.task_of(range(len(fleet))), weights=fleet.examples).astype(np.int64)

    def scales(self, nodes: Sequence[int], fleet: Door) -> Tensor:
        """c_t of each node."""
        one = np.ones(len(nodes))
        c = one if self.loss_scale == "sum" else one / self.counts(fleet)[self.task_of(nodes)]
        return torch.from_numpy(c)

    def units(self, fleet: Door) -> dict[str, Tensor]:
        """For the guard: every node's task, and by task the unit in which v_t is alike, sqrt(n_t) for sums of losses.

        v_t grows with n_t where the regulariser is strong and does not where it is weak: the root is between them. The
        unit is infinite, so that nothing is compared, where a task is one node's alone and tied to no other.
        """
        task, rows = self.task_of(range(len(fleet))), np.maximum(self.counts(fleet), 1)
        unit = np.sqrt(rows) if self.loss_scale == "sum" else np.ones(len(rows))
        alone = (np.bincount(task) == 1) & (not self.rule.ties)
        return {"task": torch.from_numpy(task), "unit": torch.from_numpy(np.where(alone, np.inf, unit))}

    def begun(self, state: State, fleet: Door) -> State:
        """W = V = 0 and the first Omega; and, where features are standardised, their mean and spread."""
        if "V" in state:
            return state
        m, d = len(self.counts(fleet)), fleet.problem.dim
        zero = torch.zeros(m, d, dtype=torch.float64)
        omega = torch.from_numpy(self.rule.start(m))
        more = self._moments(fleet, d) if self.standardise else {}
        return {**state, "V": zero, "W": zero.clone(), "omega": omega, **more}

    @property
    def rule(self) -> Regulariser:
        """The regulariser."""
        return self.regulariser

    def _moments(self, fleet: Door, d: int) -> dict[str, Tensor]:
        total = fleet.sum(fleet.cohort(0, "moments", len(fleet)), Request("moments"))
        mean = total["sum"] / total["n"]
        spread = (total["squares"] / total["n"] - mean**2).clamp(min=0).sqrt()
        constant = spread <= 1e-9 * mean.abs().clamp(min=1)
        centred = len(fleet.problem.params) == 2  # only a bias can make up for what centring takes away
        shift = torch.where(constant, 0.0, mean) if centred else torch.zeros_like(mean)
        return {"shift": shift, "scale": torch.where(constant, 1.0, spread)}

    # talking to the nodes

    def shared(self, state: State) -> dict[str, Tensor]:
        return {name: state[name] for name in ("shift", "scale") if name in state}

    def options(self) -> dict[str, Option]:
        return {"loss": self.loss, "smoothing": self.smoothing}

    def answers(self, nodes: Sequence[int], request: Request, fleet: Door) -> Iterator[Stack]:
        """Replies; a round in which no node came through is one without progress, a node's error is not."""
        try:
            yield from fleet.ask(nodes, request)
        except NobodyAnswered:
            if fleet.failures:
                raise

    # what is reported

    def point(self, state: State) -> tuple[Tensor, Tensor]:
        """V and W to be judged and used."""
        return state["V"], state["W"]

    def personal(self, state: State, nodes: Sequence[int]) -> Tensor:
        """Every node's own model, for the features as they are."""
        return _unscaled(self.point(state)[1], state)[self.task_of(nodes)]

    def extras(self, state: State) -> dict[str, Tensor]:
        """What the model file holds besides the mean model."""
        return {"tasks.W": _unscaled(self.point(state)[1], state), "tasks.omega": state["omega"]}

    def measure(self, state: State, fleet: Door) -> dict[str, Any]:
        """Primal (1), dual (3) and their gap at the current W and alpha; nothing when a node's part is missing."""
        V, W = (a.numpy() for a in self.point(state))
        nodes = fleet.cohort(0, "measure", len(fleet))
        each = {"w": torch.from_numpy(W[self.task_of(nodes)]), "c": self.scales(nodes, fleet)}
        options = {**self.options(), "average": -1, **self.averaging(fleet)}
        task = self.task_of(range(len(fleet)))
        product = np.where(np.bincount(task) == 1, (V * W).sum(1), np.nan)  # <w_t, v_t>, v_t of one node
        known = {"task": torch.from_numpy(task), "product": torch.from_numpy(product)}
        total = fleet.sum(nodes, Request("task-values", self.shared(state), each, options, known=known))
        if len(total.clients) < len(nodes):
            return {}
        return self._values(V, W, state["omega"].numpy(), float(total["loss"]), float(total["conjugate"]))

    def averaging(self, fleet: Door) -> dict[str, Option]:
        return {}

    def _values(self, V: Matrix, W: Matrix, omega: Matrix, loss: float, conjugate: float) -> dict[str, Any]:
        mbar, alone = self.rule.mbar(omega), self.rule.alone(omega, W.shape[1])
        R = self.rule.value(W, mbar)
        primal = loss + R + alone
        dual = -conjugate - (float(np.vdot(V, W)) - R) + alone  # R*(V) = <V, W> - R(W) at W = w(alpha)
        gap, found = primal - dual, {"primal": primal, "dual": dual, "gap": primal - dual}
        if gap < -ROUNDING * (abs(primal) + abs(dual)):  # the dual is below the primal, whatever the model is
            return {**found, "gap_note": "A negative gap is none: a node's figures are not those of its rows."}
        small = self.stop_gap * abs(primal)
        if not 0 < small >= gap or self.gain_of_omega(W, omega) > small:
            return found
        why = f"the duality gap, {gap:.3g}, is at most stop_gap = {self.stop_gap:g} of the primal value, {primal:.6g}"
        return {**found, "done": why}

    def gain_of_omega(self, W: Matrix, omega: Matrix) -> float:
        """By how much the primal value would fall with the best Omega for this W: the gap is about W alone."""
        return 0.0


def finish(state: State, **changed: Tensor) -> State:
    """The next state, with the mean model as its x."""
    state = {**state, **changed}
    return {**state, "x": _unscaled(state["W"], state).mean(0).to(state["x"].dtype)}


def _unscaled(W: Tensor, state: State) -> Tensor:
    """w^T (x - shift) / scale as a linear function of x: what is left over goes to the bias, the last entry."""
    if "scale" not in state:
        return W
    W = W / state["scale"]
    if state["shift"].any():
        W[:, -1] -= W @ state["shift"]
    return W
