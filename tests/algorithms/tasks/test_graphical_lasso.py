"""The graphical lasso: optimal by its duality gap, where others give up too; positive, with exact zeros, always."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.covariance import graphical_lasso as coordinate_descent

from polyfed.algorithms.tasks.graphical_lasso import Matrix, graphical_lasso


def covariance(m: int, d: int, rank: int, alpha: float, size: float = 1.0) -> Matrix:
    """As the Omega step has it: of models of so few directions, with the penalty on the diagonal, too."""
    rng = np.random.default_rng(m * d + rank)
    W = size * rng.normal(size=(m, rank)) @ rng.normal(size=(rank, d))
    made: Matrix = W @ W.T / d + alpha * np.eye(m)
    return made


def gap(S: Matrix, X: Matrix, alpha: float) -> float:
    """Primal less dual value at X^-1: of S and the penalty, tr(S X) + alpha |X|_1 - m at the optimum."""
    return float(np.vdot(S, X) - len(S) + alpha * (np.abs(X).sum() - np.abs(X.diagonal()).sum()))


@pytest.mark.parametrize(("m", "d", "rank", "size"), [(30, 9, 9, 5), (10, 50, 3, 1), (20, 50, 2, 1), (139, 28, 4, 1)])
def test_nearly_dependent_models_have_an_optimum_too(m: int, d: int, rank: int, size: float) -> None:
    """Where scikit-learn 1.9 ends with an error."""
    alpha = 1 / d
    S = covariance(m, d, rank, alpha, size)
    X = graphical_lasso(S, alpha)
    assert np.linalg.eigvalsh(X).min() > 0
    assert abs(gap(S, X, alpha)) < 1e-4
    zero, near = X == 0, 1e-4 * S.trace() / m
    assert zero.any()
    slope = S - np.linalg.inv(X)
    assert np.abs(slope)[zero].max() <= alpha + near
    rest = ~zero & ~np.eye(m, dtype=bool)
    np.testing.assert_allclose(slope[rest], -alpha * np.sign(X[rest]), rtol=0, atol=near)
    np.testing.assert_allclose(slope.diagonal(), 0, atol=near)


def test_the_same_as_by_coordinate_descent() -> None:
    S = covariance(8, 40, 8, 0.3)
    expected = coordinate_descent(S, alpha=0.3, tol=1e-10, enet_tol=1e-10, max_iter=1000)[1]
    found = graphical_lasso(S, 0.3)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert ((found == 0) == (expected == 0)).all()


@given(st.integers(0, 8), st.integers(1, 8), st.integers(-6, 6), st.floats(-12, 3))
@settings(max_examples=60, deadline=None)
@example(3, 1, 4, -9.0)  # a step size so small that w + root is 2 w
def test_always_positive(m: int, rank: int, size: int, alpha: float) -> None:
    """Also where it does not get there, of covariances that are singular but for rounding."""
    X = graphical_lasso(covariance(m, 5, rank, 10**alpha, 10.0**size), 10**alpha)
    assert np.isfinite(X).all()
    scale = np.sqrt(np.outer(X.diagonal(), X.diagonal()))
    assert np.linalg.eigvalsh(X / scale).min(initial=1.0) > -1e-9
