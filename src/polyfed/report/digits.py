"""Figures as people read them, the same in a terminal, in a notebook and on a page."""

from __future__ import annotations

import math

SHARES = ("accuracy",)  # metrics that are said in percent


def reading(metric: str, value: float, spread: float | None = None) -> str:
    """A figure in a few digits, with as many of its spread: '0.752 ± 0.020'; an accuracy in percent.

    Args:
        metric: what it is of; 'loss' is one.
        value: the figure, or the mean of several.
        spread: their standard deviation, where there are several.
    """
    if metric in SHARES:
        value, spread = 100 * value, None if spread is None else 100 * spread
        return f"{value:.1f} %" if spread is None else f"{value:.1f} ± {spread:.1f} %"
    if spread is None:
        return f"{value:.4g}"
    if not math.isfinite(spread):
        return f"{value:.3g} ± {spread:.2g}"
    size = max(abs(value), spread)
    if 0.1 <= size < 1000:
        return f"{value:.3f} ± {spread:.3f}"
    if 1e-4 <= size < 0.1:
        places = 2 - math.floor(math.log10(size))
        return f"{value:.{places}f} ± {spread:.{places}f}"
    return f"{value:.3g} ± {spread:.2g}"
