"""A picture of a split: how many rows each client has, of which labels, and which objectives it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.data.show import Labels, entropy_line, labels_line, rows_line
from polyfed.federation import Federation, Index

INK, FAINT, PAPER = "#22303c", "#8a97a3", "#ffffff"
SPLITS = {"train": "#2f6690", "valid": "#81c3d7", "test": "#f2a65a"}
MOST = 300  # columns that can still be told apart


def draw(found: dict[str, Any], federation: Federation, labels: Labels | None, out: Path) -> None:
    """Write the picture as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients = _chosen(federation, labels)
    panels = {"sizes": 1.0, **({"labels": 3.4} if labels else {}), **({"holds": 0.9} if federation.holds else {})}
    figure = Figure(figsize=(9, sum(panels.values()) + 1.3), dpi=150, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=list(panels.values()))[:, 0]
    at = dict(zip(panels, axes, strict=True))
    _sizes(at["sizes"], federation, clients)
    if labels is not None:
        _labels(at["labels"], labels, clients)
    if federation.holds:
        _holds(at["holds"], federation, clients, list(found["objectives"]))
    _words(figure, axes, found, len(clients), labels)
    figure.savefig(out)
