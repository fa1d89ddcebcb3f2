"""Step sizes of FedMGDA's theorems and of its experiments (Hu et al. 2022)."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.settings import Positive, settings
from polyfed.rates import Moment, Rule, rules


@rules("fedmgda-theorem-1")
@settings
class FedMGDATheorem1(Rule):
    """Theorems 1a and 1b: values that vanish, start / t^power; and a batch that grows, start t^power.

    1b: eta_t -> 0 with an infinite sum (so a power of at most 1), eta_t^l -> 0 and eps_t -> 0. 1a: eta_t with
    sum sigma_t eta_t finite; sigma_t falls like the root of the batch, so that the powers of server_lr and half of
    batch_size's have to add up to more than 1.

    Args:
        start: the value in the first round.
        power: how fast it vanishes, or the batch grows.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["fedmgda-theorem-1"] = "fedmgda-theorem-1"
    start: Positive
    power: Annotated[float, Field(gt=0, le=4)] = 0.5

    def lr(self, at: Moment) -> float:
        return float(self.start / at.t**self.power)

    def server_lr(self, at: Moment) -> float:
        return float(self.start / at.t**self.power)

    def eps(self, at: Moment) -> float:
        return float(min(self.start, 1.0) / at.t**self.power)

    def batch_size(self, at: Moment) -> float:
        return float(math.ceil(self.start * at.t**self.power))

    def check(self, setting: str, at: Moment) -> None:
        if setting == "server_lr" and self.power > 1:
            raise BadInput(
                "The rule 'fedmgda-theorem-1' needs an infinite sum of the steps: algorithm.server_lr.power of at most "
                f"1. Found {self.power:g}."
            )
        if setting == "eps" and self.start > 1:
            raise BadInput(f"algorithm.eps.start should be at most 1. Found {self.start:g}.")


def check_powers(server_lr: Any, batch_size: Any) -> None:
    """Theorem 1a's finite sum of sigma_t eta_t, where both are by its rule."""
    both = [r.power for r in (server_lr, batch_size) if isinstance(r, FedMGDATheorem1)]
    if len(both) == 2 and both[0] + both[1] / 2 <= 1:
        raise ValueError(
            "Theorem 1a needs a finite sum of sigma_t eta_t: the powers of server_lr and half of batch_size's should "
            f"add up to more than 1. Found {both[0] + both[1] / 2:g}."
        )


@rules("fedmgda-theorem-2")
@settings
class FedMGDATheorem2(Rule):
    """Theorem 2, convex with a strongly convex user: eta_t = 2 / (c (t + 2)), t from 0, for one full-batch local step.

    The theorem's step multiplies gradients: server_lr is divided by lr, unless updates are normalised.

    Args:
        c: the constant of strong convexity, times the least weight of such a user.
    """

    horizon: ClassVar[bool] = False
    rule: Literal["fedmgda-theorem-2"] = "fedmgda-theorem-2"
    c: Positive

    def server_lr(self, at: Moment) -> float:
        return at.global_lr(2 / (self.c * (at.t + 1)))  # our t is from 1

    def check(self, setting: str, at: Moment) -> None:
        if at.steps != 1 or at.batch != "full":
            found = f"{at.steps:g} steps" if at.steps != 1 else "batches of some of the rows"
            raise BadInput(f"The rule 'fedmgda-theorem-2' is about one full-batch local step a round. Found {found}.")


@rules("fedmgda-decay")
@settings
class FedMGDADecay(Rule):
    """Its experiments: start beta^floor(t / every) with beta = decay^(every / T): `decay` of the start at the end.

    Args:
        start: the value at the beginning.
        decay: what is left of it after the run; 0 for no decay, as in the paper's Table V.
        every: rounds between reductions.
    """

    theorem: ClassVar[bool] = False
    rule: Literal["fedmgda-decay"] = "fedmgda-decay"
    start: Positive
    decay: Annotated[float, Field(ge=0, le=1)]
    every: Annotated[int, Field(ge=1)] = 100

    def lr(self, at: Moment) -> float:
        if not self.decay:
            return self.start
        return float(self.start * self.decay ** (self.every / at.rounds * (at.t // self.every)))

    server_lr = lr
