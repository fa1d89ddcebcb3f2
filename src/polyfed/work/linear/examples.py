"""One task's rows as the compiled loops want them: dense or sparse, float64, labels -1 and 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from polyfed.core.errors import BadInput
from polyfed.core.interrupt import may_go_on
from polyfed.work.linear.losses import Loss

Floats = NDArray[np.float64]
AT_ONCE = 2_000_000  # multiplications that a loop does before it looks up: some milliseconds
LOGISTIC = 200  # multiplications' worth of time that a step may take beside its row


@dataclass(frozen=True)
class Examples:
    """X, n rows of d features (a dense array or a scipy CSR matrix), and y."""

    X: Any
    y: Floats
    _csr: Any = field(init=False, default=(), repr=False)

    def __post_init__(self) -> None:
        if sparse.issparse(self.X):
            X = sparse.csr_matrix(self.X, dtype=np.float64)
            csr = X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)
            object.__setattr__(self, "_csr", csr)

    @cached_property
    def norms(self) -> Floats:
        """|x|^2 of every row."""
        X = self.X
        squares = X.multiply(X).sum(1) if self._csr else np.einsum("ij,ij->i", X, X)
        norms: Floats = np.asarray(squares, dtype=np.float64).ravel()
        return norms

    def margins(self, u: Floats) -> Floats:
        """z = x^T u for every row."""
        kernels = _kernels()
        z: Floats = kernels.margins_sparse(*self._csr, u) if self._csr else kernels.margins_dense(self.X, u)
        return z

    def combine(self, a: Floats) -> Floats:
        """X a = sum_i a_i x_i."""
        kernels = _kernels()
        csr, d = self._csr, self.X.shape[1]
        v: Floats = kernels.combine_sparse(*csr, a, d) if csr else kernels.combine_dense(self.X, a)
        return v

    def sdca(
        self, beta: Floats, u: Floats, *, s: float, c: float, loss: Loss, g: float, steps: int, key: int, live: bool
    ) -> None:
        """Coordinate steps in place (see `kernels`), some at a time: between two calls a signal is heard."""
        signed = key >> 1  # 63 bits fit the loops' integers
        rows = self._csr or (self.X,)
        rest = (self.y, self.norms, beta, u, float(s), float(c), loss.code, float(g), signed, live)
        loop = _kernels().sdca_sparse if self._csr else _kernels().sdca_dense
        order = np.arange(len(self.y))
        for first in range(0, steps, self._at_once):
            may_go_on()
            loop(*rows, *rest, order, first, min(first + self._at_once, steps))

    @cached_property
    def _at_once(self) -> int:
        """Steps that take some milliseconds, whatever the length of a row."""
        length = int(self.X.nnz) // len(self.y) if self._csr else int(self.X.shape[1])
        return 1 + AT_ONCE // (length + LOGISTIC)


def _kernels() -> Any:
    """Imported by those who compute: numba is slow to import."""
    from polyfed.work.linear import kernels

    return kernels


def as_examples(X: Any, y: Any, loss: Loss) -> Examples:
    """Rows and targets checked: finite, one target a row, and two classes where the loss wants classes."""
    if not sparse.issparse(X):
        X = np.ascontiguousarray(X, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64).ravel()
    if X.ndim != 2 or X.shape[0] != len(y):
        raise BadInput(f"A task needs rows of features and one target a row. Found {X.shape} and {y.shape}.")
    if not len(y):
        raise BadInput("A task needs at least one example. Found none.")
    if not np.isfinite(X.data if sparse.issparse(X) else X).all() or not np.isfinite(y).all():
        raise BadInput("Features and targets should be finite numbers. Found NaN or infinity.")
    return Examples(X, signs(y) if loss.labels else y)


def signs(y: Floats) -> Floats:
    """Labels -1 and 1; 0 and 1 are taken for them."""
    found = np.unique(y)
    if np.isin(found, (-1.0, 1.0)).all():
        return y
    if np.isin(found, (0.0, 1.0)).all():
        return 2 * y - 1
    raise BadInput(f"Labels should be -1 and 1, or 0 and 1. Found {len(found)} different values, others among them.")
