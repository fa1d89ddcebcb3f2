"""The weights of multiple-gradient descent, within a box if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from polyfed.errors import BadInput
from polyfed.weights.gram import Array, Numbers, as_vector, psd
from polyfed.weights.qp import FREE, Program, solve
from polyfed.weights.weighting import State, weightings


def min_norm(gram: Numbers, *, center: Numbers | None = None, eps: float = 1.0) -> Array:
    """Weights of the shortest convex combination of the gradients.

    `argmin_w w^T G w` over the simplex and `|w_k - w0_k| <= eps`.

    gram: G; center: w0 on the simplex, uniform if not given; eps = 1 is plain MGDA, eps = 0 gives w0 back.
    Désidéri (2012); the box is equation (25) and line 6 of FedMGDA+ (Hu et al. 2022). Of several optimal w (G singular)
    one is returned; the direction they give is the same. We solve for `w_k ||g_k||` and not for w_k, so that gradients
    whose lengths differ a million times are all accounted for.
    """
    G = psd(gram)
    box = _box(len(G), center, eps)
    if eps == 0.0 or len(G) == 1:
        return box.center.copy()
    return _pair(G, box) if len(G) == 2 else _many(G, box)


@weightings("min-norm")
@dataclass(frozen=True)
class MinNorm:
    """The shortest convex combination of the gradients, exactly: no objective gets worse (MGDA)."""

    def init(self, size: int) -> State:
        return {}

    def __call__(self, gram: Array, state: State, key: int) -> tuple[Array, State]:
        return min_norm(gram), state


class _Box(NamedTuple):
    center: Array
    lower: Array
    upper: Array
    whole: bool  # the box holds the simplex


def _box(size: int, center: Numbers | None, eps: float) -> _Box:
    if not 0.0 <= eps <= 1.0:
        raise BadInput(f"`eps` should lie in [0, 1]. Found {eps}.")
    if center is None:
        return _around(size, eps)
    w0 = as_vector(center, size, "center")
    if w0.min() < 0.0 or abs(w0.sum() - 1.0) > 1e-6:
        raise BadInput(f"`center` should hold weights, none negative, that sum to 1. Found {w0.tolist()}.")
    return _Box(w0, np.maximum(w0 - eps, 0.0), np.minimum(w0 + eps, 1.0), eps == 1.0)


def _pair(G: Array, box: _Box) -> Array:
    """Two objectives: `w_1 = <g_2, g_2 - g_1> / ||g_1 - g_2||^2`, brought into the box."""
    (a, b), (_, c) = G.tolist()
    apart = (a - b) + (c - b)
    if apart <= 0.0:
        return box.center.copy()
    low = max(box.lower[0], 1.0 - box.upper[1])
    high = min(box.upper[0], 1.0 - box.lower[1])
    return np.array([min(max((c - b) / apart, low), high), min(max((a - b) / apart, 1.0 - high), 1.0 - low)])


def _many(G: Array, box: _Box) -> Array:
    norms = np.sqrt(G.diagonal())
    length = norms.min() if box.whole else _lightest(norms, box) @ norms  # the size of what is being minimised
    if length == 0.0:
        return _lightest(norms, box) if norms.any() else box.center.copy()
    unit = np.maximum(norms, length)
    t = length / unit
    bounds = _simplex(len(G)) if box.whole else (np.append(box.lower / t, 1.0), np.append(box.upper / t, 1.0))
    y = solve(Program(G / (unit[:, None] * unit), _zeros(len(G)), t[None], *bounds), box.center / t)
    w = np.minimum(np.maximum(y * t, box.lower), box.upper)
    return np.asarray(w / w.sum())


def _lightest(norms: Array, box: _Box) -> Array:
    """The weights within the box with the least `sum_k w_k ||g_k||`: short gradients are filled first."""
    order = np.argsort(norms)
    room = (box.upper - box.lower)[order]
    w = box.lower.copy()
    w[order] += np.clip(1.0 - w.sum() - (room.cumsum() - room), 0.0, room)
    return w


# What depends on the number of objectives only is built once: it would take as long as the solver for five of them.
@cache
def _around(size: int, eps: float) -> _Box:
    return _box(size, np.full(size, 1.0 / size), eps)


@cache
def _simplex(size: int) -> tuple[Array, Array]:
    return np.append(np.zeros(size), 1.0), np.append(np.full(size, FREE), 1.0)


@cache
def _zeros(size: int) -> Array:
    return np.zeros(size)
