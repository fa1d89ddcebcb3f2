"""FedCMOO's weights: a fixed number of projected gradient steps, deliberately not to the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings, whole
from polyfed.rates import Moment, Rule, StepRule, evaluated
from polyfed.weights.gram import Array, Numbers, as_gram, as_vector
from polyfed.weights.simplex import project
from polyfed.weights.weighting import Weighting, WeightingState, weightings


def pgd(gram: Numbers, start: Numbers, *, steps: int = 1000, step: float = 1e-3, normalise: bool = True) -> Array:
    """Weights after some projected gradient steps towards min-norm.

    `w <- proj_simplex(w - beta G w)`, K times, with G first divided by `(mean_k sqrt(G_kk + 1e-4))^2` if normalised.

    gram: G, used as it is, so that an unsymmetric one (two client sets, Algorithm 10) is welcome; start: w, the last
    round's; steps: K; step: beta; normalise: the division, which the authors' code has and FedCMOO's Algorithm 2 (Askin
    et al. 2025) has not: without it beta has to follow the size of the gradients. We take float64, and count negative
    diagonal entries as 0. Because of the 1e-4 the scale of gradients shorter than about 0.1 matters.
    """
    G = as_gram(gram)
    w = as_vector(start, len(G), "start")
    if steps < 1 or not step > 0.0:
        raise BadInput(f"`steps` and `step` should be positive. Found {steps} and {step}.")
    scale = np.sqrt(np.maximum(G.diagonal(), 0.0) + 1e-4).mean() ** 2 if normalise else 1.0
    G = G * (step / scale)
    for _ in range(steps):
        w = project(w - G @ w)
    return w


@weightings("pgd")
@settings
class Pgd(Weighting):
    """FedCMOO's 1000 projected gradient steps from the last round's weights; inexact on purpose.

    WeightingState: `weights`, the last round's. See `pgd`.

    Args:
        steps: K, how many are taken in a round.
        step: beta, the size of a step: a number, or a rule by its name.
        normalise: whether G is first divided by the squared mean length of the gradients, as in the authors' code;
            false for Algorithms 2 and 10 as printed.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(whole)] = 1000
    step: Positive | StepRule = 1e-3
    normalise: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.step, Rule) and (self.normalise or self.steps != 1):
            raise ValueError(
                "a rule for the step is about raw PGD, one step a round: set normalise = false and steps = 1."
            )

    def during(self, objectives: int, rounds: int) -> Weighting:
        if not isinstance(self.step, Rule):
            return self
        return replace(self, step=evaluated(self.step, "step", Moment(rounds=rounds, objectives=objectives)))

    def init(self, size: int) -> WeightingState:
        return {"weights": np.full(size, 1.0 / size)}

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        if isinstance(self.step, Rule):
            raise BadInput("The step of 'pgd' is a rule, which needs a run: use Pgd.during(objectives, rounds).")
        weights = pgd(gram, state["weights"], steps=self.steps, step=self.step, normalise=self.normalise)
        return weights, {"weights": weights}
