"""What the neural methods share: how a client trains, step sizes that change, weights over who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.door import Door
from polyfed.core.messages import Option
from polyfed.core.settings import Count, NotNegative, Positive, settings


@settings
class StepDecay:
    """start * decay^floor((t - 1) / every)."""

    start: Positive
    decay: Annotated[float, Field(gt=0, le=1)]
    every: Annotated[int, Field(ge=1)] = 1

    def value(self, t: int, frame: int) -> float:
        return self.start * float(self.decay ** ((t - 1) // self.every))


Every = Annotated[int, Field(ge=1)] | Literal["frame"]  # rounds; a frame is as many as models are trained together


def stage(t: int, every: Every, frame: int) -> int:
    """1 + floor((t - 1) / every): which stretch of so many rounds t lies in."""
    return 1 + (t - 1) // (frame if every == "frame" else every)


@settings
class InverseDecay:
    """beta / (1 + floor((t - 1) / every) + gamma); with every = 1, beta / (t + gamma).

    every = "frame" holds a rate for M rounds, M the number of models trained together, as MFA-RR's Theorem 2 asks.
    """

    beta: Positive
    gamma: NotNegative = 0.0
    every: Every = 1

    def value(self, t: int, frame: int) -> float:
        return self.beta / (stage(t, self.every, frame) + self.gamma)


@settings
class GrowingBatch:
    """A batch that grows from `start` rows to all, as Theorem 2 of the multi-model paper asks.

    The share of the `full` rows (the largest client's) that a step leaves out is at most
    (1 - start / full) (1 + gamma) / (1 + floor((t - 1) / every) + gamma), so proportional to a decaying step of the
    same gamma and every. The batch is the smallest that cuts no client's pass into a part that leaves out more of that
    client's rows: from half of the rows on, the next size is all of them.
    """

    start: Annotated[int, Field(ge=1)]
    full: Annotated[int, Field(ge=1)]
    gamma: NotNegative = 0.0
    every: Every = 1

    def value(self, t: int, frame: int, examples: NDArray[np.int64]) -> int:
        """Rows of a step in round t, for clients with so many examples; 0 for all."""
        left_out = (1 - self.start / self.full) * (1 + self.gamma) / (stage(t, self.every, frame) + self.gamma)
        n = np.unique(examples[examples > 0])
        least = np.ceil(n * (1 - max(left_out, 0.0)) - 1e-9)
        for size in range(int(max(least.max(), 1)), int(n.max())):
            part = np.where(n % size, n % size, size)  # the smallest of a pass
            if ((size >= n) | (part >= least)).all():
                return size
        return 0


Rate = Positive | StepDecay | InverseDecay


def value_in_round(rate: Rate, t: int, fleet: Door) -> float:
    """A step size in round t, constant or scheduled; the fleet knows how long a frame is."""
    return rate if isinstance(rate, float | int) else rate.value(t, fleet.frame)


@settings
class LocalTraining:
    """How a client trains.

    Args:
        lr: the clients' step size, a number or a schedule: {'start': 0.1, 'decay': 0.5, 'every': 10} or
            {'beta': 1.0, 'gamma': 0.0, 'every': 1} for beta / (t + gamma).
        local_steps: steps a round.
        local_epochs: passes over a client's rows a round, in place of steps.
        batch_size: rows of a step; 0 for all of a client's, or one that grows ({'start': 8, 'full': 100}).
        optimizer: 'sgd' or 'adam'; what it remembers does not last from round to round.
        momentum: of SGD.
        weighting_by: what a client counts in a mean: 1 ('uniform') or its number of examples ('size', as in McMahan's
            FedAvg).
    """

    lr: Rate = 0.1
    local_steps: Count = 10
    local_epochs: Count = 0
    batch_size: Count | GrowingBatch = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weighting_by: Literal["uniform", "size"] = "uniform"

    def __post_init__(self) -> None:
        if not self.local_steps and not self.local_epochs:
            raise ValueError("local_steps or local_epochs should be at least 1. Found 0 for both.")

    def local_options(self, t: int, fleet: Door) -> dict[str, Option]:
        """The options of a request for local work in round t (`work.sgd.LocalSteps`); epochs replace steps."""
        return {
            "lr": value_in_round(self.lr, t, fleet),
            "steps": 0 if self.local_epochs else self.local_steps,
            "epochs": self.local_epochs,
            "batch_size": self.batch_rows(t, fleet),
            "optimizer": self.optimizer,
            "momentum": self.momentum,
            "weight": self.weighting_by,
        }

    def batch_rows(self, t: int, fleet: Door) -> int:
        """Rows of a step in round t; 0 for all of a client's."""
        size = self.batch_size
        return size if isinstance(size, int) else size.value(t, fleet.frame, fleet.examples)

    def shares(self, cohort: Sequence[int], fleet: Door) -> NDArray[np.float64]:
        """a_i of every client asked: 1, or its number of examples."""
        n: NDArray[np.float64] = fleet.examples[np.asarray(cohort)].astype(float)
        return n if self.weighting_by == "size" else np.ones_like(n)


def present(lam: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights over the objectives that somebody in the cohort holds; the others have 0, and share out what they had."""
    lam = np.where(holds.any(0), lam, 0.0)
    simplex: NDArray[np.float64] = lam / max(lam.sum(), np.finfo(float).tiny)
    return simplex


def objective_weights(
    lam: NDArray[np.float64], a: NDArray[np.float64], holds: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """omega_s = lambda_s W / W_s: what a client multiplies f_s by, so that the mean over all clients of their weighted
    objectives is sum_s lambda_s times the mean over those who hold s (W sums a over all, W_s over the holders).
    """
    W_s = a @ holds
    omega: NDArray[np.float64] = np.divide(lam * a.sum(), W_s, out=np.zeros_like(lam), where=W_s > 0)
    return omega
