"""Which way a metric is better: as a run has recorded it, or by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Better = Literal["lower", "higher", ""]
MORE = ("accuracy", "auc", "average_precision", "precision", "recall", "f1", "r2", "iou", "score", "dice")
LESS = ("loss", "error", "gap", "mse", "mae", "rmse", "excess", "perplexity", "distance", "deviation")


def better_of(summary: Mapping[str, Any] | None, objective: str, metric: str) -> Better:
    """'lower', 'higher', or '' where neither the run nor the name says it.

    Args:
        summary: of a run; its 'better' has the direction of each objective's metrics.
        objective: whose metric it is.
        metric: its name; 'loss' is always better lower.
    """
    told = (summary or {}).get("better")
    row = told.get(objective) if isinstance(told, Mapping) else None
    known = row.get(metric) if isinstance(row, Mapping) else None
    if known in ("lower", "higher"):
        return "higher" if known == "higher" else "lower"
    name = metric.lower()
    if name == "loss" or any(word in name for word in LESS):
        return "lower"
    return "higher" if any(word in name for word in MORE) else ""
