"""Weights that do not look at the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyfed.weights.gram import Array, as_weights
from polyfed.weights.weighting import Weighting, WeightingState, weightings


@weightings("mean")
@weightings("uniform")
@dataclass(frozen=True)
class Uniform(Weighting):
    """1/M for each objective: the mean of the losses."""

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        return np.full(len(gram), 1.0 / len(gram)), state


@weightings("sum")
@dataclass(frozen=True)
class Ones(Weighting):
    """1 for each objective: the sum of the losses."""

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        return np.ones(len(gram)), state


@weightings("fixed")
@dataclass(frozen=True)
class FixedWeights(Weighting):
    """Weights chosen beforehand, rescaled to sum to one over the objectives present.

    They travel as state, which knows who is present.

    Args:
        weights: one number for each objective, in their order; none negative, and 0 leaves an objective out.
    """

    weights: tuple[float, ...]

    def init(self, size: int) -> WeightingState:
        return {"weights": as_weights(self.weights, size, "weights")}

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        total = state["weights"].sum()
        return state["weights"] / total if total > 0 else state["weights"], state
