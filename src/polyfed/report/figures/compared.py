"""What methods have come to: means over seeds with their spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyfed.report.cast import cast, look
from polyfed.report.figure import NONE, Axis, Figure, Series, numbers
from polyfed.report.figures.curves import FEW
from polyfed.report.last import Ends, ends
from polyfed.report.records import Record

MOST = 16  # methods that stand side by side


def compared(records: Sequence[Record]) -> list[Figure]:
    """For the loss and for each metric, methods side by side, an objective each."""
    every = dict.fromkeys(m for r in records for o in r.objectives for m in r.columns.keys("metrics", o))
    found = [_bars(table) for metric in ("loss", *every) if (table := ends(records, metric)) is not None]
    return [figure for figure in found if figure is not None]


def _bars(table: Ends) -> Figure | None:
    roles = cast(table.records)
    methods = list(dict.fromkeys(role.name for role in roles))
    if not 2 <= len(methods) <= MOST:
        return None
    many = len(table.objectives) > FEW
    values = table.values.mean(1, keepdims=True) if many else table.values
    names = (f"mean of {len(table.objectives)} objectives",) if many else table.objectives
    series = []
    seeds = set()
    for place, method in enumerate(methods):
        mine = values[[i for i, role in enumerate(roles) if role.name == method]]
        seeds.add(len(mine))
        mean, spread = mine.mean(0), mine.std(0, ddof=1) if len(mine) > 1 else None
        low, high = (NONE, NONE) if spread is None else (mean - spread, mean + spread)
        labels = tuple(f"{method}: {m:.4g}" + (f" ± {s:.2g}" if s else "") for m, s in _pairs(mean, spread))
        series.append(Series(method, numbers(mean), low=low, high=high, labels=labels, **look(place)))
    said = table.metric.replace("_", " ")
    many_seeds = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    how = f"Means at the last evaluation; whiskers are one standard deviation over {many_seeds} seeds."
    notes = (how if max(seeds) > 1 else "The last evaluation of one run each: there is no spread.",)
    return Figure(
        f"compared-{table.metric}", f"Methods compared: {said}", f"The {said} that each method has come to.", "dots",
        Axis(table.metric, said, better=table.better), {"objective": Axis("objective", "objective")}, tuple(series),
        names, notes=notes, wide=len(names) * len(methods) > 8,
    )  # fmt: skip


def _pairs(mean: np.ndarray[tuple[int], np.dtype[np.float64]], spread: object) -> list[tuple[float, float]]:
    spreads = spread.tolist() if isinstance(spread, np.ndarray) else [0.0] * len(mean)
    return list(zip(mean.tolist(), spreads, strict=True))
