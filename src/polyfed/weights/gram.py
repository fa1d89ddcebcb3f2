"""Gram matrices as the server holds them: read, repaired, restricted, judged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from polyfed.core.errors import BadInput, NotFinite

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = "npt.ArrayLike | torch.Tensor"


def psd(gram: Numbers) -> Array:
    """The Gram matrix, symmetrised and without negative eigenvalues.

    `G <- D V max(L, 0) V^T D` with `V L V^T = D^-1 (G + G^T)/2 D^-1` and D the norms of the gradients.

    gram: G, M x M, from compressed, two-way or float32 gradients, so perhaps a little indefinite.
    We clip at unit norms, not at the scale of the largest gradient as is usual: rounding is then relative to each
    objective, and one that is 1e6 times smaller than another is not drowned by it.
    """
    G = symmetric(gram)
    return G if _definite(G) else _clipped(G)


def symmetric(gram: Numbers) -> Array:
    """`(G + G^T) / 2` in float64."""
    G = as_gram(gram)
    return np.asarray(0.5 * (G + G.T))


def as_gram(gram: Numbers) -> Array:
    """A square matrix of finite float64 numbers, from numpy or torch; anything else is refused in a sentence."""
    G = as_array(gram)
    if G.ndim != 2 or G.shape[0] != G.shape[1] or not len(G):
        raise BadInput(f"A Gram matrix should be square, one row per objective. Found shape {G.shape}.")
    if not math.isfinite(np.vdot(G, G)) and not np.isfinite(G).all():  # the product first: a third of the time
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(G))[0])
        raise NotFinite(f"A Gram matrix should hold finite numbers. Found {G[where]} at {where}; lower the step size.")
    return G


def as_vector(values: Numbers, size: int, name: str) -> Array:
    """`size` finite float64 numbers, or a sentence that names them."""
    v = as_array(values)
    if v.shape != (size,) or not np.isfinite(v).all():
        raise BadInput(f"`{name}` should hold {size} finite numbers, one per objective. Found {v.tolist()}.")
    return v


def as_weights(values: Numbers, size: int, name: str) -> Array:
    """A vector with no negative entry and not all zero."""
    v = as_vector(values, size, name)
    if v.min() < 0.0 or not v.any():
        raise BadInput(f"`{name}` should have no negative entry, and not all be zero. Found {v.tolist()}.")
    return v


def as_array(values: Numbers) -> Array:
    """Numbers of numpy or torch (any device, with or without a graph) as a float64 array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values, dtype=np.float64)


def frank_wolfe_gap(gram: Numbers, weights: Numbers) -> float:
    """How far weights are from min-norm: `w^T G w - min_k (G w)_k`, an upper bound on `w^T G w - w*^T G w*`, 0 at w*.

    gram: G; weights: w on the simplex. Jaggi (2013), equation (2), halved, the gradient being 2 G w.
    """
    G = symmetric(gram)
    w = as_vector(weights, len(G), "weights")
    Gw = G @ w
    return float(w @ Gw - Gw.min())


def restrict(array: Numbers, present: npt.ArrayLike) -> Array:
    """The rows and columns (every axis counts objectives) of the objectives somebody answered for."""
    values, here = as_array(array), np.flatnonzero(present)
    return values[np.ix_(*[here] * values.ndim)]


def extend(part: Numbers, present: npt.ArrayLike, into: Array | None = None) -> Array:
    """The inverse of `restrict`: the others keep what `into` holds for them, 0 if it is not given."""
    values, here = as_array(part), np.flatnonzero(present)
    whole = np.zeros((np.size(present),) * values.ndim) if into is None else into.copy()
    whole[np.ix_(*[here] * values.ndim)] = values
    return whole


def _definite(G: Array) -> bool:
    return int(lapack.dpotrf(G)[1]) == 0  # Cholesky: microseconds, where eigenvalues take as long as the solver


def _clipped(G: Array) -> Array:
    norms = _norms(G)
    scale = np.outer(norms, norms)
    values, vectors = np.linalg.eigh(np.divide(G, scale, out=np.zeros_like(G), where=scale > 0.0))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T * scale)


def _norms(G: Array) -> Array:
    """Norms of the gradients; larger where an entry of G breaks Cauchy-Schwarz, and by more than rounding."""
    squares = np.maximum(G.diagonal(), 0.0)
    norms, size = np.sqrt(squares), np.abs(G)
    excess = np.where(size > (1.0 + 1e-6) * np.outer(norms, norms), size, 0.0).max(axis=1)
    return np.asarray(np.sqrt(np.maximum(squares, excess)))
