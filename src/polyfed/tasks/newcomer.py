"""A new task's weights from its few rows, the other tasks' weights W staying as they are.

    min over w, Omega' of  c sum_i l(w^T x_i, y_i) + R([W; w], Omega')

is the problem (1) of MOCHA for m + 1 tasks, in which only the new one may move. R is a Gaussian prior with the tasks'
covariance Mbar', so for a given Omega' it is, but for a constant, a pull towards a mean of the others:

    R = |w - mu|^2 / 2s,    P = Mbar'^-1,    s = 1 / P_nn,    mu = -s sum_t P_nt w_t.

Where Omega is learned, w and Omega' take turns as in MOCHA, beginning with the task alone. `mean` has Omega' for m + 1
tasks at once: mu is a part of the others' mean. With several classes w has the weights of all side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyfed.algorithms.tasks.regularisers import Graphical, Matrix, Regulariser
from polyfed.core.errors import BadInput
from polyfed.core.keys import client_key
from polyfed.work.linear.examples import Examples
from polyfed.work.linear.losses import Loss

PASSES = 20  # over the rows, between two looks at the gap


@dataclass(frozen=True)
class Newcomer:
    """The new task's rows, one `Examples` for each class that has a model, and how they are fitted.

    Args:
        rows: the same rows, with targets for each model.
        loss, smoothing, scale: the loss, the smoothed hinge's, and c.
        tol: the relative duality gap, and the change of w relative to w, to stop at.
        max_iter: looks at the gap, at most.
        omega_steps: turns of w and Omega', at most.
        seed: of the rows' order.
    """

    rows: Sequence[Examples]
    loss: Loss
    smoothing: float
    scale: float
    tol: float
    max_iter: int
    omega_steps: int
    seed: int

    def joined(self, W: Matrix, rule: Regulariser) -> tuple[Matrix, Matrix]:
        """w (models x features) and Omega', given the others' W (tasks x models x features)."""
        if isinstance(rule, Graphical) and rule.lam1:
            raise BadInput("A task can be added where the regulariser's lam1 is 0. Found lam1 > 0: fit all tasks anew.")
        others = W.reshape(len(W), -1)
        omega = rule.start(len(W) + 1)
        w = self._best(others, rule.mbar(omega))
        for _ in range(self.omega_steps if rule.learns else 0):
            before, omega = w, rule.step(np.vstack([others, w]))
            w = self._best(others, rule.mbar(omega))
            if np.linalg.norm(w - before) <= self.tol * np.linalg.norm(w):
                break
        return w.reshape(W.shape[1:]), omega

    def _best(self, others: Matrix, mbar: Matrix) -> Matrix:
        """w for a given Omega', all models side by side."""
        P = np.linalg.inv(mbar)
        s = 1 / float(P[-1, -1])
        mean = np.split(-s * (P[-1, :-1] @ others), len(self.rows))
        return np.concatenate([self._fitted(rows, mu, s) for rows, mu in zip(self.rows, mean, strict=True)])

    def _fitted(self, rows: Examples, mu: Matrix, s: float) -> Matrix:
        """min over w of c sum_i l(w^T x_i, y_i) + |w - mu|^2 / 2s, by dual coordinate steps from w = mu."""
        beta, w, y, g = np.zeros(len(rows.y)), mu.copy(), rows.y, self.smoothing
        for turn in range(self.max_iter):
            key = client_key(self.seed, turn, 0)
            steps = PASSES * len(y)
            rows.sdca(beta, w, s=s, c=self.scale, loss=self.loss, g=g, steps=steps, key=key, live=True)
            w = mu + s * self.scale * rows.combine(beta)  # as the duals have it, without what rounding left
            z = rows.margins(w)
            loss = self.loss.value(z, y, g)
            gap = self.scale * float((loss + self.loss.conjugate(beta, y, g) + beta * z).sum())
            if gap <= self.tol * (self.scale * float(loss.sum()) + float((w - mu) @ (w - mu)) / (2 * s)):
                break
        return w
