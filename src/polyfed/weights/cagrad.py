"""Conflict-averse gradient descent from a Gram matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from polyfed.core.errors import BadInput
from polyfed.core.settings import NotNegative
from polyfed.weights.gram import Array, Numbers, psd
from polyfed.weights.qp import FREE, Program, solve
from polyfed.weights.weighting import Weighting, WeightingState, weightings

STATIONARY = 1e-6  # of the longest gradient: what counts as no direction at all


def cagrad(gram: Numbers, *, c: float = 0.5) -> Array:
    """Weights of the direction within `c ||g_0||` of the mean gradient g_0 that serves the worst-off objective best.

    `d = g_0 + (c ||g_0|| / ||g_w||) g_w`, where `g_w = sum_k w_k g_k` and w on the simplex minimises
    `F(w) = <g_0, g_w> + c ||g_0|| ||g_w||`.

    gram: G; c: 0 is the mean. Liu et al. (2021), Algorithm 1. TorchJD hands F to cvxpy; we note that w minimises
    `||g_w||^2 / 2 + (tau / (c ||g_0||)) <g_0, g_w>` for `tau = ||g_w||`, a program our solvers take, and look for the
    tau at which `||g_w|| - tau` changes sign. Where g_w vanishes, at a Pareto-stationary point, the weights are 0, as
    in TorchJD.
    """
    if not c >= 0.0:
        raise BadInput(f"`c` should not be negative. Found {c}.")
    G = psd(gram)
    size, longest = len(G), np.sqrt(G.diagonal().max())
    mean = np.full(size, 1.0 / size)
    reach = c * np.sqrt(mean @ G @ mean)
    if reach <= STATIONARY * longest:
        return mean
    w, tau = _inner(G / longest**2, reach / longest)
    return mean + (reach / (tau * longest)) * w if tau > 0.0 else np.zeros(size)


@weightings("cagrad")
@dataclass(frozen=True)
class CAGrad(Weighting):
    """CAGrad: the best direction for the worst-off objective within a ball around the mean (Liu et al. 2021).

    Args:
        c: the radius of the ball, as a part of the mean gradient's length; 0 for the mean itself.
    """

    c: NotNegative = 0.5

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        return cagrad(gram, c=self.c), state


def _inner(G: Array, reach: float) -> tuple[Array, float]:
    """w and ||g_w|| at the minimum of F, the longest gradient having length 1; ||g_w|| = 0 if it vanishes there."""
    size = len(G)
    lower, upper = np.append(np.zeros(size), 1.0), np.append(np.full(size, FREE), 1.0)

    def weights(tau: float) -> Array:
        return solve(Program(G, (tau / reach) * G.mean(axis=1), np.ones((1, size)), lower, upper))

    def excess(tau: float) -> float:
        w = weights(tau)
        return math.sqrt(max(float(w @ G @ w), 0.0)) - tau

    if excess(STATIONARY) <= 0.0:
        return weights(STATIONARY), 0.0
    tau = 1.0 if excess(1.0) >= 0.0 else brentq(excess, STATIONARY, 1.0, xtol=1e-12)
    return weights(tau), tau
