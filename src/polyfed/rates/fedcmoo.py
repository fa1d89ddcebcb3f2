"""Step sizes of FedCMOO's theorem (Askin et al. 2025)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings
from polyfed.rates import Moment, Rule, rules


@rules("fedcmoo-corollary-1.1")
@settings
class FedCMOOCorollary11(Rule):
    """eta_c = 1 / (L tau sqrt(tau T)), eta_s = sqrt(tau), and FindWeights' beta = 1 / (M sqrt(T)).

    Theorem 1 asks for eta_c of at most 1 / (2 L tau), so for tau T of at least 4. FindWeights is raw PGD, one step a
    round: `weighting = { name = "pgd", normalise = false, steps = 1, step = { rule = "fedcmoo-corollary-1.1" } }`.

    Args:
        L: the gradients' Lipschitz constant; only lr depends on it.
    """

    constant: ClassVar[bool] = True
    rule: Literal["fedcmoo-corollary-1.1"] = "fedcmoo-corollary-1.1"
    L: Positive = 1.0

    def lr(self, at: Moment) -> float:
        return 1 / (self.L * at.steps * math.sqrt(at.steps * at.rounds))

    def server_lr(self, at: Moment) -> float:
        return math.sqrt(at.steps)

    def step(self, at: Moment) -> float:
        return 1 / (at.objectives * math.sqrt(at.rounds))

    def check(self, setting: str, at: Moment) -> None:
        if setting == "lr" and at.steps * at.rounds < 4:
            raise BadInput(
                "The rule 'fedcmoo-corollary-1.1' needs local_steps times rounds of at least 4. "
                f"Found {at.steps * at.rounds:g}."
            )
