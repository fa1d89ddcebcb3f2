"""Weights that lead to the Pareto point at which `r_1 F_1 = ... = r_M F_M`: one proximal step on their maximum."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from polyfed.core.errors import BadInput
from polyfed.weights.gram import Array, Numbers, as_vector, as_weights, psd
from polyfed.weights.qp import FREE, Program, solve

SHARE, MOST = 0.1, 2.0  # of `still_owed`: measured on quadratics (balance to 1 %) and on two-digits (to 10 %)


def still_owed(owed: Array, weighted: Array) -> Array:
    """How much more each objective counts because it stayed behind: a logarithm, for `losses * exp(owed)`.

    `owed + 0.1 (log r_k F_k - their mean)`, within -2 and 2. Steps of a network do less than their gradients promise,
    and less for some objectives than for others; what predictions get wrong in every round adds up here. At the
    point itself it is 0 again: with anything else, the next step would leave it.

    owed: of the last round; weighted: r * F.
    """
    logs = np.log(np.maximum(weighted, np.finfo(float).tiny))
    some = weighted > 0.0
    behind = np.where(some, logs - logs[some].mean(), 0.0) if some.any() else np.zeros_like(logs)
    return np.clip(owed + SHARE * behind, -MOST, MOST)


def proximal(gram: Numbers, losses: Numbers, preference: Numbers, *, step: float) -> Array:
    """Weights of the step that lowers `max_k r_k F_k` best, as far as gradients tell.

    On the front, `max_k r_k F_k` is least where all `r_k F_k` are equal. A step d of length `step` times a convex
    combination of the gradients makes them `r_k (F_k + <g_k, d>)`; the best such d solves

        min_d max_k r_k (F_k + <g_k, d>) + |d|^2 / (2 rho),   d = -rho sum_k q_k r_k g_k,
        q = argmax over the simplex of  sum_k q_k r_k F_k - rho / 2 |sum_k q_k r_k g_k|^2,

    and w is q_k r_k on the simplex, for the rho with `rho sum_k q_k r_k = step`. Where the weights are positive the
    predicted values are equal, so that near the point the unevenness falls like Newton's error: with the square.

    gram: G; losses: F, none negative; preference: r; an objective with r_k = 0 gets no weight; step: how far the model
    goes along the combination, for FedCMOO eta_s eta_c tau. Ours, beside FedCMOO's linear program (`preference`), whose
    solutions are vertices, so that weights jump and steps of any length overshoot.
    """
    G = psd(gram)
    r, F = as_weights(preference, len(G), "preference"), as_vector(losses, len(G), "losses")
    if F.min() < 0.0:
        raise BadInput(f"A preference is about losses that are not negative. Found {F.tolist()}.")
    if not (step > 0.0 and math.isfinite(step)):
        raise BadInput(f"`step` should be positive. Found {step}.")
    some = r > 0.0
    weights = np.zeros(len(r))
    weights[some] = _balanced(G[np.ix_(some, some)], F[some], r[some] / r.max(), step)
    return weights


def _balanced(G: Array, F: Array, r: Array, step: float) -> Array:
    """For r of at most 1, none of them 0."""
    size, C, h = len(r), np.outer(r, r) * G, r * F
    lower, upper = np.append(np.zeros(size), 1.0), np.append(np.full(size, FREE), 1.0)

    def q(rho: float) -> Array:
        scale = max(rho * C.diagonal().max(), h.max()) or 1.0
        return solve(Program(rho * C / scale, -h / scale, np.ones((1, size)), lower, upper))

    def excess(log: float) -> float:
        return math.exp(log) * float(q(math.exp(log)) @ r) - step

    low, high = math.log(step), math.log(step / r.min())  # sum q_k r_k lies between the least and the largest r, 1
    if excess(low) >= 0.0:
        log = low
    elif excess(high) <= 1e-12 * step:  # all weight on the least r: zero up to rounding
        log = high
    else:
        log = brentq(excess, low, high, xtol=1e-9)
    w = q(math.exp(log)) * r
    return np.asarray(w / w.sum())
