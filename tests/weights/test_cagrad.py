"""CAGrad against a generic optimiser."""

from __future__ import annotations

import numpy as np
import pytest
from gram_families import gradients
from scipy.optimize import minimize

from polyfed.core.errors import BadInput
from polyfed.weights import cagrad


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_serves_the_worst_off_as_well_as_slsqp_does(seed: int, c: float) -> None:
    """`max_d min_k <g_k, d>` over `||d - g_0|| <= c ||g_0||`, straight from the paper's equation (3)."""
    J = gradients("generic", seed, 4, spread=10.0)
    J /= np.linalg.norm(J, axis=1).max()
    mean = J.mean(axis=0)
    radius = c * np.linalg.norm(mean)
    d = cagrad(J @ J.T, c=c) @ J
    constraints = [
        {"type": "ineq", "fun": lambda z: J @ z[:-1] - z[-1]},
        {"type": "ineq", "fun": lambda z: radius**2 - ((z[:-1] - mean) ** 2).sum()},
    ]
    start = np.append(mean, (J @ mean).min())
    best = minimize(lambda z: -z[-1], start, method="SLSQP", constraints=constraints, options={"ftol": 1e-14}).x[-1]
    assert np.linalg.norm(d - mean) == pytest.approx(radius, rel=1e-6)
    assert (J @ d).min() == pytest.approx(best, abs=1e-6)


def test_no_reach_is_the_mean_and_no_direction_is_zero() -> None:
    assert cagrad(np.eye(4), c=0.0).tolist() == [0.25] * 4
    assert cagrad(np.zeros((3, 3))).tolist() == [1 / 3] * 3
    opposed = np.array([[1.0, -0.5], [-0.5, 0.25]])  # g and -g/2: no direction serves both
    assert cagrad(opposed, c=1.5).tolist() == [0.0, 0.0]


def test_bad_reach() -> None:
    with pytest.raises(BadInput, match=r"`c` should not be negative. Found -1"):
        cagrad(np.eye(2), c=-1.0)
