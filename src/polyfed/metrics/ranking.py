"""How well scores rank examples: the areas under the ROC curve and under the precision-recall curve."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.metric import SplitMetric, Statistics
from polyfed.metrics.scores import Bins, is_class, log_odds, tally

Curve = NDArray[np.float64]


def auc(classes: int = 2, *, bins: int = 1024, scale: float = 4.0) -> SplitMetric:
    """The area under the ROC curve, of the scores of all clients pooled.

    Scores are log-odds z, and counted in bins that are equally wide in z / (scale + abs(z)): half of them lie within
    +-scale, around 0 a bin is 2 scale / bins wide (0.008), around `scale` four times that. Pairs of a positive and a
    negative example in one bin count as one half, so that the figure is off by at most half the share of such pairs;
    `bounds` in the round's line has the least and the largest value that fit the counts.

    Args:
        classes: 2 for labels 0 and 1 (one logit an example, or two); more for class numbers and as many logits: the
            mean over the classes of each against the rest.
        bins: how many there are; a reply grows by 16 bytes for each, and each class.
        scale: where half of the bins end.
    """
    return _of_scores(_area, _area_bounds, classes, bins, scale)


def average_precision(classes: int = 2, *, bins: int = 1024, scale: float = 4.0) -> SplitMetric:
    """The average precision, the sum over thresholds of precision times the recall gained, of all clients pooled.

    Thresholds are the bins' edges, which are those of `polyfed.metrics.auc`; `bounds` in the round's line has what
    fits the counts.

    Args:
        classes: 2 for labels 0 and 1; more for class numbers: the mean over the classes of each against the rest.
        bins: how many there are; a reply grows by 16 bytes for each, and each class.
        scale: where half of the bins end.
    """
    return _of_scores(_precision, _precision_bounds, classes, bins, scale)


def _of_scores(compute: Any, bounds: Any, classes: int, bins: int, scale: float) -> SplitMetric:
    check_classes(classes)
    update = partial(_histograms, classes=classes, bins=Bins(bins, scale))
    shape = (1 if classes == 2 else classes, 2, bins)
    return SplitMetric(update, compute, shape, "higher", counts=True, bounds=bounds, times=shape[0],
                       classes={"target": classes})  # fmt: skip


def check_classes(classes: int) -> None:
    """Refuse what is no number of classes."""
    if type(classes) is not int or classes < 2:
        raise BadInput(f"A metric of classes needs 2 or more of them. Found classes={classes!r}.")


def _histograms(output: Tensor, target: Tensor, mask: Tensor, *, classes: int, bins: Bins) -> Tensor:
    """For each class, the scores of the examples that are not of it and of those that are (classes, 2, bins)."""
    z, y = log_odds(output, mask, classes), is_class(target, mask, classes)
    kinds = z.shape[1]
    first = 2 * torch.arange(kinds, device=z.device) + y.long()
    weight = mask.long().unsqueeze(1).expand(-1, kinds)
    return tally(first * bins.number + bins.place(z), weight, kinds * 2 * bins.number).reshape(kinds, 2, bins.number)


def _area(h: Statistics) -> float:
    no, yes = h[:, 0], h[:, 1]
    below = no.cumsum(1) - no / 2
    return _mean((yes * below).sum(1) / (no.sum(1) * yes.sum(1)))


def _area_bounds(h: Statistics) -> tuple[float, float]:
    no, yes = h[:, 0], h[:, 1]
    value, half = _area(h), _mean((yes * no).sum(1) / (no.sum(1) * yes.sum(1))) / 2
    return _around(value, value - half, value + half)


def _precision(h: Statistics) -> float:
    """Of each bin, the precision at its lower edge."""
    no, yes = _from_the_top(h)
    right, wrong = yes.cumsum(1), no.cumsum(1)
    return _mean(_shares(yes * right / np.maximum(right + wrong, 1), yes))


def _precision_bounds(h: Statistics) -> tuple[float, float]:
    """A bin's examples in the worst order, negatives first; in the best, or tied above all of its negatives."""
    no, yes = _from_the_top(h)
    right, wrong = yes.cumsum(1), no.cumsum(1)
    # sum_i (a + i) / (a + i + w) for i = 1..p is p - w [psi(a + w + p + 1) - psi(a + w + 1)]
    worst = yes - wrong * (_psi(right + wrong + 1) - _psi(right - yes + wrong + 1))
    best = yes * right / np.maximum(right + wrong - no, 1)
    return _around(_precision(h), _mean(_shares(worst, yes)), _mean(_shares(best, yes)))


def _around(value: float, low: float, high: float) -> tuple[float, float]:
    """Bounds as areas have them, within 0 and 1 and around the value, whatever has been rounded."""
    return min(value, max(low, 0.0)), max(value, min(high, 1.0))


def _psi(values: Curve) -> Curve:
    """The digamma function."""
    return np.asarray(torch.special.digamma(torch.from_numpy(values)).numpy())


def _from_the_top(h: Statistics) -> tuple[Curve, Curve]:
    return h[:, 0, ::-1], h[:, 1, ::-1]


def _shares(gained: Curve, yes: Curve) -> Curve:
    return np.asarray(gained.sum(1) / yes.sum(1))


def _mean(values: Curve) -> float:
    """Over the classes for which there is a value; NaN where there are none."""
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else float("nan")
