"""Figures that histograms leave in doubt: a run's summary says which, and what narrows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDE = 0.02  # of a figure's size, and at least of 1: two digits of it are then in doubt


def wide_bounds(line: Mapping[str, Any]) -> list[str]:
    """A sentence for each figure whose bounds are far apart.

    Args:
        line: of a round.
    """
    said = []
    for objective, row in line.get("bounds", {}).items():
        for name, (low, high) in row.items():
            value = line["metrics"].get(objective, {}).get(name)
            if None not in (value, low, high) and high - low > WIDE * max(1.0, abs(value)):
                said.append(
                    f"{name} of {objective!r}, {value:.4g}, lies between {low:.4g} and {high:.4g}: its numbers fall "
                    "into few bins. A smaller scale= of the metric, about the size of the scores, or more bins= helps."
                )
    return said
