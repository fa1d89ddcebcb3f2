"""Gram matrices of every kind a server may meet, and the residual that judges weights on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import small
from polyfed.weights import psd
from polyfed.weights.gram import Array


def golden(name: str) -> list[dict[str, Any]]:
    """The cases of a golden file."""
    return list(small.golden(name)["cases"])


def generic(rng: np.random.Generator, size: int) -> Array:
    return rng.standard_normal((size, 2 * size + 3))


def dependent(rng: np.random.Generator, size: int) -> Array:
    return rng.standard_normal((size, max(1, size // 2)))


def duplicated(rng: np.random.Generator, size: int) -> Array:
    return generic(rng, size)[rng.integers(0, max(1, size - 1), size)]


def near_antipodal(rng: np.random.Generator, size: int, apart: float = 1e-3) -> Array:
    sides = np.where(np.arange(size) % 2, 1.0, -1.0)[:, None]
    return sides * rng.standard_normal(2 * size + 3) + apart * generic(rng, size)


def antipodal(rng: np.random.Generator, size: int) -> Array:
    return near_antipodal(rng, size, apart=0.0)


def one_zero(rng: np.random.Generator, size: int) -> Array:
    J: Array = generic(rng, size) * (np.arange(size) != size - 1)[:, None]
    return J


def zero(rng: np.random.Generator, size: int) -> Array:
    return np.zeros((size, 3))


VECTORS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    f.__name__: f for f in (generic, dependent, duplicated, near_antipodal, antipodal, one_zero, zero)
}
FAMILIES = (*VECTORS, "single", "indefinite")


def gradients(family: str, seed: int, size: int, *, spread: float = 1.0, scale: float = 1.0) -> Array:
    """Rows g_k, their lengths spread over `spread` times."""
    rng = np.random.default_rng(seed)
    lengths = scale * spread ** rng.uniform(0.0, 1.0, (size, 1))
    return VECTORS[family](rng, size) * lengths


def gram(family: str, seed: int, size: int, *, spread: float = 1.0, scale: float = 1.0) -> Array:
    """G of that family; `single` has the rounding of float32, `indefinite` is no Gram matrix at all."""
    if family in VECTORS:
        J = gradients(family, seed, size, spread=spread, scale=scale)
        return J @ J.T
    J = gradients("generic", seed, size, spread=spread, scale=scale)
    if family == "single":
        return (J.astype(np.float32) @ J.astype(np.float32).T).astype(np.float64)
    noise = np.random.default_rng(seed).standard_normal((size, size))
    G: Array = J @ J.T + np.outer(*[np.linalg.norm(J, axis=1)] * 2) * (noise + noise.T)
    return G


@st.composite
def grams(draw: st.DrawFn, families: tuple[str, ...] = FAMILIES, sizes: tuple[int, int] = (1, 9)) -> Array:
    family, seed = draw(st.sampled_from(families)), draw(st.integers(0, 2**20))
    spread, scale = 10.0 ** draw(st.integers(0, 6)), 10.0 ** draw(st.integers(-5, 5))
    return gram(family, seed, draw(st.integers(*sizes)), spread=spread, scale=scale)


def lengths(G: Array) -> Array:
    return np.sqrt(np.maximum(np.diag(G), 0.0))


def box(center: Array, eps: float) -> tuple[Array, Array]:
    return np.maximum(center - eps, 0.0), np.minimum(center + eps, 1.0)


def kkt_residual(G: Array, w: Array, lower: Array, upper: Array) -> float:
    """How far w is from the KKT conditions of `min w^T G w` over the box and the simplex, for the best nu.

    `(G w)_k` should be nu inside, at least nu at the lower bound, at most nu at the upper. A slope counts times how far
    w_k could still move, at most by what would double the direction; all relative to `(sum_k w_k ||g_k||)^2`.
    """
    G, h = psd(G), psd(G) @ w
    norms = lengths(G)
    size = max(w @ norms, 1e-12 * norms.max())
    if size == 0.0:
        return 0.0
    order = np.argsort(h)
    filled = lower.sum() + np.cumsum((upper - lower)[order])
    nu = h[order][np.argmax(filled >= 1.0 - 1e-12)]  # the last one filled by the weights that make w^T G w' least
    down = np.maximum(h - nu, 0.0) * (w - lower)
    up = np.maximum(nu - h, 0.0) * np.minimum(upper - w, size / np.maximum(norms, size))
    return float(np.maximum(down, up).max() / size**2)
