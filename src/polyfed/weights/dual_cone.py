"""The projection behind UPGrad and DualProj."""

from __future__ import annotations

import numpy as np

from polyfed.weights.gram import Array, Numbers, as_vector, psd
from polyfed.weights.qp import FREE, Program, solve


def project_dual_cone(gram: Numbers, u: Numbers) -> Array:
    """Weights of the direction nearest to `sum_k u_k g_k` that makes no objective worse.

    `argmin_v v^T G v` over `v >= u`.

    gram: G; u: weights, none negative. Quinton and Rey (2024), Jacobian Descent, Proposition 1. Solved for
    `v_k ||g_k||`, without the ridge of 1e-4 that TorchJD adds: a singular G is solved too.
    """
    G = psd(gram)
    size, start = len(G), as_vector(u, len(G), "u")
    norms = np.sqrt(G.diagonal())
    units = np.where(norms > 0.0, norms, 1.0)
    length = (start * units).max() or 1.0
    C, lower = G / np.outer(units, units), start * units / length
    y = solve(Program(C, np.zeros(size), np.zeros((0, size)), lower, np.full(size, FREE)))
    return np.asarray(np.maximum(y * length / units, start))
