"""Runs over all their objectives at once: radar of a few objectives, parallel coordinates of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyfed.report.cast import cast, look
from polyfed.report.figure import Axis, Figure, Numbers, Series
from polyfed.report.last import Ends, ends, shared_metric
from polyfed.report.records import Record

FEWEST, MOST = 3, 12  # objectives that a radar can show
POLYGONS = 8  # that one can tell apart in it


def profile(records: Sequence[Record]) -> Figure | None:
    """All objectives of runs at once: a radar of 3 to 12 of them, parallel coordinates of more, or of many runs."""
    metric = shared_metric(records)
    found = ends(records, metric)
    if found is None or len(found.objectives) < FEWEST:
        return None
    crowded = len({role.name for role in cast(found.records)}) > POLYGONS
    if len(found.objectives) <= MOST and not crowded:
        return radar(records)
    drawn = metric == "loss" and len(found.records) > 1 and len(found.objectives) > FEWEST  # as the front
    return None if drawn else parallel(records)


def radar(records: Sequence[Record]) -> Figure | None:
    """A polygon a run, outside is better; of one run, its first evaluation beside its last."""
    found = ends(records, shared_metric(records))
    if found is not None and len(found.records) > 1 and _near(found):
        found = ends(records, "loss") or found
    if found is None or not FEWEST <= len(found.objectives) <= MOST:
        return None
    names, places, table = _rows(found)
    if len(found.records) == 1 and not _comparable(found, table):  # every polygon would touch both ends
        return None
    shares, axes, how = _scaled(found, table)
    series = [
        Series(name, share, labels=tuple(f"{o}: {v:.4g}" for o, v in zip(found.objectives, row, strict=True)),
               ids=(name,) * len(row), **look(place))
        for name, place, share, row in zip(names, places, shares, table, strict=True)
    ]  # fmt: skip
    said = found.metric.replace("_", " ")
    return Figure(
        "radar", f"Objectives together: {said}", f"The {said} of every objective, one polygon for each run; {how}",
        "radar", Axis(found.metric, said, low=0.0, high=1.0, better="higher"), {}, tuple(series), found.objectives,
        axes, notes=(how[:1].upper() + how[1:],),
    )  # fmt: skip


def parallel(records: Sequence[Record], metric: str = "", at: float = np.inf) -> Figure | None:
    """A line a run over parallel axes, all turned so that better is up; for more objectives than a radar shows.

    Args:
        records: the runs.
        metric: what is drawn of each objective; '' for one that all share.
        at: the last round that counts.
    """
    found = ends(records, metric or shared_metric(records), at)
    if found is None or len(found.objectives) < 2 or (len(found.records) < 2 and len(found.objectives) <= MOST):
        return None
    names, places, table = _rows(found)
    alone = len(found.records) == 1 and _comparable(found, table)  # two lines would each be at one end
    shares, axes, how = _scaled(found, table) if alone else _spanned(found, table, 0.0)
    series = [
        Series(name, share, labels=tuple(f"{o}: {v:.4g}" for o, v in zip(found.objectives, row, strict=True)),
               ids=(name,) * len(row), mode="both", **look(place))
        for name, place, share, row in zip(names, places, shares, table, strict=True)
    ]  # fmt: skip
    said = found.metric.replace("_", " ")
    note = how if alone else "each axis goes from the worst value among the runs, below, to the best, above."
    about = f"The {said} of every objective, a line a run; better is up: {note}"
    return Figure(
        "front" if metric else "parallel", f"Objectives side by side: {said}", about, "parallel",
        Axis(found.metric, said, low=0.0, high=1.0), {}, tuple(series), found.objectives, axes, wide=True,
        notes=(note[:1].upper() + note[1:],),
    )  # fmt: skip


def _rows(found: Ends) -> tuple[list[str], list[int], Numbers]:
    """A name, a place in the palette and values for each line: methods' means over seeds, or one run's two ends."""
    if len(found.records) == 1:
        record = found.records[0]
        first = _first(record, found)
        names = [f"round {first[0]:g}", f"round {record.columns.rounds[-1]:g}"]
        return names, [1, 0], np.stack([first[1], found.values[0]])
    roles = cast(found.records)
    names = list(dict.fromkeys(role.name for role in roles))
    mean = [found.values[[i for i, role in enumerate(roles) if role.name == name]].mean(0) for name in names]
    return names, list(range(len(names))), np.stack(mean)


def _first(record: Record, found: Ends) -> tuple[float, Numbers]:
    """The round of the first evaluation, and what it was."""
    curve = record.columns.curve("losses", found.objectives[0])
    at = float(record.columns.rounds[curve.rows[0]]) if curve is not None else 0.0
    before = ends([record], found.metric, at)
    values = found.values[0] if before is None or before.objectives != found.objectives else before.values[0]
    return at, values


def _near(found: Ends) -> bool:
    """Whether polygons would lie upon each other: shares of 1 that differ by less than a tenth."""
    shares = found.better == "higher" and _comparable(found, found.values)
    return shares and float(np.ptp(found.values, axis=0).max()) < 0.1


def _comparable(found: Ends, table: Numbers) -> bool:
    """Whether values are shares of 1 themselves, or losses whose ratios say something."""
    least, most = float(table.min()), float(table.max())
    return least >= 0 and most <= 1 if found.better == "higher" else least > 0


def _scaled(found: Ends, table: Numbers) -> tuple[Numbers, tuple[Axis, ...], str]:
    """Values as shares of 1 that are better outside, the axes, and how that was done."""
    if found.better == "higher" and _comparable(found, table):
        axes = tuple(Axis(o, o, low=0.0, high=1.0, better="higher") for o in found.objectives)
        return table, axes, f"the scale goes from 0 to 1, as the {found.metric.replace('_', ' ')} does."
    if _comparable(found, table):
        best = table.min(0)
        axes = tuple(Axis(o, o, high=float(b), better="lower") for o, b in zip(found.objectives, best, strict=True))
        return best / table, axes, "1 is the lowest value of each objective, 0.5 is twice as much."
    return _spanned(found, table, 0.2)


def _spanned(found: Ends, table: Numbers, start: float) -> tuple[Numbers, tuple[Axis, ...], str]:
    """Values between the worst of the runs, drawn at a start, and the best, drawn at 1."""
    worst, best = (table.min(0), table.max(0)) if found.better == "higher" else (table.max(0), table.min(0))
    span = np.where(best == worst, 1.0, best - worst)
    axes = tuple(
        Axis(o, o, low=float(w), high=float(b), better=found.better)
        for o, w, b in zip(found.objectives, worst, best, strict=True)
    )
    how = f"each objective goes from the worst of the runs, drawn at {start:g}, to the best, drawn at 1."
    return np.where(best == worst, 1.0, start + (1 - start) * (table - worst) / span), axes, how
