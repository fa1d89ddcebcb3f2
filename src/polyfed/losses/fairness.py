"""Differentiable gaps between groups of examples: what a fair classifier keeps small beside its own loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.metric import SplitMetric, Statistics
from polyfed.core.problem import Objective

Output = str | int | Callable[[Any], Any] | None


def demographic_parity(name: str, group: str, *, groups: int = 2, output: Output = None) -> Objective:
    """The squared difference of the groups' mean scores sigmoid(logit), averaged over all pairs of groups.

    In training it is that of the batch. Reported is that of the whole split, from every group's sum of scores.

    Args:
        name: the objective's.
        group: the column of the data that has each example's group, 0 to groups - 1, or -1 for none.
        groups: how many there are.
        output: what it sees of the module's output, one logit an example; as in `Objective`.
    """
    _check(name, group, groups)
    loss = partial(_parity, groups=groups)
    update = partial(_scores, groups=groups, kinds=1)
    report = SplitMetric(update, _mean_gap, (groups, 1, 2), "lower", takes=(group,), classes={group: groups})
    return Objective(name, loss, {"loss": report}, output=output, per="batch", takes=("output", "mask", group))


def equalised_odds(name: str, group: str, *, groups: int = 2, output: Output = None) -> Objective:
    """The same differences among examples of label 1 and among those of label 0, averaged.

    The targets, 0 or 1, are those of this objective's name, or those that serve every objective.

    Args:
        name: the objective's.
        group: the column of the data that has each example's group, 0 to groups - 1, or -1 for none.
        groups: how many there are.
        output: what it sees of the module's output, one logit an example; as in `Objective`.
    """
    _check(name, group, groups)
    loss = partial(_odds, groups=groups)
    update = partial(_scores, groups=groups, kinds=2)
    known = {group: groups, "target": 2}
    report = SplitMetric(update, _mean_gap, (groups, 2, 2), "lower", takes=(group,), classes=known)
    takes = ("output", "target", "mask", group)
    return Objective(name, loss, {"loss": report}, output=output, per="batch", takes=takes)


def _check(name: str, group: str, groups: int) -> None:
    if not isinstance(group, str):
        raise BadInput(f"Objective {shown(name)}: group should be the name of a column. Found {shown(group)}.")
    if type(groups) is not int or groups < 2:
        raise BadInput(f"Objective {shown(name)}: groups should be 2 or more. Found {shown(groups)}.")


def _parity(output: Tensor, mask: Tensor, group: Tensor, *, groups: int) -> Tensor:
    return _gap(_scores(output, None, mask, group, groups=groups, kinds=1))


def _odds(output: Tensor, target: Tensor, mask: Tensor, group: Tensor, *, groups: int) -> Tensor:
    return _gap(_scores(output, target, mask, group, groups=groups, kinds=2))


def _scores(output: Tensor, target: Tensor | None, mask: Tensor, group: Tensor, *, groups: int, kinds: int) -> Tensor:
    """For each group and label: the sum of its scores, and how many examples it has (groups, kinds, 2)."""
    score, of = output.reshape(len(mask)).sigmoid(), group.reshape(len(mask))
    label = torch.zeros_like(of) if kinds == 1 or target is None else (target.reshape(len(mask)) > 0.5).to(of.dtype)
    rows = [mask * ((of == g) & (label == k)) for g in range(groups) for k in range(kinds)]
    table = torch.stack(rows)
    return torch.stack([table @ score, table.sum(1)], 1).reshape(groups, kinds, 2)


def _gap(table: Tensor) -> Tensor:
    """The mean of the squared differences of means; a pair of which one has no examples is no difference."""
    means = table[..., 0] / table[..., 1].clamp(min=1)
    there = (table[..., 1] > 0).to(means.dtype)
    pairs = list(combinations(range(len(means)), 2))
    gaps = torch.stack([(means[a] - means[b]).square() * there[a] * there[b] for a, b in pairs])
    return gaps.mean()


def _mean_gap(statistics: Statistics) -> float:
    if not np.isfinite(statistics).all() or (statistics[..., 1].min(0) == 0).all():
        return float("nan")
    return float(_gap(torch.from_numpy(np.ascontiguousarray(statistics))))
