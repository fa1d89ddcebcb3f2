"""The compiled loops over examples: SDCA steps, x^T u for all rows, X v. Dense rows, or compressed sparse ones.

Compiled by numba at first use, kept on disk, float64, without the interpreter's lock, and sequential: the same bits
whatever the number of threads around them. One coordinate of the subproblem (4), with s = sigma' Mbar_tt, z = x^T u,
q = c s |x|^2 and b = y beta in [0, 1] for the losses that have classes:

    hinge            b <- clip(b + (1 - y z) / q, 0, 1)                    (x = 0: b <- 1)
    smoothed hinge   b <- clip(b + (1 - y z - g b) / (q + g), 0, 1)
    squared          beta <- beta + (y - z - beta) / (1 + q)
    logistic         b <- sigmoid(r), r the root of r + y z + q (sigmoid(r) - b)

after which u <- u + c s (change of beta) x. With `live` = false u stays as it is: the minibatch of Mb-SDCA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Sums may be taken in any order (vector registers), but NaN stays NaN."""
    made: Any = njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})(function)
    return cast(F, made)


def inlined(function: F) -> F:
    made: Any = njit(cache=True, nogil=True, inline="always")(function)
    return cast(F, made)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U27, _U30, _U31 = np.uint64(27), np.uint64(30), np.uint64(31)
_NEWTON = 60  # at most: each step also halves a bracket


@inlined
def _random(counter: np.uint64) -> np.uint64:
    """splitmix64, as `polyfed.core.keys.bits`."""
    z = counter
    z = (z ^ (z >> _U30)) * _MIX_A
    z = (z ^ (z >> _U27)) * _MIX_B
    return z ^ (z >> _U31)


@compiled
def _sigmoid(r: float) -> float:
    if r >= 0:
        return 1.0 / (1.0 + math.exp(-r))
    e = math.exp(r)
    return e / (1.0 + e)


@compiled
def _logistic(b: float, margin: float, q: float) -> float:
    """sigmoid of the root of r + margin + q (sigmoid(r) - b): Newton's steps, halving where they leave the bracket or
    do not shrink by half (else they may go to and fro between its ends)."""
    low, high = -margin - q * (1.0 - b), -margin + q * b
    r = min(max(-margin, low), high)
    before = high - low
    for _ in range(_NEWTON):
        p = _sigmoid(r)
        f = r + margin + q * (p - b)
        if f > 0:
            high = r
        else:
            low = r
        step = f / (1.0 + q * p * (1.0 - p))
        if not low < r - step < high or abs(step) > 0.5 * before:
            step = r - 0.5 * (low + high)
        before = abs(step)
        r -= step
        if abs(step) <= 1e-15 * (1.0 + abs(r)):
            break
    return _sigmoid(r)


@inlined
def _change(loss: int, g: float, beta: float, y: float, z: float, q: float) -> float:
    """What the coordinate's best value adds to beta."""
    if loss == 2:
        return (y - z - beta) / (1.0 + q)
    b = y * beta
    if loss == 0:
        new = 1.0 if q <= 0.0 else min(max(b + (1.0 - y * z) / q, 0.0), 1.0)
    elif loss == 1:
        new = min(max(b + (1.0 - y * z - g * b) / (q + g), 0.0), 1.0)
    else:
        new = _logistic(b, y * z, q)
    return y * (new - b)


@inlined
def _draw(order: Ints, j: int, key: np.uint64, k: int) -> int:
    """The j-th place of a random order, drawn when it is needed (Fisher and Yates)."""
    n = len(order)
    i = j + np.int64(_random(key + np.uint64(k + 1) * _GOLDEN) % np.uint64(n - j))
    order[i], order[j] = order[j], order[i]
    return int(order[j])


@compiled
def sdca_dense(
    X: Floats, y: Floats, norms: Floats, beta: Floats, u: Floats,
    s: float, c: float, loss: int, g: float, key: int, live: bool, order: Ints, first: int, last: int,
) -> None:  # fmt: skip
    """Coordinate steps `first` to `last` on rows of X, pass after pass in random orders.

    beta, u and the order change in place: it is 0 ... n - 1 before step 0, and the steps may be taken in several calls.
    """
    n, d = X.shape
    for k in range(first, last):
        i = _draw(order, k % n, np.uint64(key), k)
        x = X[i]
        z = 0.0
        for j in range(d):
            z += x[j] * u[j]
        change = _change(loss, g, beta[i], y[i], z, c * s * norms[i])
        if change != 0.0:
            beta[i] += change
            if live:
                step = c * s * change
                for j in range(d):
                    u[j] += step * x[j]


@compiled
def sdca_sparse(
    data: Floats, columns: Ints, starts: Ints, y: Floats, norms: Floats, beta: Floats, u: Floats,
    s: float, c: float, loss: int, g: float, key: int, live: bool, order: Ints, first: int, last: int,
) -> None:  # fmt: skip
    """`sdca_dense` for compressed sparse rows."""
    n = len(y)
    for k in range(first, last):
        i = _draw(order, k % n, np.uint64(key), k)
        z = 0.0
        for j in range(starts[i], starts[i + 1]):
            z += data[j] * u[columns[j]]
        change = _change(loss, g, beta[i], y[i], z, c * s * norms[i])
        if change != 0.0:
            beta[i] += change
            if live:
                step = c * s * change
                for j in range(starts[i], starts[i + 1]):
                    u[columns[j]] += step * data[j]


@compiled
def margins_dense(X: Floats, u: Floats) -> Floats:
    """x^T u for every row x."""
    z = np.empty(len(X))
    for i in range(len(X)):
        total = 0.0
        for j in range(len(u)):
            total += X[i, j] * u[j]
        z[i] = total
    return z


@compiled
def margins_sparse(data: Floats, columns: Ints, starts: Ints, u: Floats) -> Floats:
    """`margins_dense` for compressed sparse rows."""
    z = np.zeros(len(starts) - 1)
    for i in range(len(z)):
        for j in range(starts[i], starts[i + 1]):
            z[i] += data[j] * u[columns[j]]
    return z


@compiled
def combine_dense(X: Floats, a: Floats) -> Floats:
    """sum_i a_i x_i; rows with a_i = 0 cost nothing."""
    v = np.zeros(X.shape[1])
    for i in range(len(a)):
        if a[i] != 0.0:
            for j in range(len(v)):
                v[j] += a[i] * X[i, j]
    return v


@compiled
def combine_sparse(data: Floats, columns: Ints, starts: Ints, a: Floats, d: int) -> Floats:
    """`combine_dense` for compressed sparse rows."""
    v = np.zeros(d)
    for i in range(len(a)):
        if a[i] != 0.0:
            for j in range(starts[i], starts[i + 1]):
                v[columns[j]] += a[i] * data[j]
    return v
