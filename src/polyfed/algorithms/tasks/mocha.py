"""MOCHA: a model for every node, nodes tied by what they have in common, any amount of work by any node in any round.

Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", 2017, Algorithm 1. In round h the server sends
node t its w_t; the node improves its subproblem (4)

    sum_i l*(-alpha^i - dalpha^i) + <w_t, X_t dalpha> + sigma'/2 Mbar_tt |X_t dalpha|^2

as far as it can and replies with dv_t = X_t dalpha. The server folds v_t <- v_t + gamma dv_t, W = Mbar V, and every
`omega_every` rounds finds a new Omega from W, after which W is computed anew from V: w = w(alpha) always holds.

    sigma' = gamma max_t sum_t' k_t' |Mbar_tt'| / Mbar_tt                                                  (Lemma 9)

with k_t the number of nodes of task t that are asked (Remark 4), or each task with its own (Remark 5). Where the
authors' code differs: the objective has no 1/2 and no 1/n_t (`loss_scale = "mean"` has), W is never stale after an
Omega step, and the Omega step belongs to the regulariser that is named.

| name | what differs |
|---|---|
| mocha | |
| cocoa | every node works until its accuracy theta is reached: all wait for the slowest |
| mb-sdca | one minibatch of coordinate steps from the same w_t, scaled by beta / b |
| local | tasks apart, R = lam |W|^2 |
| global | one model for all nodes, R = lam |w|^2 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import moment
from polyfed.algorithms.tasks.regularisers import Independent, Matrix
from polyfed.algorithms.tasks.task_models import Index, TaskModels, finish
from polyfed.core.door import Door
from polyfed.core.messages import Option, Request
from polyfed.core.settings import NotNegative, settings
from polyfed.rates import AverageRule, Rule, evaluated

Theta = Annotated[float, Field(gt=0, lt=1)]


@algorithms("mocha")
@settings
class Mocha(TaskModels):
    """One linear model a node, tied by a learned Omega; nodes may do any part of their work, or none.

    Args:
        epochs: a node's budget of coordinate steps in a round, in passes over its rows.
        steps: the same as one number for all nodes, in place of epochs.
        gamma: the part of its step that each node's dual takes.
        per_task_sigma: each task with its own sigma' (Remark 5).
        omega_every: rounds between Omega steps; 0 for never.
        average_from: H_0: use the mean of the dual iterates after so many rounds (Theorem 2, where losses are not
            smooth); a number, or a rule by its name.
        measure_theta: report Definition 1's theta of every node.
    """

    epochs: NotNegative = 1.0
    steps: Annotated[int, Field(ge=0)] = 0
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    per_task_sigma: bool = False
    omega_every: Annotated[int, Field(ge=0)] = 10
    average_from: Annotated[int, Field(ge=0)] | AverageRule | None = None
    measure_theta: bool = False

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        state = self.begun(state, fleet)
        nodes = fleet.cohort(t)
        V = state["V"].clone()
        theta: dict[int, float] = {}
        steps = answered = 0
        for stack in self.answers(nodes, self._request(nodes, state, fleet), fleet):
            V.index_add_(0, torch.from_numpy(self.task_of(stack.clients)), self.gamma * stack["dv"])  # line 10
            steps, answered = steps + int(stack["steps"].sum()), answered + len(stack.clients)
            if self.measure_theta:
                theta.update(zip(stack.clients, stack["theta"].squeeze(1).tolist(), strict=True))
        W = torch.from_numpy(self.rule.weights(V.numpy(), self.rule.mbar(state["omega"].numpy())))
        state = finish(state, V=V, W=W, **self._mean(t, state, V, fleet))
        if self.rule.learns and self.omega_every and t % self.omega_every == 0:
            state = self.restructured(state)
        found: Diagnostics = {"answered": answered, "steps": steps}
        every = {str(node): theta.get(node, 1.0) for node in nodes}  # who did not answer made no progress
        return state, {**found, "theta": every} if self.measure_theta else found

    def _request(self, nodes: Sequence[int], state: State, fleet: Door) -> Request:
        task, mbar = self.task_of(nodes), self.rule.mbar(state["omega"].numpy())
        s = self._sigma(mbar, task) * mbar.diagonal()[task]
        each = {
            "w": state["W"][torch.from_numpy(task)], "s": torch.from_numpy(s), "c": self.scales(nodes, fleet),
            "budget": torch.from_numpy(self.budget(nodes, fleet)),
        }  # fmt: skip
        options = {**self.options(), "gamma": self.gamma, "k": int(self.measure_theta), **self.averaging(fleet)}
        return Request(
            "sdca", self.shared(state), each, {"theta": 0.0, "batch_scale": 0.0, **options, **self.local_options()},
            known={"v": state["V"], **self.units(fleet)},
        )  # fmt: skip

    def local_options(self) -> dict[str, Option]:
        """How nodes work on their subproblem, where it is not by a budget of steps."""
        return {}

    def budget(self, nodes: Sequence[int], fleet: Door) -> Index:
        """Coordinate steps of each node."""
        own = np.ceil(self.epochs * fleet.examples[np.asarray(nodes)]).astype(np.int64)
        return np.full(len(nodes), self.steps, dtype=np.int64) if self.steps else own

    def averaging(self, fleet: Door) -> dict[str, Option]:
        return {"average": -1 if self.average_from is None else self._averages_from(fleet)}

    def _averages_from(self, fleet: Door) -> int:
        """H_0."""
        start = self.average_from
        if isinstance(start, Rule):
            return int(evaluated(start, "average_from", moment(1, fleet, "average_from")))
        return start or 0

    def _sigma(self, mbar: Matrix, task: Index) -> Any:
        """sigma' of every node asked: (29) with the nodes of each task counted."""
        k = np.bincount(task, minlength=len(mbar))
        sigma = self.gamma * (np.abs(mbar) @ k / mbar.diagonal())[task]
        return sigma if self.per_task_sigma else np.full(len(task), sigma.max())

    def restructured(self, state: State) -> State:
        """Lines 11 and 12: Omega from w(alpha), then w(alpha) anew."""
        omega = self.rule.step(state["W"].numpy())
        W = self.rule.weights(state["V"].numpy(), self.rule.mbar(omega))
        return finish(state, W=torch.from_numpy(W), omega=torch.from_numpy(omega))

    def gain_of_omega(self, W: Matrix, omega: Matrix) -> float:
        if not (self.rule.learns and self.omega_every):
            return 0.0
        now, best = ((self.rule.mbar(o), self.rule.alone(o, W.shape[1])) for o in (omega, self.rule.step(W)))
        return self.rule.value(W, now[0]) + now[1] - self.rule.value(W, best[0]) - best[1]

    def _mean(self, t: int, state: State, V: Tensor, fleet: Door) -> dict[str, Tensor]:
        """The sum of V over rounds H0 + 1 ... t, and how many they are (Theorem 2)."""
        if self.average_from is None:
            return {}
        total, rounds = state.get("V_sum", torch.zeros_like(V)), max(t - self._averages_from(fleet), 0)
        return {"V_sum": total + V if rounds else total, "V_rounds": torch.tensor(rounds)}

    def point(self, state: State) -> tuple[Tensor, Tensor]:
        if self.average_from is None or not int(state["V_rounds"]):
            return state["V"], state["W"]
        V = state["V_sum"] / state["V_rounds"]
        W = self.rule.weights(V.numpy(), self.rule.mbar(state["omega"].numpy()))
        return V, torch.from_numpy(W)


@algorithms("cocoa")
@settings
class CoCoA(Mocha):
    """MOCHA with one accuracy for all nodes and rounds: everybody waits for the slowest.

    theta is Definition 1's, made sure of by the subproblem's duality gap after every pass over a node's rows.
    Ma, Smith, Jaggi, Jordan, Richtarik, Takac, "Adding vs. Averaging", 2015, for problem (1).

    Args:
        theta: the accuracy.
    """

    theta: Theta = 0.5

    def local_options(self) -> dict[str, Option]:
        return {"theta": self.theta}

    def budget(self, nodes: Sequence[int], fleet: Door) -> Index:
        return np.zeros(len(nodes), dtype=np.int64)


@algorithms("mb-sdca")
@settings
class MbSDCA(Mocha):
    """Minibatch SDCA: in a round each node takes `batch_size` coordinate steps from one w_t, scaled by beta / b.

    Shalev-Shwartz and Zhang 2013; Takac et al. 2013; the paper's Appendix E.3. Nodes' steps add up as in MOCHA, so
    sigma' stands in the coordinate steps here, too.

    Args:
        batch_size: b, rows of a node's minibatch.
        beta: between 1 (always safe) and the batch size; a node with fewer rows takes its rows for both.
    """

    batch_size: Annotated[int, Field(ge=1)] = 32
    beta: Annotated[float, Field(ge=1)] = 1.0

    def __post_init__(self) -> None:
        if self.beta > self.batch_size:
            raise ValueError(f"beta should be at most batch_size, {self.batch_size}. Found {self.beta}.")

    def local_options(self) -> dict[str, Option]:
        return {"batch_scale": self.beta}

    def budget(self, nodes: Sequence[int], fleet: Door) -> Index:
        batch: Index = np.minimum(self.batch_size, fleet.examples[np.asarray(nodes)])
        return batch


@algorithms("local")
@settings
class LocalModels(Mocha):
    """A linear model a node, each from its own rows only."""

    regulariser: Independent = Independent()


@algorithms("global")
@settings
class GlobalModel(Mocha):
    """One linear model for all nodes' rows together: all nodes share one task."""

    regulariser: Independent = Independent()

    def task_of(self, nodes: Sequence[int]) -> Index:
        return np.zeros(len(nodes), dtype=np.int64)
