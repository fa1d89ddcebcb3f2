"""Sets of loss vectors: which are worth having, how much they dominate, how evenly they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyfed.metrics import hypervolume

Points = NDArray[np.float64]  # one row a point, one column an objective; all losses, less is better
MARGIN = 0.1  # of the range: how far beyond the worst point the reference point lies, so that ends count, too


def non_dominated(points: Points) -> NDArray[np.bool_]:
    """For each point, whether no other is at least as good in all objectives and better in one."""
    no_worse = (points[:, None] <= points[None]).all(2)
    better = (points[:, None] < points[None]).any(2)
    return np.asarray(~(no_worse & better).any(0))


def reference_of(points: Points) -> list[float]:
    """The worst loss of each objective, and a tenth of its range more."""
    worst: Points = points.max(0) + MARGIN * np.ptp(points, axis=0)
    return [float(value) for value in worst]


def dominated_volume(points: Points, reference: Sequence[float]) -> float | None:
    """The hypervolume up to a reference point; None where moocore is not installed."""
    return hypervolume(points.tolist(), reference) if _has_moocore() else None


def _has_moocore() -> bool:
    try:
        import moocore  # noqa: F401
    except ImportError:
        return False
    return True


def spacing(points: Points) -> float | None:
    """Schott's: the standard deviation of the distances to the nearest other point, 0 where all are alike.

    Distances are sums over the objectives (the 1-norm) of scaled losses. None with fewer than three points.

    Args:
        points: the non-dominated ones, scaled.
    """
    if len(points) < 3:
        return None
    apart = np.abs(points[:, None] - points[None]).sum(2)
    np.fill_diagonal(apart, np.inf)
    return float(apart.min(1).std(ddof=1))
