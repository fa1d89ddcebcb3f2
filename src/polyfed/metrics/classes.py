"""Figures of predicted classes: F1 and balanced accuracy, from counts for each class."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyfed.core.metric import SplitMetric, Statistics
from polyfed.metrics.ranking import check_classes
from polyfed.metrics.scores import predicted


def f1(classes: int = 2, *, threshold: float = 0.0) -> SplitMetric:
    """F1, the harmonic mean of precision and recall: of class 1, or the mean over the classes (macro).

    Classes that are neither labels nor predictions do not count; without any it is NaN.

    Args:
        classes: 2 for labels 0 and 1 (one logit an example, or two); more for class numbers and as many logits.
        threshold: of two classes, the logit above which an example is taken for class 1.
    """
    check_classes(classes)
    update = partial(_counts, classes=classes, threshold=threshold)
    return SplitMetric(update, _f1, (classes, 3), "higher", counts=True, times=3, classes={"target": classes})


def balanced_accuracy(classes: int = 2, *, threshold: float = 0.0) -> SplitMetric:
    """The mean over the classes of the share of their examples that are recognised, classes without examples apart.

    Args:
        classes: 2 for labels 0 and 1 (one logit an example, or two); more for class numbers and as many logits.
        threshold: of two classes, the logit above which an example is taken for class 1.
    """
    check_classes(classes)
    update = partial(_counts, classes=classes, threshold=threshold)
    return SplitMetric(update, _mean_recall, (classes, 3), "higher", counts=True, times=3, classes={"target": classes})


def _counts(output: Tensor, target: Tensor, mask: Tensor, *, classes: int, threshold: float) -> Tensor:
    """For each class: examples of it that are recognised, that are taken for it, and that are of it."""
    each = torch.arange(classes, device=mask.device)
    taken = predicted(output, mask, classes, threshold).unsqueeze(1) == each
    there = target.reshape(len(mask), 1).long() == each
    rows = mask.long().unsqueeze(1)
    return torch.stack([(rows * kind).sum(0) for kind in (taken & there, taken, there)], 1)


def _f1(counts: Statistics) -> float:
    right, taken, there = (counts[1:] if len(counts) == 2 else counts).T
    seen = taken + there > 0
    return float((2 * right[seen] / (taken + there)[seen]).mean()) if seen.any() else float("nan")


def _mean_recall(counts: Statistics) -> float:
    right, _, there = counts.T
    return float(np.mean(right[there > 0] / there[there > 0])) if there.any() else float("nan")
