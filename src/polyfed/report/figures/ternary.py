"""Three objectives in a triangle: which of them a run favours, and how good it is over all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyfed.report.cast import cast
from polyfed.report.figure import Axis, Figure, Numbers, Series
from polyfed.report.figures.front import by_method, label_of, means_of, seeds_of
from polyfed.report.last import efficient, ends
from polyfed.report.records import Record

FEWEST = 4  # points that make a picture


def ternary(records: Sequence[Record], metric: str = "loss", at: float = np.inf) -> Figure | None:
    """Where runs stand between three objectives; None for other numbers of them, and for few runs.

    Args:
        records: the runs.
        metric: what is drawn of each objective.
        at: the last round that counts.
    """
    every = ends(records, metric, at)
    if every is None or len(every.objectives) != 3:
        return None
    groups = seeds_of(cast(every.records))
    found = means_of(every, groups)
    if len(groups) < FEWEST:
        return None
    roles, best = by_method([group[0][1] for group in groups]), efficient(found.costs)
    shares, good = favoured(found.costs)
    series = []
    for name in dict.fromkeys(role.name for role in roles):
        mine = [i for i, role in enumerate(roles) if role.name == name]
        x = {key: shares[mine, k] for k, key in enumerate("abc")}
        words = tuple(label_of(roles[i], found, i, bool(best[i]), len(groups[i])) for i in mine)
        ids = tuple(roles[i].record.name if len(groups[i]) == 1 else "" for i in mine)
        look = roles[mine[0]].look
        series.append(Series(name, good[mine], x, mode="points", labels=words, ids=ids, **look))
    axes = {key: Axis(key, name) for key, name in zip("abc", found.objectives, strict=True)}
    about = f"Each of {len(roles)} points is near the corners of the objectives that it is good at, of three."
    note = (
        f"An objective's {metric.replace('_', ' ')} counts from 0, the worst of the points, to 1, the best: a point's "
        "place is the shares of the three, its colour their mean."
    )
    return Figure(
        "ternary", "Which objective each point favours", about, "ternary", Axis("mean", "mean of the three"), axes,
        tuple(series), found.objectives, notes=(note,),
    )  # fmt: skip


def favoured(costs: Numbers) -> tuple[Numbers, Numbers]:
    """The shares of three objectives in what is good about each point, and how good it is over all, from 0 to 1."""
    low, high = costs.min(0), costs.max(0)
    good = np.where(high > low, (high - costs) / np.where(high > low, high - low, 1.0), 1.0)
    total = good.sum(1, keepdims=True)
    return np.where(total > 0, good / np.where(total > 0, total, 1.0), 1 / 3), good.mean(1)
