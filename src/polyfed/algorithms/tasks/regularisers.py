"""How tasks are tied: regularisers R(W, Omega) of MOCHA, each with its Mbar and its Omega step.

Here W has one row per task (the paper's transposed), so R = tr(W^T A W) + more, and w(alpha) = Mbar V with
Mbar = A^-1 / 2: R carries no 1/2, so R*(V) = tr(V^T Mbar V) / 2. (The paper's B.2 leaves the 1/2 out, which solves
another problem.)

| name | R(W, Omega) | Omega step |
|---|---|---|
| independent | lam |W|^2 | none: tasks are apart |
| mean (11) | lam1 tr(W^T Omega W) + lam2 |W|^2, Omega = (I - 11^T / m)^2 | none |
| fixed | the same with an Omega of your own | none |
| clustered (12) | lam tr(W^T (eta I + Omega)^-1 W), 0 <= Omega <= I, tr Omega = k | exact, by SVD |
| probabilistic (14) | lam (|W|^2 / sigma^2 + tr(W^T Omega^-1 W)), tr Omega = 1 | (W W^T + e I)^(1/2) / trace |
| graphical (15) | lam (|W|^2 / sigma^2 + tr(W^T Omega W) - d log det Omega) + l1 terms | graphical lasso |

Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", 2017, Appendix B.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.algorithms.tasks.graphical_lasso import graphical_lasso
from polyfed.core.errors import BadInput, NotFinite
from polyfed.core.settings import NotNegative, Positive, settings

Matrix = NDArray[np.float64]


class Regulariser:
    """Quadratic in W for a given Omega; subclasses say Mbar and, where Omega is learned, which is best."""

    name: str
    learns: bool = False
    ties: bool = True  # whether one task's V is in another's model

    def start(self, m: int) -> Matrix:
        """The first Omega."""
        return np.eye(m)

    def mbar(self, omega: Matrix) -> Matrix:
        """Mbar = A^-1 / 2."""
        raise NotImplementedError

    def step(self, W: Matrix) -> Matrix:
        """The Omega that is best for W."""
        if not np.isfinite(W).all():
            raise NotFinite(
                "The tasks' models should be finite where Omega is fitted to them. Found numbers that are not: "
                "the loss may need scaled inputs, or the regulariser a larger lam."
            )
        return self.best(W)

    def best(self, W: Matrix) -> Matrix:
        """The Omega that is best for a finite W."""
        raise NotImplementedError

    def weights(self, V: Matrix, mbar: Matrix) -> Matrix:
        """w(alpha) = grad R*(V)."""
        return mbar @ V

    def value(self, W: Matrix, mbar: Matrix) -> float:
        """The part of R that depends on W."""
        return float(np.vdot(W, np.linalg.solve(mbar, W))) / 2

    def slope(self, W: Matrix, mbar: Matrix) -> Matrix:
        """A (sub)gradient of R with respect to W."""
        return np.asarray(np.linalg.solve(mbar, W), dtype=np.float64)

    def alone(self, omega: Matrix, d: int) -> float:
        """The part of R that depends on Omega only."""
        return 0.0


@settings
class Independent(Regulariser):
    """lam |W|^2: every task for itself."""

    name: Literal["independent"] = "independent"
    lam: Positive = 0.1
    ties = False

    def mbar(self, omega: Matrix) -> Matrix:
        return np.eye(len(omega)) / (2 * self.lam)


@settings
class Mean(Regulariser):
    """lam1 tr(W^T Omega W) + lam2 |W|^2, Omega = (I - 11^T / m)^2: tasks near their mean (11)."""

    name: Literal["mean"] = "mean"
    lam1: NotNegative = 0.1
    lam2: Positive = 0.1

    def start(self, m: int) -> Matrix:
        centred = np.eye(m) - np.ones((m, m)) / m
        return centred @ centred

    def mbar(self, omega: Matrix) -> Matrix:
        return _half_inverse(self.lam1 * omega + self.lam2 * np.eye(len(omega)))


@settings
class Fixed(Regulariser):
    """lam1 tr(W^T Omega W) + lam2 |W|^2 with an Omega of your own, symmetric and not negative."""

    omega: list[list[float]]
    name: Literal["fixed"] = "fixed"
    lam1: Positive = 0.1
    lam2: NotNegative = 0.0

    def start(self, m: int) -> Matrix:
        own = np.array(self.omega, dtype=np.float64)
        if own.shape != (m, m) or not np.allclose(own, own.T) or np.linalg.eigvalsh(own)[0] + self.lam2 <= 0:
            raise BadInput(
                f"The regulariser's omega should be symmetric and positive, {m} x {m} for {m} tasks (lam2 > 0 allows "
                f"zero eigenvalues). Found a {own.shape} matrix that is not."
            )
        return own

    def mbar(self, omega: Matrix) -> Matrix:
        return _half_inverse(self.lam1 * omega + self.lam2 * np.eye(len(omega)))


@settings
class Clustered(Regulariser):
    """lam tr(W^T (eta I + Omega)^-1 W), 0 <= Omega <= I, tr Omega = clusters: tasks in so many groups (12)."""

    name: Literal["clustered"] = "clustered"
    lam: Positive = 0.1
    eta: Positive = 0.5
    clusters: Annotated[int, Field(ge=1)] = 2
    learns = True

    def start(self, m: int) -> Matrix:
        if self.clusters > m:
            raise BadInput(f"The regulariser's clusters should be at most the {m} tasks. Found {self.clusters}.")
        return np.eye(m) * (self.clusters / m)

    def mbar(self, omega: Matrix) -> Matrix:
        return (self.eta * np.eye(len(omega)) + omega) / (2 * self.lam)

    def best(self, W: Matrix) -> Matrix:
        """Eigenvectors of W W^T; eigenvalues q_i = clip(c s_i - eta, 0, 1) of singular values s_i, with sum q = k."""
        has_model = np.any(W, axis=1)
        U, s, _ = np.linalg.svd(W[has_model], full_matrices=True)
        q = self._spectrum(np.concatenate([s, np.zeros(len(W) - len(s))]))
        return _with_untied(has_model, (U * q[: len(U)]) @ U.T, q[-1])

    def _spectrum(self, s: Matrix) -> Matrix:
        m, k = len(s), self.clusters
        support = s > 1e-12 * max(s[0], np.finfo(float).tiny)
        r = int(support.sum())
        if r <= k:  # all that helps gets 1; the rest of the trace is spread, as it costs nothing
            spread: Matrix = np.where(support, 1.0, (k - r) / max(m - r, 1))
            return spread
        ends = np.sort(np.concatenate([self.eta / s[:r], (1 + self.eta) / s[:r]]))
        sums = np.array([np.clip(c * s - self.eta, 0, 1).sum() for c in ends])
        c = np.interp(k, sums, ends)  # the sum grows with c, linearly between the ends
        q: Matrix = np.clip(c * s - self.eta, 0, 1)
        return q


@settings
class Probabilistic(Regulariser):
    """lam (|W|^2 / sigma^2 + tr(W^T Omega^-1 W)), tr Omega = 1: Omega is a covariance, signs and all (14).

    floor: e = floor times the mean eigenvalue of W W^T (without it fewer features than tasks would freeze W's span).
    """

    name: Literal["probabilistic"] = "probabilistic"
    lam: Positive = 0.1
    sigma: Positive = 10.0
    floor: Annotated[float, Field(gt=0, le=1)] = 1e-6
    learns = True

    def start(self, m: int) -> Matrix:
        return np.eye(m) / m

    def mbar(self, omega: Matrix) -> Matrix:
        return _symmetric(np.linalg.solve(omega / self.sigma**2 + np.eye(len(omega)), omega)) / (2 * self.lam)

    def best(self, W: Matrix) -> Matrix:
        has_model = np.any(W, axis=1)
        w, U = np.linalg.eigh(W[has_model] @ W[has_model].T)
        if w.sum() <= 0:  # no model yet, or none whose squares are above zero
            return self.start(len(W))
        least = self.floor * w.sum() / len(W)
        root = np.sqrt(np.maximum(w, 0) + least)
        trace = root.sum() + np.sqrt(least) * (~has_model).sum()
        return _with_untied(has_model, (U * (root / trace)) @ U.T, np.sqrt(least) / trace)


@settings
class Graphical(Regulariser):
    """lam (|W|^2 / sigma^2 + tr(W^T Omega W) - d log|Omega|) + lam1 |W|_1 + lam2 |Omega|_1: a sparse precision (15).

    The Omega step is the graphical lasso of W W^T / d; adding a = lam2 / (lam d) to the diagonal penalises
    it as the paper does. With lam1 > 0, w(alpha) is a lasso over the tasks for every feature, solved at the server.
    """

    name: Literal["graphical"] = "graphical"
    lam: Positive = 0.1
    sigma: Positive = 10.0
    lam1: NotNegative = 0.0
    lam2: Positive = 0.1
    learns = True

    def mbar(self, omega: Matrix) -> Matrix:
        return _half_inverse(self.lam * (np.eye(len(omega)) / self.sigma**2 + omega))

    def best(self, W: Matrix) -> Matrix:
        has_model, d = np.any(W, axis=1), W.shape[1]
        a = self.lam2 / (self.lam * d)
        S = W[has_model] @ W[has_model].T / d
        return _with_untied(has_model, graphical_lasso(S + a * np.eye(len(S)), a), 1 / a)

    def weights(self, V: Matrix, mbar: Matrix) -> Matrix:
        """argmax <V, W> - tr(W^T A W) - lam1 |W|_1, one task after another for all features at once."""
        W = mbar @ V
        if not self.lam1:
            return W
        A = _half_inverse(mbar)
        for _ in range(10_000):
            before = W.copy()
            for t in range(len(W)):
                rest = V[t] - 2 * (A[t] @ W - A[t, t] * W[t])
                W[t] = np.sign(rest) * np.maximum(np.abs(rest) - self.lam1, 0) / (2 * A[t, t])
            if np.abs(W - before).max() <= 1e-14 * max(1.0, np.abs(W).max()):
                break
        return W

    def value(self, W: Matrix, mbar: Matrix) -> float:
        return Regulariser.value(self, W, mbar) + self.lam1 * float(np.abs(W).sum())

    def slope(self, W: Matrix, mbar: Matrix) -> Matrix:
        return Regulariser.slope(self, W, mbar) + self.lam1 * np.sign(W)

    def alone(self, omega: Matrix, d: int) -> float:
        return float(self.lam2 * np.abs(omega).sum() - self.lam * d * np.linalg.slogdet(omega)[1])


AnyRegulariser = Annotated[
    Independent | Mean | Fixed | Clustered | Probabilistic | Graphical, Field(discriminator="name")
]
KINDS: dict[str, Any] = {
    "independent": Independent, "mean": Mean, "fixed": Fixed,
    "clustered": Clustered, "probabilistic": Probabilistic, "graphical": Graphical,
}  # fmt: skip


def _with_untied(has_model: Any, tied: Matrix, own: float) -> Matrix:
    """Omega of all tasks from that of the tasks with a model; the others (w_t = 0) have an entry of the diagonal only.

    Decomposing all of W would leave rounding errors in their rows, and Mbar V would make a model of those.
    """
    omega = np.diag(np.where(has_model, 0.0, own))
    omega[np.ix_(has_model, has_model)] = tied
    return _symmetric(omega)


def _symmetric(A: Any) -> Matrix:
    both: Matrix = (A + A.T) / 2
    return both


def _half_inverse(A: Matrix) -> Matrix:
    return _symmetric(np.linalg.inv(A)) / 2
