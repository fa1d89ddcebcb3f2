"""Schedules that everybody knows: cosine with a warm-up, and reduction on a plateau."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.settings import Count, NotNegative, Positive, settings
from polyfed.rates import Moment, Rule, rules

Share = Annotated[float, Field(gt=0, lt=1)]


@rules("cosine")
@settings
class Cosine(Rule):
    """From start to end along half a cosine over the run's rounds, after a linear warm-up.

    Args:
        start: the largest value, after the warm-up.
        end: what it comes down to: the value of the round after the last.
        warm_up: rounds in which the value grows from start / warm_up to start.
    """

    theorem: ClassVar[bool] = False
    rule: Literal["cosine"] = "cosine"
    start: Positive
    end: NotNegative = 0.0
    warm_up: Count = 0

    def lr(self, at: Moment) -> float:
        if at.t <= self.warm_up:
            return self.start * at.t / self.warm_up
        left = max(at.rounds - self.warm_up, 1)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * (at.t - self.warm_up - 1) / left)) / 2

    server_lr = lr

    def check(self, setting: str, at: Moment) -> None:
        if self.warm_up >= at.rounds:
            raise BadInput(
                f"algorithm.{setting}.warm_up should be fewer than the {at.rounds} rounds. Found {self.warm_up}."
            )


@rules("plateau")
@settings
class Plateau(Rule):
    """Times `factor` whenever the training loss, the mean over the objectives, has not fallen for some rounds.

    What it remembers (the best loss, the rounds since, the factor so far) is in the checkpoint.

    Args:
        start: the value at the beginning.
        factor: by which it is reduced.
        patience: rounds without a new best before it is.
        threshold: a loss counts as a new best if it is below this part less than the best one.
        least: it is never reduced below.
    """

    theorem: ClassVar[bool] = False
    horizon: ClassVar[bool] = False
    rule: Literal["plateau"] = "plateau"
    start: Positive
    factor: Share = 0.5
    patience: Annotated[int, Field(ge=1)] = 10
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1e-4
    least: NotNegative = 0.0

    def lr(self, at: Moment) -> float:
        return max(self.start * float(at.kept.get("scale", 1.0)), self.least or 0.0)

    server_lr = lr

    def remembered(self, kept: Mapping[str, Any], logged: Mapping[str, Any]) -> dict[str, Any]:
        if "train" not in logged:
            raise BadInput("The rule 'plateau' needs a method that logs its training loss; choose another schedule.")
        values = torch.as_tensor(logged["train"], dtype=torch.float64)
        loss = values[values.isfinite()].mean()  # an objective that nobody answered for has none
        best, bad = kept.get("best", torch.tensor(math.inf)), int(kept.get("bad", 0))
        scale = kept.get("scale", torch.tensor(1.0, dtype=torch.float64))
        if loss < best * (1 - self.threshold):
            return {"best": loss, "bad": torch.tensor(0), "scale": scale}
        bad += 1
        if bad >= self.patience:
            bad, scale = 0, scale * self.factor
        return {"best": best, "bad": torch.tensor(bad), "scale": scale}
