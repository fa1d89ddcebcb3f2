"""FedCMOO-Pref's weights: reach a Pareto point at which `r_1 F_1 = ... = r_M F_M`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from polyfed.core.errors import BadInput
from polyfed.weights.gram import Array, Numbers, as_vector, as_weights, psd
from polyfed.weights.min_norm import min_norm

TINY = 1e-12  # share of a loss that is zero, so that its logarithm is finite


@dataclass(frozen=True)
class Preferred:
    """What `preference` found.

    weights: w; mode: "balance" while mu is above the threshold, then "descent"; mu: how uneven r * F is, 0 when even;
    a: the combination of gradients along which mu falls fastest; feasible: False where the program had no solution and
    the weights are those of min-norm.
    """

    weights: Array
    mode: Literal["balance", "descent"]
    mu: float
    a: Array
    feasible: bool


def preference(
    gram: Numbers,
    losses: Numbers,
    preference: Numbers,
    *,
    threshold: float = 0.01,
    band: float = 1.0,
    as_printed: bool = False,
) -> Preferred:
    """Weights that even out `r_k F_k`, or, once they are even, descend in all objectives.

    `max_w w^T G a` (balance) or `w^T G 1` (descent) over the simplex, with `(G w)_k >= 0` for k in J* and
    `(G w)_k >= (G a)_k [J nonempty]` for the other k outside J; in descent `(G w)_k >= 0` for all k.
    `u = r F / sum_k r_k F_k`, `mu = KL(u || 1/M)`, `a_k = r_k (log(u_k M) - mu)`, `J = {k: (G a)_k > 0}`,
    `J* = {k: r_k F_k >= band max_j r_j F_j}`.

    gram: G; losses: F, none negative; preference: r; threshold: the mu that counts as even; band: 1 in the paper, 0.9
    in its code; as_printed: the balancing constraints in descent, too, as in the paper and not in its code. FedCMOO
    (Askin et al. 2025), Algorithms 4 and 8, problem (19). G is symmetrised and clipped, which makes the program
    feasible (min-norm satisfies it); should the solver fail all the same we take min-norm and say so, where their code
    stops.
    """
    G = psd(gram)
    r, F = as_weights(preference, len(G), "preference"), as_vector(losses, len(G), "losses")
    if F.min() < 0.0:
        raise BadInput(f"A preference is about losses that are not negative. Found {F.tolist()}.")
    mu, a = unevenness(r * F, r)
    mode: Literal["balance", "descent"] = "balance" if mu > threshold else "descent"
    gain = a if mode == "balance" else np.ones(len(G))
    if mode == "balance" or as_printed:
        w = best_vertex(G, gain, *balancing(G @ a, r * F, band))
    else:
        w = best_vertex(G, gain, np.arange(len(G)), np.zeros(len(G)))
    return Preferred(min_norm(G) if w is None else w, mode, mu, a, w is not None)


def unevenness(weighted: Array, r: Array) -> tuple[float, Array]:
    """mu and a, from r * F and r."""
    size, total = len(r), weighted.sum()
    u = np.maximum(weighted / total, TINY) if total > 0.0 else np.full(size, 1.0 / size)
    logs = np.log(u * size)
    mu = float(u @ logs)
    return mu, r * (logs - mu)


def balancing(Ga: Array, weighted: Array, band: float) -> tuple[npt.NDArray[np.intp], Array]:
    """The constrained objectives k while balancing, and the least (G w)_k of each."""
    largest = weighted >= band * weighted.max()
    rows = np.flatnonzero(largest | (Ga <= 0.0))
    least = np.where(largest, 0.0, Ga) if (Ga > 0.0).any() else np.zeros(len(Ga))
    return rows, least[rows]


def best_vertex(G: Array, gain: Array, rows: npt.NDArray[np.intp], least: Array) -> Array | None:
    """`argmax_w w^T G gain` over the simplex with `(G w)_k >= least_k` for the given rows; None if there is none."""
    norms = np.sqrt(np.maximum(G.diagonal(), 0.0))
    longest = norms.max() or 1.0
    scale = np.where(norms > 0.0, norms, 1.0)[rows] * longest  # rows of length about 1: tolerances are absolute
    answer = linprog(
        -(G @ gain) / (longest**2 * (np.abs(gain).max() or 1.0)),
        A_ub=-G[rows] / scale[:, None],
        b_ub=-least / scale,
        A_eq=np.ones((1, len(G))),
        b_eq=[1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if answer.status != 0:
        return None
    w = np.maximum(answer.x, 0.0)
    return np.asarray(w / w.sum())
