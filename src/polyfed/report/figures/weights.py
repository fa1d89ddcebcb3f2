"""The weights that a method gives to its objectives, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyfed.report.figure import Axis, Figure
from polyfed.report.figures.curves import FEW, Subject, below, curves
from polyfed.report.records import Record

COLUMNS = 200  # rounds that a heat map shows at most


def weights(records: Sequence[Record]) -> Figure | None:
    """The weight of every objective in each round; of one run with very many of them, as a heat map."""
    names = list(dict.fromkeys(name for record in records for name in record.columns.keys("weights")))
    about = "The weight that the method gave to each objective in each round."
    if len(records) == 1 and len(names) > FEW and not records[0].models:
        return _map(records[0], names, about)
    names = [name for name in names if any(_shared(record, name) for record in records)]
    y = Axis("weight", "weight of the objective")
    summary = (("largest weight", "highest"), ("smallest weight", "lowest"))  # the mean says nothing
    subject = Subject("weights", "Weights of the objectives", about, y, log=False, summary=summary)
    return curves(records, subject, names, below("weights"))


def _shared(record: Record, name: str) -> bool:
    """Whether an objective's weight is ever anything but 1: that of the only one is not worth a line."""
    curve = record.columns.curve("weights", name)
    return curve is not None and bool((abs(curve.values - 1) > 1e-9).any())


def _map(record: Record, names: Sequence[str], about: str) -> Figure | None:
    found = {name: curve for name in names if (curve := record.columns.curve("weights", name)) is not None}
    rounds = record.columns.rounds
    if not found:
        return None
    table = np.full((len(found), len(rounds)), np.nan)
    for row, curve in zip(table, found.values(), strict=True):
        row[curve.rows] = curve.values
    kept = np.unique(np.linspace(0, len(rounds) - 1, min(COLUMNS, len(rounds))).round().astype(int))
    left_out = (f"{len(kept)} of {len(rounds)} rounds are drawn.",) if len(kept) < len(rounds) else ()
    return Figure(
        "weights", "Weights of the objectives", f"{about} A row an objective, a column a round.", "heatmap",
        Axis("weight", "weight"), {"round": Axis("round", "round")}, categories=tuple(f"{r:g}" for r in rounds[kept]),
        matrix=table[:, kept], rows=tuple(found), notes=left_out, wide=True,
    )  # fmt: skip
