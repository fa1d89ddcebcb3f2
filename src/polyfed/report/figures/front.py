"""The trade-off between objectives: where runs ended, and which of them no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from polyfed.report.cast import Role, cast
from polyfed.report.figure import Axis, Figure, Series, numbers
from polyfed.report.figures.profiles import parallel
from polyfed.report.last import Ends, efficient, ends
from polyfed.report.records import Record
from polyfed.report.settings import what_it_is

JOINED = "not dominated"
Point = tuple[Role, str, str]  # a method, what is said of its point, and its run where that is one
# settings that tell the points of a front from each other: where each is to go, and from where
PLACE = ("algorithm.preference", "algorithm.weights", "algorithm.min_weight", "model.weights", "rounds")


def front(records: Sequence[Record], metric: str = "loss", at: float = np.inf) -> Figure | None:
    """Where runs ended: 2 objectives as points, 3 as three projections, more as parallel coordinates.

    Args:
        records: the runs.
        metric: what is drawn of each objective.
        at: the last round that counts: a front as it was.
    """
    every = ends(records, metric, at)
    if every is None or len(every.records) < 2 or len(every.objectives) < 2:
        return None
    if len(every.objectives) > 3:
        return parallel(records, metric, at)
    groups = seeds_of(cast(every.records))
    found = means_of(every, groups)
    pairs = list(combinations(range(len(found.objectives)), 2))
    best = efficient(found.costs)
    roles = by_method([group[0][1] for group in groups])
    sizes = [len(group) for group in groups]
    labels = [label_of(role, found, i, bool(best[i]), sizes[i]) for i, role in enumerate(roles)]
    ids = [role.record.name if n == 1 else "" for role, n in zip(roles, sizes, strict=True)]
    points = list(zip(roles, labels, ids, strict=True))
    series = [one for pair in pairs for one in _pair(found, points, best, pair, len(pairs) > 1)]
    series += [one for pair in pairs for one in _single(every, groups, roles, pair, len(pairs) > 1)]
    panels = tuple(_panel(found, pair) for pair in pairs) if len(pairs) > 1 else ()
    axes = {pair: tuple(_axis(found, k) for k in pair) for pair in pairs}
    when = "" if not np.isfinite(at) else f" after round {at:g}"
    repeated = len(every.records) > len(roles)
    what = f"{len(roles)} methods, each the mean of its seeds" if repeated else f"{len(roles)} runs"
    about = f"The {metric} of {' against that of '.join(found.objectives)} for {what}{when}; " + (
        f"{int(best.sum())} of them {'is' if best.sum() == 1 else 'are'} not dominated by another."
    )
    how = f"Dominated: another is at least as good in every objective and better in one. {_toward(found)}"
    x, y = axes[pairs[0]]
    return Figure(
        "front", "Trade-off between the objectives", about, "points", y, {x.key: x}, tuple(series), panels=panels,
        notes=(how, *(["Faint points are single seeds."] if repeated else [])),
        wide=len(pairs) > 1, panel_axes={_panel(found, pair): (a[0], a[1]) for pair, a in axes.items() if panels},
    )  # fmt: skip


def _pair(found: Ends, points: Sequence[Point], best: np.ndarray[tuple[int], np.dtype[np.bool_]], pair: tuple[int, ...],
          named: bool) -> list[Series]:  # fmt: skip
    """The runs in two of the objectives, a series a method; with two objectives in all, the front as a line."""
    panel = _panel(found, pair) if named else ""
    key = _axis(found, pair[0]).key
    across, up = found.values[:, pair[0]], found.values[:, pair[1]]
    series = []
    if not named and best.sum() > 1:
        order = np.flatnonzero(best)[np.argsort(across[best], kind="stable")]
        series.append(Series(JOINED, up[order], {key: across[order]}, colour=6, faint=True))
    for name in dict.fromkeys(role.name for role, _, _ in points):
        mine = [i for i, (role, _, _) in enumerate(points) if role.name == name]
        words, ids = tuple(points[i][1] for i in mine), tuple(points[i][2] for i in mine)
        x = {key: numbers(across[mine])}
        look = points[mine[0]][0].look
        series.append(Series(name, up[mine], x, panel=panel, mode="points", labels=words, ids=ids, **look))
    return series


def seeds_of(roles: Sequence[Role]) -> list[list[tuple[int, Role]]]:
    """Runs that differ in their seeds alone, each with its place."""
    groups: dict[str, list[tuple[int, Role]]] = {}
    for i, role in enumerate(roles):
        groups.setdefault(role.name, []).append((i, role))
    return list(groups.values())


def means_of(every: Ends, groups: Sequence[Sequence[tuple[int, Role]]]) -> Ends:
    """A row for each method: the mean over its seeds."""
    values = np.stack([every.values[[i for i, _ in group]].mean(0) for group in groups])
    return replace(every, records=tuple(group[0][1].record for group in groups), values=values)


def _single(
    every: Ends, groups: Sequence[Sequence[tuple[int, Role]]], roles: Sequence[Role], pair: tuple[int, ...], named: bool
) -> list[Series]:
    """Each seed by itself, where a method has several."""
    key, panel = _axis(every, pair[0]).key, _panel(every, pair) if named else ""
    series = []
    for group, role in zip(groups, roles, strict=True):
        mine = [i for i, _ in group] if len(group) > 1 else []
        if mine:
            x, up = {key: numbers(every.values[mine, pair[0]])}, every.values[mine, pair[1]]
            ids = tuple(one.record.name for _, one in group)
            look = role.look
            series.append(Series(role.name, up, x, panel=panel, mode="points", faint=True, labels=ids, ids=ids, **look))
    return series


def by_method(roles: Sequence[Role]) -> list[Role]:
    """Runs that differ in their preference alone are points of one method, and one series."""
    groups: dict[str, list[Role]] = {}
    for role in roles:
        inner = {k: v for k, v in what_it_is(role.record).items() if not k.startswith(PLACE)}
        groups.setdefault(repr(sorted(inner.items(), key=str)), []).append(role)
    names = [group[0].name if len(group) == 1 else group[0].record.algorithm for group in groups.values()]
    if len({*names}) < len(names):  # two settings of one method: their runs say which
        return list(roles)
    of = {
        id(role): (name, i)
        for i, (name, group) in enumerate(zip(names, groups.values(), strict=True))
        for role in group
    }
    return [Role(role.record, *of[id(role)]) for role in roles]


def label_of(role: Role, found: Ends, i: int, best: bool, seeds: int) -> str:
    values = ", ".join(f"{o} {v:.4g}" for o, v in zip(found.objectives, found.values[i], strict=True))
    who = role.record.name if seeds == 1 else f"{role.name}, mean of {seeds} seeds"
    return f"{who}: {values}{'' if best else ', dominated'}"


def _panel(found: Ends, pair: tuple[int, ...]) -> str:
    return f"{found.objectives[pair[1]]} against {found.objectives[pair[0]]}"


def _axis(found: Ends, k: int) -> Axis:
    name = found.objectives[k]
    return Axis(name, f"{found.metric.replace('_', ' ')} of {name}", better=found.better)


def _toward(found: Ends) -> str:
    return f"Better is {'up and right' if found.better == 'higher' else 'down and left'}."
