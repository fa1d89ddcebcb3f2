"""What runs have come to: each objective's loss or metric at the last evaluation, or at one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyfed.report.figure import Numbers
from polyfed.report.records import Record


@dataclass(frozen=True, eq=False)
class Ends:
    """A row a run, a column an objective.

    Args:
        metric: what is measured.
        better: 'lower' or 'higher'.
        objectives: those that all of the runs have measured.
        records: the runs that have all of them.
        values: (runs, objectives).
    """

    metric: str
    better: str
    objectives: tuple[str, ...]
    records: tuple[Record, ...]
    values: Numbers

    @property
    def costs(self) -> Numbers:
        """The values turned so that lower is better."""
        return -self.values if self.better == "higher" else self.values


def ends(records: Sequence[Record], metric: str = "loss", at: float = np.inf) -> Ends | None:
    """What runs have come to; None where they have no objectives in common.

    Args:
        records: the runs; those that share no objective with most of the others are left out.
        metric: 'loss', or a metric that all of the objectives have.
        at: the last round that counts; the evaluation before it is taken.
    """
    rows = [{name: value for name in r.objectives if np.isfinite(value := end(r, name, metric, at))} for r in records]
    rows = [row for row in rows if row]
    if not rows:
        return None
    names = max((tuple(row) for row in rows), key=lambda one: sum(set(one) <= set(row) for row in rows))
    kept = [(record, row) for record in records if set(names) <= set(row := _row(record, names, metric, at))]
    better = next((b for record, _ in kept for name in names if (b := record.better(name, metric))), "lower")
    values = np.array([[row[name] for name in names] for _, row in kept])
    return Ends(metric, better, names, tuple(record for record, _ in kept), values)


def end(record: Record, objective: str, metric: str = "loss", at: float = np.inf) -> float:
    """One objective's value at the last evaluation up to a round; NaN where there is none."""
    columns = record.columns
    path = ("losses", objective) if metric == "loss" else ("metrics", objective, metric)
    curve = columns.curve(*path)
    if curve is None:
        return float("nan")
    there = np.flatnonzero(columns.rounds[curve.rows] <= at)
    return float(curve.values[there[-1]]) if len(there) else float("nan")


def shared_metric(records: Sequence[Record]) -> str:
    """A metric that every objective of every run has and more of which is better; else the loss."""
    every = [set(record.columns.keys("metrics", name)) for record in records for name in record.objectives]
    names = sorted(set.intersection(*every)) if every else []
    return next((m for m in names if all(r.better(o, m) == "higher" for r in records for o in r.objectives)), "loss")


def efficient(costs: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows no other row dominates: at least as low everywhere and lower somewhere."""
    others, own = costs[None, :, :], costs[:, None, :]
    beaten = np.all(others <= own, axis=2) & np.any(others < own, axis=2)
    return np.asarray(~np.any(beaten, axis=1))


def _row(record: Record, names: Sequence[str], metric: str, at: float) -> dict[str, float]:
    found = {name: end(record, name, metric, at) for name in names}
    return {name: value for name, value in found.items() if np.isfinite(value)}
