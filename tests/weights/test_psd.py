"""Repairing, restricting and judging Gram matrices."""

from __future__ import annotations

import numpy as np
import pytest
from gram_families import gram, grams, lengths
from hypothesis import given, settings

from polyfed.core.errors import BadInput
from polyfed.weights import extend, frank_wolfe_gap, psd, restrict
from polyfed.weights.gram import Array


def at_unit_norms(G: Array) -> Array:
    norms = np.where(lengths(G) > 0.0, lengths(G), 1.0)
    scaled: Array = G / np.outer(norms, norms)
    return scaled


@settings(max_examples=200, deadline=None)
@given(grams())
def test_symmetric_without_negative_eigenvalues_and_done_once(G: Array) -> None:
    P = psd(G)
    assert (P == P.T).all() or np.allclose(P, P.T, rtol=0, atol=1e-14 * np.abs(P).max())
    assert np.linalg.eigvalsh(at_unit_norms(P)).min() >= -1e-12
    np.testing.assert_allclose(at_unit_norms(psd(P)), at_unit_norms(P), atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(grams(families=("generic", "dependent", "duplicated", "antipodal", "one_zero", "zero")))
def test_a_gram_matrix_is_left_alone_however_short_a_gradient(G: Array) -> None:
    norms = np.outer(lengths(G), lengths(G))
    assert (np.abs(psd(G) - G) <= 1e-13 * norms).all()


def test_clipping_keeps_the_positive_part() -> None:
    np.testing.assert_allclose(psd([[1.0, -2.0], [-2.0, 1.0]]), [[1.5, -1.5], [-1.5, 1.5]], atol=1e-12)
    np.testing.assert_allclose(psd([[1.0, 0.4], [0.0, 1.0]]), [[1.0, 0.2], [0.2, 1.0]], atol=1e-12)


def test_the_gap_bounds_how_much_shorter_it_could_be() -> None:
    G = gram("generic", 0, 3)
    some = np.array([0.2, 0.3, 0.5])
    assert frank_wolfe_gap(np.eye(3), np.full(3, 1 / 3)) == pytest.approx(0.0, abs=1e-15)
    assert frank_wolfe_gap(G, some) == pytest.approx(some @ G @ some - (G @ some).min())
    with pytest.raises(BadInput, match="`weights` should hold 3 finite numbers"):
        frank_wolfe_gap(G, [1.0])


def test_restrict_and_extend_are_inverse() -> None:
    G, present = gram("generic", 0, 4), [True, False, True, True]
    part = restrict(G, present)
    assert (part == G[np.ix_([0, 2, 3], [0, 2, 3])]).all()
    assert (restrict(extend(part, present), present) == part).all()
    assert (extend(part, present, G) == G).all()
    assert extend([1.0, 2.0, 3.0], present).tolist() == [1.0, 0.0, 2.0, 3.0]
    assert extend(restrict(np.array(7.0), present), present) == 7.0  # a count has no axis
