"""What runs have reached: the last evaluation of each, and means and spreads over the seeds of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyfed.report.cast import cast
from polyfed.report.digits import reading
from polyfed.report.directions import Better
from polyfed.report.figure import NONE, Numbers
from polyfed.report.records import Record

MANY = 4  # objectives from which on their mean and the worst of them come first
NOTHING = "\u2013"  # a dash, where there is no value
Measure = tuple[str, str]  # an objective and a metric of it; 'loss' is one


@dataclass(frozen=True, eq=False)
class Row:
    """One method: a value for each of its seeds, by measure.

    Args:
        name: of the method, or of its one run.
        seeds: how many runs it has.
        values: of those runs that have the measure.
    """

    name: str
    seeds: int
    values: Mapping[Measure, Numbers]

    def mean(self, measure: Measure) -> float:
        """Over the seeds; NaN where none has it."""
        values = self.values.get(measure, NONE)
        return float(np.mean(values)) if len(values) else float("nan")

    def shown(self, measure: Measure) -> str:
        """A few digits, with the standard deviation over the seeds where there are several."""
        values = self.values.get(measure, NONE)
        if not len(values) or not np.isfinite(self.mean(measure)):
            return NOTHING
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return reading(measure[1], self.mean(measure), spread)


@dataclass(frozen=True, eq=False)
class Results:
    """A table: methods and what they have reached.

    Args:
        rows: the methods.
        measures: what was measured, in the order of the objectives.
        better: which way each is better.
    """

    rows: tuple[Row, ...]
    measures: tuple[Measure, ...]
    better: Mapping[Measure, Better]

    def best(self, measure: Measure) -> set[str]:
        """The names of the best methods, those that look the same included; none where nothing can be compared."""
        means = {row.name: row.mean(measure) for row in self.rows}
        finite = {name: value for name, value in means.items() if np.isfinite(value)}
        if len(finite) < 2 or not self.better.get(measure):
            return set()
        top = max(finite.values()) if self.better[measure] == "higher" else min(finite.values())
        alike = reading(measure[1], top)
        return {name for name, value in finite.items() if reading(measure[1], value) == alike}


def results(records: Sequence[Record]) -> Results:
    """The last evaluation of each run; runs that differ in their seeds alone are one row.

    Args:
        records: the runs.
    """
    groups: dict[str, list[Record]] = {}
    for role in cast(records):
        groups.setdefault(role.name, []).append(role.record)
    better = _directions(records)
    reached = {name: [_summed_up(last_values(r), better) for r in group] for name, group in groups.items()}
    measures = tuple(dict.fromkeys(m for group in reached.values() for one in group for m in one))
    rows = [
        Row(name, len(group), {m: np.array([one[m] for one in group if m in one]) for m in measures})
        for name, group in reached.items()
    ]
    ways = {m: better.get(m, _shared(better, m[1])) for m in measures}
    return Results(tuple(rows), measures, ways)


def _directions(records: Sequence[Record]) -> dict[Measure, Better]:
    found: dict[Measure, Better] = {}
    for record in records:
        for measure in last_values(record):
            found[measure] = found.get(measure) or record.better(*measure)
    return found


def _shared(better: Mapping[Measure, Better], metric: str) -> Better:
    """Which way a metric is better for all objectives; '' where they do not agree."""
    ways = {way for (_, name), way in better.items() if name == metric}
    return ways.pop() if len(ways) == 1 else ""


def _summed_up(values: dict[Measure, float], better: Mapping[Measure, Better]) -> dict[Measure, float]:
    """Before the values of many objectives, their mean and the worst of them."""
    first: dict[Measure, float] = {}
    for metric in dict.fromkeys(metric for _, metric in values):
        some = [value for (_, name), value in values.items() if name == metric]
        if len(some) > MANY and (way := _shared(better, metric)):
            first["mean of the objectives", metric] = float(np.mean(some))
            first["worst objective", metric] = min(some) if way == "higher" else max(some)
    return first | values


def last_values(record: Record) -> dict[Measure, float]:
    """The newest value of each objective's loss and metrics."""
    found: dict[Measure, float] = {}
    for objective in record.objectives:
        paths: dict[str, tuple[str, ...]] = {"loss": ("losses", objective)}
        paths |= {m: ("metrics", objective, m) for m in record.columns.keys("metrics", objective)}
        for metric, path in paths.items():
            curve = record.columns.curve(*path)
            if curve is not None and len(curve):
                found[objective, metric] = float(curve.values[-1])
    return found
