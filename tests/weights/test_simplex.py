"""Projection on the simplex."""

from __future__ import annotations

import numpy as np
import pytest
from gram_families import golden
from hypothesis import given
from hypothesis import strategies as st

from polyfed.core.errors import BadInput
from polyfed.weights import project_simplex

vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


def test_golden() -> None:
    for case in golden("simplex_projection.json"):
        np.testing.assert_allclose(project_simplex(case["v"]), case["proj"], atol=1e-12)


@given(vectors, st.integers(0, 7))
def test_nearest_point(v: list[float], corner: int) -> None:
    """w is the projection when no corner e of the simplex has `<v - w, e - w> > 0`."""
    w = project_simplex(v)
    assert w.min() >= 0.0
    assert w.sum() == pytest.approx(1.0, abs=1e-12)
    towards = np.eye(len(v))[corner % len(v)] - w
    assert (np.array(v) - w) @ towards <= 1e-9 * max(1.0, np.abs(v).max())


@given(vectors, st.floats(-100.0, 100.0))
def test_a_common_shift_and_a_second_projection_change_nothing(v: list[float], shift: float) -> None:
    w = project_simplex(v)
    np.testing.assert_allclose(project_simplex(np.array(v) + shift), w, atol=1e-9)
    np.testing.assert_allclose(project_simplex(w), w, atol=1e-12)


def test_one_entry_is_exactly_one() -> None:
    assert project_simplex([0.3]).tolist() == [1.0]


@pytest.mark.parametrize("v", [[], [float("nan")], [[1.0]]])
def test_bad_vectors(v: list[float]) -> None:
    with pytest.raises(BadInput, match="has a projection"):
        project_simplex(v)
