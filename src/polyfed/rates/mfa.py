"""Step sizes of MFA's theorems (Bhuyan, Moharir, Joshi 2022): beta / (t + gamma), with what they ask of the two."""

from __future__ import annotations

from typing import ClassVar, Literal

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings
from polyfed.rates import Moment, Rule, rules


def _checked(name: str, beta: float, gamma: float, mu: float, L: float, least: float, formula: str) -> None:
    if mu > L:
        raise BadInput(f"The rule {name!r} needs L of at least mu. Found {L:g} and {mu:g}.")
    if not beta > 1 / mu:
        raise BadInput(f"The rule {name!r} needs beta > 1 / mu, {1 / mu:g}. Found {beta:g}.")
    if not gamma > least:
        raise BadInput(f"The rule {name!r} needs gamma > {formula}, {least:g}. Found {gamma:g}.")


@rules("mfa-theorem-1")
@settings
class MFATheorem1(Rule):
    """MFA-Rand: eta_t = beta / (t + gamma), with beta > 1 / mu and gamma > 4 L beta - 1.

    Args:
        L: the gradients' Lipschitz constant.
        mu: the constant of strong convexity.
        beta: 2 / mu if not given.
        gamma: 4 L beta if not given.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["mfa-theorem-1"] = "mfa-theorem-1"
    L: Positive
    mu: Positive
    beta: Positive | None = None
    gamma: Positive | None = None

    def _both(self) -> tuple[float, float]:
        beta = self.beta or 2 / self.mu
        return beta, self.gamma or 4 * self.L * beta

    def lr(self, at: Moment) -> float:
        beta, gamma = self._both()
        return beta / (at.t + gamma)

    def check(self, setting: str, at: Moment) -> None:
        beta, gamma = self._both()
        _checked("mfa-theorem-1", beta, gamma, self.mu, self.L, 4 * self.L * beta - 1, "4 L beta - 1")


@rules("mfa-theorem-2")
@settings
class MFATheorem2(Rule):
    """MFA-RR: eta_t = beta / (1 + floor((t - 1) / M) + gamma), one rate a frame, beta > 1 / mu, gamma > L beta - 1.

    Args:
        L: the gradients' Lipschitz constant.
        mu: the constant of strong convexity.
        beta: 2 / mu if not given.
        gamma: L beta if not given.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["mfa-theorem-2"] = "mfa-theorem-2"
    L: Positive
    mu: Positive
    beta: Positive | None = None
    gamma: Positive | None = None

    def _both(self) -> tuple[float, float]:
        beta = self.beta or 2 / self.mu
        return beta, self.gamma or self.L * beta

    def lr(self, at: Moment) -> float:
        beta, gamma = self._both()
        return beta / (1 + (at.t - 1) // at.frame + gamma)

    def check(self, setting: str, at: Moment) -> None:
        beta, gamma = self._both()
        _checked("mfa-theorem-2", beta, gamma, self.mu, self.L, self.L * beta - 1, "L beta - 1")
        if at.batch == "some":
            raise BadInput(
                "The rule 'mfa-theorem-2' needs full batches, or some that grow: batch_size = 0, or a table."
            )
