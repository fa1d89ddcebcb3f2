"""An item's figures, from the lines of a run's metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.reproduce.item import Measure

Line = Mapping[str, Any]
OVER = ("mean", "worst", "best")  # of all objectives that have the metric
PLACES = {"first": 0, "second": 1}  # of the objective at that place
CLOCKS = ("round", "bytes_up", "seconds", "simulated_seconds")


class Point(NamedTuple):
    """An evaluation: what it has cost so far, by clock, and the value."""

    spent: dict[str, float]
    value: float


def value_of(measure: Measure, lines: Sequence[Line], quick: bool = False) -> float | None:
    """A measure of a run; None where it is not reached, or no finite number.

    Args:
        measure: which.
        lines: the run's metrics.
        quick: whether the quick target, limit and `last` count.
    """
    points = list(points_of(measure.of, measure.split, measure.better, lines))
    if not points:
        raise BadInput(f"No evaluation has {shown(measure.of)}.{nearest(measure.of, known(lines))}")
    limit = measure.quick_limit if quick and measure.quick_limit is not None else measure.limit
    if limit is not None:
        points = [point for point in points if point.spent[_clock(measure)] <= limit]
    if not points:
        return None
    if measure.take == "reach":
        target = measure.quick_target if quick and measure.quick_target is not None else measure.target
        return _reached(points, measure, math.nan if target is None else target)
    if measure.take == "last" and limit is None and _diverged(measure, lines):
        return None
    best = max if measure.better == "higher" else min
    last = measure.quick_last if quick and measure.quick_last is not None else measure.last
    values = [point.value for point in points]
    found = best(values) if measure.take == "best" else sum(values[-last:]) / len(values[-last:])
    return _scaled(found, measure.scale)


def _diverged(measure: Measure, lines: Iterable[Line]) -> bool:
    """Whether a loss is no number at the end: the last number before that would speak for the run."""
    whose, _, metric = measure.of.rpartition(".")
    found = [losses for line in lines if (losses := _part(measure.split, line).get("losses"))]
    if metric != "loss" or not found:
        return False
    once = {name for losses in found for name, value in losses.items() if _number(value) is not None}
    return any(_number(found[-1].get(name)) is None for name in once if whose in (name, *OVER))


def _reached(points: Iterable[Point], measure: Measure, target: float) -> float | None:
    for spent, value in points:
        if value >= target if measure.better == "higher" else value <= target:
            return _scaled(spent[_clock(measure)], measure.scale)
    return None


def _clock(measure: Measure) -> str:
    return "round" if measure.cost == "rounds" else measure.cost


def _scaled(value: float, scale: Any) -> float | None:
    found = value * scale if scale != "log10" else math.log10(value) if value > 0 else math.nan
    return found if math.isfinite(found) else None


def points_of(of: str, split: str, better: str, lines: Iterable[Line]) -> Iterator[Point]:
    """Every evaluation that has a value.

    Args:
        of: an objective and a metric, 'mean', 'worst', 'best', 'first' or 'second' and a metric, or a path in a line.
        split: whose rows; '' for the run's own.
        better: 'higher' or 'lower', which says what is worst.
        lines: the run's metrics.
    """
    spent = dict.fromkeys(CLOCKS, 0.0)
    for line in lines:
        spent = {key: spent[key] + float(line.get(key) or 0.0) for key in CLOCKS} | {"round": float(line["round"])}
        value = find(of, split, better, line)
        if value is not None:
            yield Point(spent, value)


def find(of: str, split: str, better: str, line: Line) -> float | None:
    """A value of a line, None where it is not there."""
    part = _part(split, line)
    losses, metrics = part.get("losses") or {}, part.get("metrics") or {}
    table = {name: {**(metrics.get(name) or {}), "loss": loss} for name, loss in losses.items()}
    whose, _, metric = of.rpartition(".")
    if whose in table:
        return _number(table[whose].get(metric))
    if whose in PLACES and len(table) > PLACES[whose]:
        return _number(list(table.values())[PLACES[whose]].get(metric))
    if whose in OVER:
        values = [_number(row.get(metric)) for row in table.values()]
        there = [value for value in values if value is not None]
        return _over(whose, there, better) if there else None
    return _number(_path(part, of))


def _part(split: str, line: Line) -> Line:
    """What a line says of a split."""
    part: Line = line.get("splits", {}).get(split, {}) if split and split != line.get("split") else line
    return part


def _over(how: str, values: Sequence[float], better: str) -> float:
    if how == "mean":
        return sum(values) / len(values)
    return (max if (better == "higher") == (how == "best") else min)(values)


def _path(table: Any, path: str) -> Any:
    """What a dotted path leads to; names may have dots themselves."""
    if not isinstance(table, Mapping):
        return None
    if path in table:
        return table[path]
    words = path.split(".")
    for i in range(1, len(words)):
        if (first := ".".join(words[:i])) in table:
            return _path(table[first], ".".join(words[i:]))
    return None


def _number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real and math.isfinite(value) else None


def known(lines: Iterable[Line]) -> list[str]:
    """What evaluations have, for a sentence."""
    for line in lines:
        if "losses" in line:
            names = [f"{name}.{metric}" for name, row in line.get("metrics", {}).items() for metric in (*row, "loss")]
            return [*names, *(key for key, value in line.items() if _number(value) is not None)]
    return []
