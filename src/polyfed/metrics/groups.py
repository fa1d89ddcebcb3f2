"""Gaps between groups of examples, which a column of the data names: who is taken for class 1, and how rightly."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.metric import SplitMetric, Statistics
from polyfed.metrics.scores import predicted, tally


def demographic_parity_gap(column: str, groups: int = 2, *, threshold: float = 0.0) -> SplitMetric:
    """The largest difference between two groups' shares of examples that are taken for class 1.

    Args:
        column: of the data, with each example's group, 0 to groups - 1, or -1 for none.
        groups: how many there are.
        threshold: the logit above which an example is taken for class 1.
    """
    return _by_group(column, groups, threshold, _parity, {})


def equalised_odds_gap(column: str, groups: int = 2, *, threshold: float = 0.0) -> SplitMetric:
    """The larger of two gaps between groups: of their true positive rates, and of their false positive rates.

    Args:
        column: of the data, with each example's group, 0 to groups - 1, or -1 for none.
        groups: how many there are.
        threshold: the logit above which an example is taken for class 1.
    """
    return _by_group(column, groups, threshold, _odds, {"target": 2})


def _by_group(column: str, groups: int, threshold: float, compute: object, classes: dict[str, int]) -> SplitMetric:
    if not isinstance(column, str):
        raise BadInput(f"A gap between groups needs the name of the column that has them. Found {column!r}.")
    if type(groups) is not int or groups < 2:
        raise BadInput(f"A gap needs 2 groups or more. Found groups={groups!r}.")
    update = partial(_counts, groups=groups, threshold=threshold)
    assert callable(compute)
    classes = {**classes, column: groups}
    return SplitMetric(update, compute, (groups, 2, 2), "lower", counts=True, takes=(column,), times=1, classes=classes)


def _counts(output: Tensor, target: Tensor, mask: Tensor, group: Tensor, *, groups: int, threshold: float) -> Tensor:
    """Examples by group, label and prediction (groups, 2, 2)."""
    of = group.reshape(len(mask))
    known = (of >= 0) & (of < groups)
    label = (target.reshape(len(mask)) > 0.5).long()
    place = (torch.where(known, of, 0).long() * 2 + label) * 2 + predicted(output, mask, 2, threshold)
    return tally(place, mask.long() * known, groups * 4).reshape(groups, 2, 2)


def _parity(counts: Statistics) -> float:
    return _gap(counts.sum(1)[:, None])


def _odds(counts: Statistics) -> float:
    return _gap(counts)


def _gap(counts: NDArray[np.float64]) -> float:
    """Of counts (groups, kinds, 2), the largest difference of shares within a kind, groups without examples apart."""
    there = counts.sum(2)
    gaps = [np.ptp((counts[:, k, 1] / there[:, k])[there[:, k] > 0]) for k in range(counts.shape[1])
            if (there[:, k] > 0).sum() > 1]  # fmt: skip
    return float(max(gaps)) if gaps else float("nan")
