"""Step sizes of MFA's theorems (Bhuyan, Moharir, Joshi 2022): beta / (t + gamma), with what they ask of the two."""

from __future__ import annotations

from typing import ClassVar, Literal

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings
from polyfed.rates import Moment, Rule, rules


@settings
class DecayingRate(Rule):
    """What the two theorems share.

    Args:
        L: the gradients' Lipschitz constant.
        mu: the constant of strong convexity.
        beta: 2 / mu if not given.
        gamma: just above its bound if not given.
    """

    horizon: ClassVar[bool] = False
    factor: ClassVar[int]  # of L beta in gamma's bound

    L: Positive
    mu: Positive
    beta: Positive | None = None
    gamma: Positive | None = None

    def both(self) -> tuple[float, float]:
        """beta and gamma."""
        beta = self.beta or 2 / self.mu
        return beta, self.gamma or self.factor * self.L * beta

    def check(self, setting: str, at: Moment) -> None:
        (beta, gamma), name = self.both(), getattr(self, "rule", "")
        least, times = self.factor * self.L * beta - 1, f"{self.factor} " * (self.factor > 1)
        if self.mu > self.L:
            raise BadInput(f"The rule {name!r} needs L of at least mu. Found {self.L:g} and {self.mu:g}.")
        if not beta > 1 / self.mu:
            raise BadInput(f"The rule {name!r} needs beta > 1 / mu, {1 / self.mu:g}. Found {beta:g}.")
        if not gamma > least:
            raise BadInput(f"The rule {name!r} needs gamma > {times}L beta - 1, {least:g}. Found {gamma:g}.")


@rules("mfa-theorem-1")
@settings
class MFATheorem1(DecayingRate):
    """MFA-Rand: eta_t = beta / (t + gamma), with beta > 1 / mu and gamma > 4 L beta - 1."""

    factor: ClassVar[int] = 4
    rule: Literal["mfa-theorem-1"] = "mfa-theorem-1"

    def lr(self, at: Moment) -> float:
        beta, gamma = self.both()
        return beta / (at.t + gamma)


@rules("mfa-theorem-2")
@settings
class MFATheorem2(DecayingRate):
    """MFA-RR: eta_t = beta / (1 + floor((t - 1) / M) + gamma), one rate a frame, beta > 1 / mu, gamma > L beta - 1."""

    factor: ClassVar[int] = 1
    rule: Literal["mfa-theorem-2"] = "mfa-theorem-2"

    def lr(self, at: Moment) -> float:
        beta, gamma = self.both()
        return beta / (1 + (at.t - 1) // at.frame + gamma)

    def check(self, setting: str, at: Moment) -> None:
        super().check(setting, at)
        if at.batch == "some":
            raise BadInput("The rule 'mfa-theorem-2' needs full batches, or growing ones: batch_size = 0, or a table.")
