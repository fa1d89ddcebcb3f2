"""What EarlyStopping and BestModel share: a criterion, and the best round so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from polyfed.callbacks.criterion import Combined, Criterion, Preference, Reference, Split
from polyfed.run.callbacks import Callback, RunView

if TYPE_CHECKING:
    from polyfed.run.plan import Plan


class Judging(Callback):
    """Compares the rounds that are evaluated: by one figure, by a preference, or by hypervolume.

    Args:
        objective: whose figure is looked at; left out, the mean over all objectives that have it.
        metric: which figure, 'loss' or the name of a metric.
        preference: in place of one figure, r by objective; looked at is the largest r_k F_k of the losses, or the sum.
        combined: how a preference is taken, 'max' or 'sum'.
        reference: in place of one figure, a loss by objective; looked at is the hypervolume that the losses dominate up
            to that point (extra 'front').
        split: whose figures, 'train', 'valid' or 'test', which evaluate.splits has to name; left out, those that every
            evaluation logs.
    """

    def __init__(
        self,
        *,
        objective: str = "",
        metric: str = "loss",
        preference: Preference | None = None,
        combined: Combined = "max",
        reference: Reference | None = None,
        split: Split = "",
    ) -> None:
        self.criterion = Criterion(objective, metric, preference, combined, reference, split)
        self._loaded = False
        self._forget()

    def _forget(self) -> None:
        """As before the first round."""
        self.value, self.round = math.nan, 0

    def check(self, plan: Plan) -> None:
        self.criterion.check(plan)

    def on_start(self, run: RunView) -> None:
        if not self._loaded:  # the same callback may watch one run after another
            self._forget()
        self._loaded = False

    def improves(self, run: RunView, line: Mapping[str, Any], least: float = 0.0) -> bool:
        """Whether this round is the best so far, which is then noted."""
        value = self.criterion.value(line)
        better = self.criterion.improved(value, self.value, least)
        if better:
            self.value, self.round = value, run.round
        return better

    def tree(self) -> dict[str, Any]:
        by = torch.tensor(list(self.criterion.key().encode()), dtype=torch.uint8)
        return {"value": torch.tensor(self.value, dtype=torch.float64), "round": torch.tensor(self.round), "by": by}

    def load(self, tree: Mapping[str, Any]) -> None:
        by = bytes(tree["by"].tolist()).decode() if "by" in tree else self.criterion.key()
        self._loaded = by == self.criterion.key()  # else it begins anew: other numbers cannot be compared
        if self._loaded:
            self.value, self.round = float(tree["value"]), int(tree["round"])
