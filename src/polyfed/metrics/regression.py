"""Figures of regression: the share of variance explained, and quantiles."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.metric import SplitMetric, Statistics
from polyfed.metrics.scores import Bins, tally


def r2(outputs: int = 1) -> SplitMetric:
    """The coefficient of determination 1 - sum (y - f)^2 / sum (y - mean y)^2, y's mean that of all clients together.

    The mean over an example's outputs; NaN where all targets are the same.

    Args:
        outputs: how many numbers an example's target has.
    """
    if type(outputs) is not int or outputs < 1:
        raise BadInput(f"r2: outputs should be a whole number from 1. Found {outputs!r}.")
    return SplitMetric(partial(_moments, outputs=outputs), _explained, (outputs, 4), "higher")


def quantile(
    q: float,
    of: Literal["error", "output"] = "error",
    *,
    better: Literal["higher", "lower"] = "lower",
    bins: int = 1024,
    scale: float = 1.0,
) -> SplitMetric:
    """A quantile of the absolute error, or of the outputs, over all examples; one output an example.

    Numbers v are counted in bins that are equally wide in v / (scale + abs(v)); the figure is exact to the width of
    its bin, whose edges are the `bounds` in the round's line.

    Args:
        q: from 0 to 1; 0.5 is the median.
        of: 'error' or 'output'.
        better: 'lower', or 'higher' where large outputs are good.
        bins: how many there are; a reply grows by 8 bytes for each.
        scale: where half of the bins end: about the size of the numbers.
    """
    if not 0 <= q <= 1:
        raise BadInput(f"quantile: q should be from 0 to 1. Found {q!r}.")
    if of not in ("error", "output"):
        raise BadInput(f"quantile: of should be 'error' or 'output'. Found {of!r}.")
    kept = Bins(bins, scale, signed=of == "output")
    return SplitMetric(
        partial(_binned, bins=kept), partial(_quantile, q=q, bins=kept), bins, better, counts=True,
        bounds=partial(_edges, q=q, bins=kept), times=1,
    )  # fmt: skip


def _moments(output: Tensor, target: Tensor, mask: Tensor, *, outputs: int) -> Tensor:
    """For each output: how many, sum y, sum y^2 and the sum of squared errors."""
    y = target.reshape(len(mask), outputs).double()
    error = y - output.reshape(len(mask), outputs).double()
    rows = (mask > 0).unsqueeze(1)
    each = torch.ones_like(y), y, y.square(), error.square()
    return torch.stack([torch.where(rows, values, 0.0).sum(0) for values in each], 1)


def _explained(moments: Statistics) -> float:
    n, total, squares, errors = moments.T
    spread = squares - total**2 / n
    if not (spread > 1e-12 * squares).all():  # what is left is rounding
        return float("nan")
    return float(np.mean(1 - errors / spread))


def _binned(output: Tensor, target: Tensor, mask: Tensor, *, bins: Bins) -> Tensor:
    values = output.reshape(len(mask)).double()
    if not bins.signed:
        values = (values - target.reshape(len(mask))).abs()
    return tally(bins.place(values), mask.long(), bins.number)


def _quantile(counts: Statistics, *, q: float, bins: Bins) -> float:
    n = counts.sum()
    if not n:
        return float("nan")
    rank, upto = q * (n - 1), counts.cumsum()
    b = _bin(upto, rank)
    inside = (rank - (upto[b] - counts[b]) + 0.5) / counts[b]
    return float(bins.edge(b + min(inside, 1.0)))


def _bin(upto: Statistics, rank: float) -> int:
    """The bin in which a rank lies, of those with counts: rounding never leads past the last of them."""
    last = int(np.searchsorted(upto, upto[-1]))
    return min(int(np.searchsorted(upto, rank, side="right")), last)


def _edges(counts: Statistics, *, q: float, bins: Bins) -> tuple[float, float]:
    n = counts.sum()
    if not n:
        return float("nan"), float("nan")
    rank, upto = q * (n - 1), counts.cumsum()
    first, last = (_bin(upto, r) for r in (np.floor(rank), np.ceil(rank)))
    return float(bins.edge(first)), float(bins.edge(last + 1))
