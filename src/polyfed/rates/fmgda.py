"""Step sizes of the theorems of FMGDA and FSMGDA (Yang et al. 2023).

Their eta multiplies a mean of gradients; our server_lr multiplies updates, K eta_L times as long, so that it is
eta / (K eta_L). What stands in an O(.) has a constant of its own here, 1 unless given.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings
from polyfed.rates import Moment, Rule, rules


def full_batches(name: str, at: Moment) -> None:
    """FMGDA's theorems are about full gradients."""
    if at.batch != "full":
        raise BadInput(f"The rule {name!r} is about full batches: set batch_size = 0, or take one of fsmgda's.")


def largest(L: float) -> float:
    """3 / (2 (1 + L)), the largest eta of Theorems 1, 3 and 5."""
    return 3 / (2 * (1 + L))


@rules("fmgda-corollary-2")
@settings
class FMGDACorollary2(Rule):
    """Theorem 1 and Corollary 2, non-convex: eta = 3 / (2 (1 + L)) and eta_L = local / sqrt(T), for O(1 / T).

    Args:
        L: the gradients' Lipschitz constant.
        local: the constant of eta_L.
    """

    constant: ClassVar[bool] = True
    rule: Literal["fmgda-corollary-2"] = "fmgda-corollary-2"
    L: Positive
    local: Positive = 1.0

    def lr(self, at: Moment) -> float:
        return self.local / math.sqrt(at.rounds)

    def server_lr(self, at: Moment) -> float:
        return at.global_lr(largest(self.L))

    def check(self, setting: str, at: Moment) -> None:
        full_batches("fmgda-corollary-2", at)


@rules("fmgda-corollary-4")
@settings
class FMGDACorollary4(Rule):
    """Theorem 3 and Corollary 4, strongly convex: eta = min(3 / (2 (1 + L)), 1 / (2 L + mu)), at least 1 / (mu T).

    eta_L is so small that delta = (8 S^2 / mu + 2) eta_L^2 K^2 L^2 G^2 is mu exp(-mu T), for a linear rate; yet not
    below 1e-4 / (K max(L, G)), where float32 would see no step.

    Args:
        L: the gradients' Lipschitz constant.
        mu: the constant of strong convexity.
        G: the bound of the gradients' lengths.
    """

    constant: ClassVar[bool] = True
    rule: Literal["fmgda-corollary-4"] = "fmgda-corollary-4"
    L: Positive
    mu: Positive
    G: Positive = 1.0

    def lr(self, at: Moment) -> float:
        noise = (8 * at.objectives**2 / self.mu + 2) * (at.steps * self.L * self.G) ** 2
        asked = math.sqrt(self.mu / noise) * math.exp(-self.mu * at.rounds / 2)
        return max(asked, 1e-4 / (at.steps * max(self.L, self.G)))

    def server_lr(self, at: Moment) -> float:
        return at.global_lr(self._eta())

    def _eta(self) -> float:
        return min(largest(self.L), 1 / (2 * self.L + self.mu))

    def check(self, setting: str, at: Moment) -> None:
        full_batches("fmgda-corollary-4", at)
        if self.mu > self.L:
            raise BadInput(f"The rule 'fmgda-corollary-4' needs L of at least mu. Found {self.L:g} and {self.mu:g}.")
        if self._eta() < 1 / (self.mu * at.rounds):
            need = math.ceil(1 / (self.mu * self._eta()))
            raise BadInput(
                f"The rule 'fmgda-corollary-4' needs eta = {self._eta():.3g} of at least 1 / (mu T): "
                f"rounds of at least {need}. Found {at.rounds}."
            )


@rules("fsmgda-corollary-6")
@settings
class FSMGDACorollary6(Rule):
    """Theorem 5 and Corollary 6, non-convex: eta = scale / sqrt(T), eta_L = local / T^(1/4), for O(1 / sqrt(T)).

    Its beta = O(eta), the variance of a stochastic gradient, is a batch of rows * sqrt(T).

    Args:
        L: the gradients' Lipschitz constant.
        scale: the constant of eta, which is at most 3 / (2 (1 + L)).
        local: the constant of eta_L.
        rows: the constant of the batch.
    """

    constant: ClassVar[bool] = True
    rule: Literal["fsmgda-corollary-6"] = "fsmgda-corollary-6"
    L: Positive
    scale: Positive = 1.0
    local: Positive = 1.0
    rows: Positive = 1.0

    def lr(self, at: Moment) -> float:
        return float(self.local / at.rounds**0.25)

    def server_lr(self, at: Moment) -> float:
        return at.global_lr(min(self.scale / math.sqrt(at.rounds), largest(self.L)))

    def batch_size(self, at: Moment) -> float:
        return math.ceil(self.rows * math.sqrt(at.rounds))


@rules("fsmgda-corollary-8")
@settings
class FSMGDACorollary8(Rule):
    """Theorem 7 and Corollary 8, strongly convex: eta = scale log(max(1, mu^2 T)) / (mu T), eta_L = local / sqrt(T).

    For O(1 / T) up to logarithms. Its beta = O(eta) is a batch of rows / eta. The scale has to be 2 at least: with 1
    the first term of the proof's (88), exp(-mu eta T / 2), falls like 1 / sqrt(T) only.

    Args:
        mu: the constant of strong convexity.
        scale: the constant of eta.
        local: the constant of eta_L.
        rows: the constant of the batch.
    """

    constant: ClassVar[bool] = True
    rule: Literal["fsmgda-corollary-8"] = "fsmgda-corollary-8"
    mu: Positive
    scale: Positive = 2.0
    local: Positive = 1.0
    rows: Positive = 1.0

    def lr(self, at: Moment) -> float:
        return self.local / math.sqrt(at.rounds)

    def server_lr(self, at: Moment) -> float:
        return at.global_lr(self._eta(at))

    def batch_size(self, at: Moment) -> float:
        return math.ceil(self.rows / self._eta(at))

    def _eta(self, at: Moment) -> float:
        return self.scale * math.log(max(1.0, self.mu**2 * at.rounds)) / (self.mu * at.rounds)

    def check(self, setting: str, at: Moment) -> None:
        if self.mu * self._eta(at) >= 2:
            raise BadInput(
                "The rule 'fsmgda-corollary-8' needs eta below 2 / mu, or its weights w_t are none: more rounds than "
                f"{at.rounds}, or a smaller scale than {self.scale:g}."
            )
        if setting != "lr" and self._eta(at) < 1 / (self.mu * at.rounds):
            need = math.ceil(math.exp(1 / self.scale) / self.mu**2)
            raise BadInput(
                "The rule 'fsmgda-corollary-8' needs eta of at least 1 / (mu T), so rounds of at least "
                f"{need}. Found {at.rounds}."
            )
