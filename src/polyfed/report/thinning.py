"""Fewer points for a page: each of them is one of the run's, and peaks stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyfed.report.figure import Figure, Numbers, Series

Places = np.ndarray[Any, np.dtype[np.intp]]
MOST = 400  # points of a series
FEW = 8  # series that keep the same rounds


def thinned(figure: Figure, most: int = MOST) -> Figure:
    """The same figure with at most about so many points a series: the first, the last, and the peaks.

    A few series over the same rounds keep the same rounds, so that these are stored once for all of them: where their
    mean is lowest and highest in short stretches, and where each of them is in longer ones, or at least of all rounds.
    No point is made up or averaged.

    Args:
        figure: of any kind; others than lines stay as they are.
        most: points that a series may have, at least 10.
    """
    if figure.kind != "lines" or all(len(one) <= most for one in figure.series):
        return figure
    groups: dict[bytes, list[int]] = {}
    for i, one in enumerate(figure.series):
        groups.setdefault(_key(one), []).append(i)
    series = list(figure.series)
    few = (mine[start : start + FEW] for mine in groups.values() for start in range(0, len(mine), FEW))
    for mine in few:
        some = [figure.series[i] for i in mine]
        if len(some[0]) > most:
            places = kept([one.y for one in some], most)
            for i in mine:
                series[i] = series[i].at(places)
    return replace(figure, series=tuple(series))


def kept(curves: Sequence[Numbers], most: int) -> Places:
    """The places that curves of one length keep.

    Args:
        curves: their values; NaN where there is none.
        most: how many places at most, if no curve needs its own peaks beyond that.
    """
    n, half = len(curves[0]), (most - 2) // 2
    short, long = max(1, half // 2), max(1, half // (2 * len(curves)))  # how many stretches of either length
    own = [_peaks(one, -(-n // long)) for one in curves]
    return np.unique(np.concatenate([[0, n - 1], _peaks(_mean(curves), -(-n // short)), *own]))


def _mean(curves: Sequence[Numbers]) -> Numbers:
    """The mean of curves that are each scaled to their own span; NaN where none has a number."""
    table = np.stack(curves)
    there = np.isfinite(table)
    low = np.where(there, table, np.inf).min(1, keepdims=True)
    high = np.where(there, table, -np.inf).max(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        scaled = np.where(there, (table - low) / np.where(high > low, high - low, 1.0), 0.0)
    count = there.sum(0)
    return np.asarray(np.where(count > 0, scaled.sum(0) / np.maximum(count, 1), np.nan), dtype=np.float64)


def _peaks(values: Numbers, size: int) -> Places:
    """The lowest and the highest place of every stretch of some size that has a number."""
    rows = -(-len(values) // size)
    padded = np.full(rows * size, np.nan)
    padded[: len(values)] = values
    table = padded.reshape(rows, size)
    known = np.isfinite(table)
    some = known.any(1)
    start = np.flatnonzero(some) * size
    low = np.where(known, table, np.inf).argmin(1)[some]
    high = np.where(known, table, -np.inf).argmax(1)[some]
    return np.concatenate([start + low, start + high])


def _key(one: Series) -> bytes:
    """Series with the same key are over the same rounds."""
    first = next(iter(one.x.values()), np.arange(len(one), dtype=np.float64))
    return b"".join((first.tobytes(), *(values[-1:].tobytes() for values in one.x.values())))
