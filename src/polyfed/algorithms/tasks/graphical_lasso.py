"""The graphical lasso: a sparse precision matrix, by the alternating direction method of multipliers.

min over positive X of tr(S X) - log det X + alpha sum_{i != j} |X_ij|. Boyd, Parikh, Chu, Peleato, Eckstein,
"Distributed Optimization and Statistical Learning via the Alternating Direction Method of Multipliers", 2011, 6.5.

scikit-learn's coordinate descent gives up where models are nearly dependent, as related tasks' are, and takes longer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

STEPS = 2000
TOLERANCE = 1e-8  # relative, of both residuals
FARTHEST = 1e8  # the step size from that of variances of 1: where S is singular but for rounding, it would not end


def graphical_lasso(S: Matrix, alpha: float) -> Matrix:
    """The precision matrix: positive, with exact zeros; where that takes too long, one near it that is positive.

    Args:
        S: a positive covariance matrix.
        alpha: the penalty of entries off the diagonal.
    """
    m = len(S)
    scale = float(S.trace()) / m if m else 1.0  # variances of about 1 need about the same rho
    S, threshold = S / scale, alpha / scale * (1 - np.eye(m))
    Z, U, rho = np.eye(m), np.zeros((m, m)), 1.0
    X = Z
    for _ in range(STEPS):
        w, Q = np.linalg.eigh(rho * (Z - U) - S)
        large = (np.abs(w) + np.sqrt(w * w + 4 * rho)) / 2
        X = (Q * np.where(w > 0, large / rho, 1 / large)) @ Q.T  # rho X - X^-1 = rho (Z - U) - S
        before, Y = Z, X + U
        Z = np.sign(Y) * np.maximum(np.abs(Y) - threshold / rho, 0)
        U = Y - Z
        primal = _share(X - Z, X)
        dual = _share(Z - before, U)
        if max(primal, dual) <= TOLERANCE:
            break
        turn = 2.0 if primal > 10 * dual else 0.5 if dual > 10 * primal else 1.0  # 3.4.1: keep residuals alike
        if 1 / FARTHEST <= rho * turn <= FARTHEST:
            rho, U = rho * turn, U / turn
    return (Z if _positive(Z) else X) / scale


def _share(change: Matrix, whole: Matrix) -> float:
    return float(np.linalg.norm(change)) / max(float(np.linalg.norm(whole)), 1e-300)


def _positive(A: Matrix) -> bool:
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return False
    return True
