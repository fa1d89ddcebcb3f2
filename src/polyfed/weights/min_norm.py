"""The weights of multiple-gradient descent, within a box if there is one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from polyfed.core.errors import BadInput
from polyfed.weights.gram import Array, Numbers, as_weights, psd, symmetric
from polyfed.weights.qp import MANY, Program, on_simplex, solve
from polyfed.weights.weighting import Weighting, WeightingState, weightings


def min_norm(gram: Numbers, *, center: Numbers | None = None, eps: float = 1.0) -> Array:
    """Weights of the shortest convex combination of the gradients.

    `argmin_w w^T G w` over the simplex and `|w_k - w0_k| <= eps`.

    gram: G; center: w0 on the simplex, uniform if not given; eps = 1 is plain MGDA, eps = 0 gives w0 back.
    Désidéri (2012); the box is equation (25) and line 6 of FedMGDA+ (Hu et al. 2022). Of several optimal w (G singular)
    one is returned; the direction they give is the same. We solve for `w_k ||g_k||` and not for w_k, so that gradients
    whose lengths differ a million times are all accounted for.
    """
    G = symmetric(gram)
    box = _box(len(G), center, eps)
    if eps == 0.0 or len(G) == 1:
        return box.center.copy()
    if len(G) == 2:
        return _pair(psd(G), box)
    w = _quick(G) if eps == 1.0 and len(G) <= MANY else None
    return _many(psd(G), box) if w is None else w


@weightings("min-norm")
@dataclass(frozen=True)
class MinNorm(Weighting):
    """The shortest convex combination of the gradients, exactly: no objective gets worse (MGDA)."""

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        return min_norm(gram), state


class _Box(NamedTuple):
    center: Array
    lower: Array
    upper: Array


def _box(size: int, center: Numbers | None, eps: float) -> _Box:
    if not 0.0 <= eps <= 1.0:
        raise BadInput(f"`eps` should lie in [0, 1]. Found {eps}.")
    if center is None:
        return _around(size, eps)
    w0 = as_weights(center, size, "center")
    if abs(w0.sum() - 1.0) > 1e-6:
        raise BadInput(f"`center` should hold weights that sum to 1. Found {w0.tolist()}.")
    return _Box(w0, np.maximum(w0 - eps, 0.0), np.minimum(w0 + eps, 1.0))


def _pair(G: Array, box: _Box) -> Array:
    """Two objectives: `w_1 = <g_2, g_2 - g_1> / ||g_1 - g_2||^2`, brought into the box."""
    (a, b), (_, c) = G.tolist()
    apart = (a - b) + (c - b)
    if apart <= 0.0:
        return box.center.copy()
    low = max(box.lower[0], 1.0 - box.upper[1])
    high = min(box.upper[0], 1.0 - box.lower[1])
    return np.array([min(max((c - b) / apart, low), high), min(max((a - b) / apart, 1.0 - high), 1.0 - low)])


def _quick(G: Array) -> Array | None:
    """No box, G definite: the common case, where checks and copies would take longer than the solver."""
    squares = G.diagonal()
    least = squares.min()
    if not least > 0.0:
        return None
    norms = np.sqrt(squares)
    t = math.sqrt(least) / norms
    y = on_simplex(G / norms[:, None].dot(norms[None]), t)  # `dot` has half the overhead of `*` and `@`
    return None if y is None else np.asarray(y * t / y.dot(t))


def _many(G: Array, box: _Box) -> Array:
    norms = np.sqrt(G.diagonal())
    lightest = _lightest(norms, box)
    length = lightest @ norms  # the size of what is being minimised
    if length <= 1e-14 * norms.max():  # nothing, or what rounding left of it
        return lightest if norms.any() else box.center.copy()
    units = np.maximum(norms, length)
    t = length / units
    lower, upper = np.append(box.lower / t, 1.0), np.append(box.upper / t, 1.0)
    y = solve(Program(G / np.outer(units, units), np.zeros(len(G)), t[None], lower, upper))
    return np.asarray(y * t / (y @ t))


def _lightest(norms: Array, box: _Box) -> Array:
    """The weights within the box with the least `sum_k w_k ||g_k||`: short gradients are filled first."""
    order = np.argsort(norms)
    room = (box.upper - box.lower)[order]
    w = box.lower.copy()
    given = np.clip(1.0 - w.sum() - (room.cumsum() - room), 0.0, room)
    w[order] += np.where(given < 1e-15, 0.0, given)  # what rounding left over would be all the length there is
    return w


@lru_cache
def _around(size: int, eps: float) -> _Box:
    return _box(size, np.full(size, 1.0 / size), eps)
