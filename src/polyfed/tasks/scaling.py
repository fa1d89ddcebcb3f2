"""Features as they are given and as they are fitted, scaled and with a constant one; and the weights for either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """(x - shift) / scale, and then a 1 where there is an intercept; shift and scale of one entry leave x as it is."""

    shift: Floats
    scale: Floats
    intercept: bool

    def features(self, X: Any) -> Any:
        """Rows to fit."""
        if sparse.issparse(X):
            X = sparse.csr_matrix(X, dtype=np.float64)
            X = X.multiply(1 / self.scale).tocsr() if self._scales else X
            return sparse.hstack([X, np.ones((X.shape[0], 1))]).tocsr() if self.intercept else X
        X = np.asarray(X, dtype=np.float64)
        X = (X - self.shift) / self.scale if self._scales else X
        return np.hstack([X, np.ones((len(X), 1))]) if self.intercept else X

    def unscaled(self, W: Floats) -> tuple[Floats, Floats]:
        """Coefficients and intercepts, for features as they are given, of weights that were fitted."""
        weights, bias = (W[..., :-1], W[..., -1]) if self.intercept else (W, np.zeros(W.shape[:-1]))
        coef = weights / self.scale
        return coef, bias - self._shifted(coef)

    def scaled(self, coef: Floats, intercept: Floats) -> Floats:
        """The weights that have these coefficients and intercepts."""
        bias = (intercept + self._shifted(coef))[..., None]
        return np.concatenate([coef * self.scale, bias], axis=-1) if self.intercept else coef * self.scale

    def _shifted(self, coef: Floats) -> Floats:
        shifted: Floats = coef @ np.broadcast_to(self.shift, coef.shape[-1:])
        return shifted

    @property
    def _scales(self) -> bool:
        return len(self.scale) > 1 or bool(self.scale[0] != 1 or self.shift[0] != 0)


def plain() -> tuple[Floats, Floats]:
    """The shift and scale that change nothing."""
    return np.zeros(1), np.ones(1)


def moments(Xs: Sequence[Any], intercept: bool) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every feature over all rows; sparse ones keep their zeros.

    Without an intercept, nothing could make up for what centring takes away: the mean is 0.
    """
    n = sum(X.shape[0] for X in Xs)
    mean = sum(np.asarray(X.sum(0), dtype=np.float64).ravel() for X in Xs) / n
    squares = sum(np.asarray((X.multiply(X) if sparse.issparse(X) else np.square(X)).sum(0)).ravel() for X in Xs)
    spread = np.sqrt(np.maximum(squares / n - mean**2, 0))
    scale = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1), spread, 1.0)
    centre = intercept and not any(sparse.issparse(X) for X in Xs)
    return mean if centre else np.zeros_like(mean), scale
