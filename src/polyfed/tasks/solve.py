"""MOCHA's rounds over arrays until the duality gap is small: one linear model a task, or one a task and class.

With several classes there is a problem for each of them against the rest, all with one Omega: the tasks' relation is
learned from all classes together, W in R(W, Omega) having the weights of all classes side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from polyfed.algorithms import State
from polyfed.algorithms.tasks.mocha import Mocha
from polyfed.algorithms.tasks.regularisers import Matrix
from polyfed.algorithms.tasks.task_models import finish
from polyfed.core.door import Door
from polyfed.tasks.engine import open_door
from polyfed.work.linear.examples import Examples


@dataclass(frozen=True)
class Plan:
    """How long rounds go on.

    Args:
        tol: the relative duality gap to stop at.
        max_iter: rounds at most.
        omega_every: rounds after which Omega is found anew, though the gap is not yet small.
        omega_steps: how often Omega is found.
        seed: of the coordinates' order.
        threads: how many tasks are worked on at once.
    """

    tol: float
    max_iter: int
    omega_every: int
    omega_steps: int
    seed: int
    threads: int


@dataclass(frozen=True)
class Solved:
    """Weights (tasks x models x features), the Omega they are best for, and how good they are."""

    W: Matrix
    omega: Matrix
    primal: float
    dual: float
    rounds: int

    @property
    def gap(self) -> float:
        """The duality gap as a part of the primal value."""
        return (self.primal - self.dual) / max(abs(self.primal), float(np.finfo(float).tiny))


def solve(problems: Sequence[Sequence[Examples]], rounds: Mocha, plan: Plan) -> Solved:
    """Rounds until the gap is small, an Omega step, and again; the last Omega's problem is solved to the end."""
    with ExitStack() as stack:
        doors = []
        for tasks in problems:
            engine, door = open_door(tasks, seed=plan.seed, threads=plan.threads)
            stack.callback(engine.close)
            doors.append(door)
        return _solved(doors, rounds, plan)


def _solved(doors: Sequence[Door], rounds: Mocha, plan: Plan) -> Solved:
    states = [rounds.begun(dict(door.problem.initial()), door) for door in doors]
    left, since = (plan.omega_steps if rounds.rule.learns else 0), 0
    for t in range(1, plan.max_iter + 1):
        for k, door in enumerate(doors):
            door.begin(t)
            states[k], _ = rounds.round(t, states[k], door)
        found, since = _measured(states, doors, rounds, t), since + 1
        done = found.gap <= plan.tol
        if left and (done or since >= plan.omega_every):
            states, left, since = _restructured(states, rounds), left - 1, 0
        elif not left and done:
            break
    return _measured(states, doors, rounds, t)


def _restructured(states: Sequence[State], rounds: Mocha) -> list[State]:
    """The Omega that is best for all models' W, and every W anew from its V."""
    omega = rounds.rule.step(np.hstack([state["W"].numpy() for state in states]))
    mbar = rounds.rule.mbar(omega)
    each = [torch.from_numpy(rounds.rule.weights(state["V"].numpy(), mbar)) for state in states]
    return [finish(state, W=W, omega=torch.from_numpy(omega)) for state, W in zip(states, each, strict=True)]


def _measured(states: Sequence[State], doors: Sequence[Door], rounds: Mocha, t: int) -> Solved:
    """Primal and dual of all models together; what R has for Omega alone is counted once."""
    each = [rounds.measure(state, door) for state, door in zip(states, doors, strict=True)]
    W = np.stack([state["W"].numpy() for state in states], axis=1)
    omega, (_, k, d) = states[0]["omega"].numpy(), W.shape
    extra = rounds.rule.alone(omega, k * d) - k * rounds.rule.alone(omega, d)
    primal, dual = (sum(found[name] for found in each) + extra for name in ("primal", "dual"))
    return Solved(W, omega, primal, dual, t)
