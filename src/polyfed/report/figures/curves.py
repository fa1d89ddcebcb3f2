"""Curves over rounds: of one run by objective, of several by run with a panel an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfed.report.cast import Role, cast, look
from polyfed.report.clocks import CLOCKS, clock_axes, clocks
from polyfed.report.columns import Columns, Curve
from polyfed.report.figure import PALETTE, Axis, Figure, Numbers, Series
from polyfed.report.records import Record

FEW = len(PALETTE)  # lines that one panel can tell apart
MANY = 12  # objectives from which on a summary comes first
MEAN, WORST = "mean of all objectives", "worst objective"
Pick = Callable[[Columns, str], Curve | None]  # from an objective's name to its curve


@dataclass(frozen=True)
class Subject:
    """What curves are of.

    Args:
        key: of the figure, and of its file.
        title: above it.
        about: what one sees; the runs are named after it.
        y: the vertical axis.
        log: whether a logarithmic scale may be taken where values reach far.
        summary: of very many objectives, the panels that come first, and how they make one curve of all.
    """

    key: str
    title: str
    about: str
    y: Axis
    log: bool = True
    summary: tuple[tuple[str, str], ...] = ()

    @property
    def folds(self) -> dict[str, str]:
        """The panels of a summary: the mean of all objectives and the worst, unless it is told otherwise."""
        worst = "lowest" if self.y.better == "higher" else "highest"
        return dict(self.summary) or {MEAN: "mean", WORST: worst}


def below(*path: str, last: str = "") -> Pick:
    """The curves of a table's entries: `below('losses')`, or of one column of them: `below('metrics', last='auc')`."""
    return lambda columns, name: columns.curve(*path, name, *([last] if last else []))


def curves(records: Sequence[Record], subject: Subject, names: Sequence[str], pick: Pick) -> Figure | None:
    """A figure of curves; None where no run has any of them.

    Args:
        records: the runs.
        subject: what the curves are of.
        names: the objectives, models or measures that there may be a curve of.
        pick: a run's curve of one of them.
    """
    roles = cast(records)
    found = {(i, name): curve for i, r in enumerate(roles) for name in names if (curve := _some(r, name, pick))}
    names = [name for name in names if any(name == one for _, one in found)]
    if not found:
        return None
    drawn = _Drawn(roles, found, subject.folds)
    series, panels = drawn.alone(names) if len(roles) == 1 else drawn.together(names)
    y = scaled(subject.y, [one.y for one in series]) if subject.log else subject.y
    about = f"{subject.about} {_who(roles)}"
    seeds = any(one.faint for one in series)
    notes = ("Bold: the mean over seeds; thin: each seed.",) if seeds else ()
    shown = len(subject.folds) if set(subject.folds) <= set(panels) else MANY
    return Figure(
        subject.key, subject.title, about, "lines", y, clock_axes(records), tuple(series),
        panels=panels, shown=shown, notes=notes, wide=len(panels) > 1,
    )  # fmt: skip


class _Drawn:
    """Curves that were found, as series."""

    def __init__(self, roles: Sequence[Role], found: dict[tuple[int, str], Curve], folds: dict[str, str]) -> None:
        self.roles = roles
        self.found = found
        self.folds = folds
        self._clocks = [clocks(role.record) for role in roles]

    def alone(self, names: Sequence[str]) -> tuple[list[Series], tuple[str, ...]]:
        """One run: a colour an objective; a panel a model where there are several; a summary of very many."""
        models = self.roles[0].record.models
        if models and all(_model(name) in models for name in names):
            panels = tuple(dict.fromkeys(_model(name) for name in names))
            own = {panel: [name for name in names if _model(name) == panel] for panel in panels}
            single = len(panels) == 1
            every = [(n, p) for p, some in own.items() for n in some]
            made = [self.one(0, n, _inner(n), "" if single else p, i) for i, (n, p) in enumerate(every)]
            return made, () if single else panels
        if len(names) <= FEW:
            return [self.one(0, name, name, "", i) for i, name in enumerate(names)], ()
        return [*self.summary(names), *(self.one(0, n, n, n, 0) for n in names)], (*self.folds, *names)

    def together(self, names: Sequence[str]) -> tuple[list[Series], tuple[str, ...]]:
        """Several runs: a colour a method, a panel an objective; a summary of very many first."""
        if len(names) == 1:
            return self.of_methods({i: curve for (i, _), curve in self.found.items()}, ""), ()
        every = []
        for name in names:
            every += self.of_methods({i: curve for (i, one), curve in self.found.items() if one == name}, name)
        if len(names) <= MANY:
            return every, tuple(names)
        return [*self.summary(names), *every], (*self.folds, *names)

    def one(self, i: int, name: str, called: str, panel: str, place: int) -> Series:
        return self._series(i, self.found[i, name], called, panel, place)

    def of_methods(self, mine: dict[int, Curve], panel: str) -> list[Series]:
        """One panel: the run of each method; of several seeds their mean, and each of them faintly behind it."""
        series = []
        for name in dict.fromkeys(self.roles[i].name for i in mine):
            seeds = [i for i in mine if self.roles[i].name == name]
            if len(seeds) > 1 and (mean := self._mean({i: mine[i] for i in seeds}, name, panel)) is not None:
                series.append(mean)
            faint = len(seeds) > 1
            series += [self._series(i, mine[i], name, panel, self.roles[i].place, faint) for i in seeds]
        return series

    def _mean(self, seeds: dict[int, Curve], name: str, panel: str) -> Series | None:
        """The mean over seeds in the rounds that all of them have; so are bytes and seconds."""
        rows, table = together(list(seeds.values()))
        if not len(rows):
            return None
        keys = set.intersection(*(set(self._clocks[i]) for i in seeds))
        x = {key: np.mean([self._clocks[i][key][rows] for i in seeds], axis=0) for key in CLOCKS if key in keys}
        place = self.roles[next(iter(seeds))].place
        return Series(name, table.mean(0), x, panel=panel, **look(place))

    def summary(self, names: Sequence[str]) -> list[Series]:
        """Of each run one curve of all objectives, the mean and the worst say, in rounds that have all of them."""
        made: dict[str, dict[int, Curve]] = {panel: {} for panel in self.folds}
        for i in range(len(self.roles)):
            mine = [self.found[i, name] for name in names if (i, name) in self.found]
            rows, table = together(mine) if mine else (np.zeros(0, dtype=np.intp), np.zeros((1, 0)))
            if len(rows):
                for panel, how in self.folds.items():
                    made[panel][i] = Curve(rows, _folded(table, how))
        if len(self.roles) == 1:
            return [self._series(0, some[0], panel, panel, 0) for panel, some in made.items() if some]
        return [one for panel, some in made.items() for one in self.of_methods(some, panel)]

    def _series(self, i: int, curve: Curve, called: str, panel: str, place: int, faint: bool = False) -> Series:
        x = {key: values[curve.rows] for key, values in self._clocks[i].items()}
        run = self.roles[i].record.name
        return Series(called, curve.values, x, panel=panel, run=run, faint=faint, **look(place))


def together(some: Sequence[Curve]) -> tuple[np.ndarray[Any, np.dtype[np.intp]], Numbers]:
    """The rounds that all of some curves have, and a row of values for each curve."""
    rows = some[0].rows
    for one in some[1:]:
        rows = rows if np.array_equal(rows, one.rows) else np.intersect1d(rows, one.rows)
    return rows, np.stack([one.values[np.searchsorted(one.rows, rows)] for one in some])


def _folded(table: Numbers, how: str) -> Numbers:
    """One curve of many rows: their mean, the lowest or the highest."""
    found = table.mean(0) if how == "mean" else table.min(0) if how == "lowest" else table.max(0)
    return np.asarray(found, dtype=np.float64)


def _some(role: Role, name: str, pick: Pick) -> Curve | None:
    """A curve with at least one number in it."""
    curve = pick(role.record.columns, name)
    return curve if curve is not None and np.isfinite(curve.values).any() else None


def scaled(axis: Axis, values: Sequence[Numbers]) -> Axis:
    """The axis, logarithmic where positive values reach over two orders of magnitude, losses over one."""
    if axis.low is not None or axis.high is not None:
        return axis
    every = np.concatenate([one[np.isfinite(one)] for one in values])
    far = 10 if axis.better == "lower" else 100
    log = bool(every.size and every.min() > 0 and every.max() / far > every.min())
    return Axis(axis.key, axis.label, log, axis.better, axis.low, axis.high, axis.unit)


def _who(roles: Sequence[Role]) -> str:
    names = list(dict.fromkeys(role.name for role in roles))
    if len(roles) == 1:
        return f"Of the run {roles[0].record.name}."
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"Of {len(roles)} runs: {', '.join(names[:6])}{more}."


def _model(name: str) -> str:
    return name.split("/", 1)[0]


def _inner(name: str) -> str:
    return name.split("/", 1)[-1]
