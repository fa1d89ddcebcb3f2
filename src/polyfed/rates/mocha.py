"""How many rounds MOCHA's theorems ask for (Smith et al. 2017): H, and H_0 from which Theorem 2 averages.

Theta-bar = p_max + (1 - p_max) Theta_max: how often a node sends nothing, and how good its results are at least
(Assumption 2). n is the number of all examples; the data says it.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.settings import NotNegative, Positive, settings
from polyfed.rates import Moment, Rule, rules

Below1 = Annotated[float, Field(ge=0, lt=1)]


def _progress(drop: float, theta: float) -> float:
    """1 - Theta-bar."""
    return (1 - drop) * (1 - theta)


@rules("mocha-theorem-1")
@settings
class MochaTheorem1(Rule):
    """Smooth losses, equation (6): H = log(n / gap) / ((1 - Theta-bar) s) rounds, s = mu / (mu + sigma_max sigma').

    Args:
        gap: epsilon_D, the dual suboptimality to reach.
        mu: the losses are (1 / mu)-smooth.
        sigma_max: of (16), the largest eigenvalue of a task's X^T Mbar_tt X.
        sigma: sigma' of the subproblems.
        drop: p_max, how often a node sends nothing, at most.
        theta: Theta_max, how much of its subproblem's gap a node leaves, at most, on average.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["mocha-theorem-1"] = "mocha-theorem-1"
    gap: Positive
    mu: Positive
    sigma_max: Positive
    sigma: Positive = 1.0
    drop: Below1 = 0.0
    theta: Below1 = 0.0

    def rounds(self, at: Moment) -> float:
        s = self.mu / (self.mu + self.sigma_max * self.sigma)
        return max(1, math.ceil(math.log(max(at.examples / self.gap, 1.0)) / (_progress(self.drop, self.theta) * s)))


@rules("mocha-theorem-2")
@settings
class MochaTheorem2(Rule):
    """Lipschitz losses, equation (7): H rounds, of which those after H_0 are averaged (`average_from`).

    Args:
        gap: epsilon_D, the dual suboptimality to reach.
        L: the losses' Lipschitz constant; 1 for the hinge.
        scale: sigma of (24), the sum over tasks of n_t times the largest eigenvalue of its X^T Mbar_tt X.
        sigma: sigma' of the subproblems.
        start_gap: D(alpha_0) - D(alpha*), at most; with alpha_0 = 0 the number of examples if not given.
        drop: p_max, how often a node sends nothing, at most.
        theta: Theta_max, how much of its subproblem's gap a node leaves, at most, on average.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["mocha-theorem-2"] = "mocha-theorem-2"
    gap: Positive
    L: Positive = 1.0
    scale: Positive
    sigma: Positive = 1.0
    start_gap: NotNegative | None = None
    drop: Below1 = 0.0
    theta: Below1 = 0.0

    def average_from(self, at: Moment) -> float:
        """H_0."""
        per, c, n = 1 / _progress(self.drop, self.theta), self._c(), at.examples
        start = float(n) if self.start_gap is None else self.start_gap
        h_0 = max(math.ceil(1 + per * math.log(2 * n**2 * start / (4 * c))), 0) if start else 0
        return math.ceil(h_0 + 16 * c * per / (n**2 * self.gap))

    def check(self, setting: str, at: Moment) -> None:
        if setting == "average_from" and self.average_from(at) >= at.rounds:
            raise BadInput(
                f"The rule 'mocha-theorem-2' averages from round {self.average_from(at):g} on: set more rounds than "
                f"that, {self.rounds(at):g} by the theorem. Found {at.rounds}."
            )

    def rounds(self, at: Moment) -> float:
        """H."""
        per, c = 1 / _progress(self.drop, self.theta), self._c()
        return self.average_from(at) + math.ceil(2 * per * max(1.0, 2 * c / (at.examples**2 * self.gap)))

    def _c(self) -> float:
        return self.L**2 * self.scale * self.sigma
