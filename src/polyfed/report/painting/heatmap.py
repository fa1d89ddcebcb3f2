"""Matrices in colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyfed.report.figure import Figure

NAMED = 60  # rows that are named
SPACE = 10  # columns that are named at most where they are rounds


def paint(canvas: Any, figure: Figure, key: str) -> None:
    """Draw the matrix, its names and what its colours mean."""
    assert figure.matrix is not None
    axes = canvas.subplots()
    finite = figure.matrix[np.isfinite(figure.matrix)]
    top = float(np.abs(finite).max()) if finite.size else 1.0
    ends = (-top, top) if figure.diverging else (None, None)
    square = figure.rows == figure.categories
    image = axes.imshow(figure.matrix, cmap="RdBu_r" if figure.diverging else "cividis", vmin=ends[0], vmax=ends[1],
                        aspect="equal" if square else "auto", interpolation="nearest")  # fmt: skip
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    _names(axes, figure, square)
    bar = canvas.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(figure.y.label)
    bar.outline.set_visible(False)


def _names(axes: Any, figure: Figure, square: bool) -> None:
    inches = axes.figure.get_size_inches()
    across = next(iter(figure.x.values()), None)
    size = min(7.0, max(4.0, 72 * 0.75 * inches[1] / max(len(figure.rows), 1) * 0.85))
    if len(figure.rows) <= NAMED:
        axes.set_yticks(range(len(figure.rows)), figure.rows, fontsize=size)
    else:
        axes.set_yticks([])
    if square and len(figure.rows) <= NAMED:
        axes.set_xticks(range(len(figure.categories)), figure.categories, rotation=90, fontsize=size)
    elif square:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(figure.categories)} tasks")
    else:
        step = max(1, len(figure.categories) // SPACE)
        places = list(range(0, len(figure.categories), step))
        axes.set_xticks(places, [figure.categories[i] for i in places])
        axes.set_xlabel("" if across is None else across.label)
