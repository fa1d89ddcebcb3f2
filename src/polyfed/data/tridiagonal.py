"""The strongly convex testbed of multi-model federated learning: quadratics along a chain, with a known minimiser.

Bhuyan, Moharir, Joshi, "Multi-Model Federated Learning with Provable Guarantees", 2022, Section 6.1, after Li et al.,
"On the Convergence of FedAvg on Non-IID Data", 2020. Client k = 1..N has

    F_k(w) = 1/2 (w^T A_k w - 2 b_k^T w) + mu/2 |w|^2,  w in R^(Np+1)      (9)

with A_k = B_k, a path's Laplacian on the coordinates (k-1)p+1 .. kp+1, plus E_{1,1} for k = 1 and E_{Np+1,Np+1} for
k = N (7), and b_1 = e_1, the others 0 (8). The whole, F = 1/N sum_k F_k (4), is tridiagonal: no client sees more than
its stretch of the chain. Client 1 alone has a linear term, and so, at first, a gradient some 1e5 times as long as the
others': what the guard would take for an attack, so that runs need guard = "off".
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.core.problem import Metric, Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets
from polyfed.data.quadratic import minimiser, quadratic_loss, weighted_minimiser

Matrix = NDArray[np.float64]


def excess(w: Tensor, target: Tensor, least: float) -> Tensor:
    """F(w) - F*, whose logarithm to base 10 is the gap (10); over clients its mean is the whole's."""
    return quadratic_loss(w, target) - least


@datasets("tridiagonal")
def tridiagonal(
    *,
    users: Annotated[int, Field(ge=2)] = 24,
    p: Annotated[int, Field(ge=1)] = 4,
    mu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-4,
) -> Dataset:
    """The multi-model paper's quadratics, one a client; model 'point', objective 'f', metric 'excess'; key 'user'.

    The server's one row is F itself, so that its evaluation is exact.

    Args:
        users: N, the clients along the chain.
        p: links of a client's stretch of the chain; the point has N p + 1 numbers.
        mu: the strength of the term mu/2 |w|^2, and so of convexity.
    """
    check_room(2 * users * (users * p + 2) ** 2, "data.users and data.p")
    each = chain(users, p, mu)
    target = np.concatenate([each, each.mean(0, keepdims=True)])
    least = value(each.mean(0), minimiser({"f": each}, {"f": 1.0}))
    objective = Objective("f", quadratic_loss, {"excess": Metric(partial(excess, least=least), "lower")})
    owner = np.arange(users + 1)
    known = partial(weighted_minimiser, target)
    x = np.zeros((users + 1, users * p + 1), dtype=np.float32)
    return Dataset(x, {"f": target}, (objective,), train=users, keys={"user": owner}, minimiser=known)


def chain(N: int, p: int, mu: float) -> Matrix:
    """One row a client: A_k + mu I, row by row, then b_k."""
    d = N * p + 1
    A = np.broadcast_to(mu * np.eye(d), (N, d, d)).copy()
    b = np.zeros((N, d))
    for k in range(N):
        A[k, k * p : (k + 1) * p + 1, k * p : (k + 1) * p + 1] += _path(p + 1)
    A[0, 0, 0] += 1
    A[-1, -1, -1] += 1
    b[0, 0] = 1
    return np.concatenate([A.reshape(N, d * d), b], 1)


def _path(n: int) -> Matrix:
    """The Laplacian of a path of n nodes."""
    ends: Matrix = np.diag([1.0] + [2.0] * (n - 2) + [1.0]) - np.eye(n, k=1) - np.eye(n, k=-1)
    return ends


def value(row: Matrix, w: Matrix) -> float:
    """1/2 w^T A w - b^T w for one row (A, b)."""
    A, b = row[: w.size**2].reshape(w.size, w.size), row[w.size**2 :]
    return float(w @ A @ w / 2 - b @ w)
