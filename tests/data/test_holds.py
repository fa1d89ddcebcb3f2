"""Objective subsets: who holds what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.errors import BadInput
from polyfed.core.keys import generator
from polyfed.data.build import build_data
from polyfed.data.holds import Holds, draw_holds

steady = settings(derandomize=True, deadline=None, max_examples=50)


def matrix(holds: Holds, clients: int, objectives: int, seed: int = 0) -> np.ndarray:
    names = [f"f{s}" for s in range(objectives)]
    held = draw_holds(holds, clients, names, generator(seed, "holds"))
    assert list(held) == names
    return np.stack([held[name] for name in names], 1)


def test_all_is_nothing_to_say() -> None:
    assert draw_holds("all", 5, ["a", "b"], generator(0)) == {}
    assert draw_holds(1, 5, ["a", "b"], generator(0)) == {}


@steady
@given(st.integers(1, 8), st.integers(0, 60), st.integers(0, 2**40))
def test_one_each_is_balanced(objectives: int, more: int, seed: int) -> None:
    A = matrix("one-each", objectives + more, objectives, seed)
    assert (A.sum(1) == 1).all()
    assert np.ptp(A.sum(0)) <= 1


@steady
@given(st.floats(0.001, 0.999), st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**40))
def test_by_chance_nobody_and_nothing_is_left_out(p: float, clients: int, objectives: int, seed: int) -> None:
    A = matrix(p, clients, objectives, seed)
    assert A.any(0).all()
    assert A.any(1).all()


def test_by_chance_is_as_likely_as_asked() -> None:
    A = matrix(0.4, 100_000, 10)
    assert A.mean(0) == pytest.approx(np.full(10, 0.4), abs=0.01)
    assert np.array_equal(A, matrix(0.4, 100_000, 10))
    assert not np.array_equal(A, matrix(0.4, 100_000, 10, seed=1))


def test_a_given_matrix_reaches_the_federation() -> None:
    table = {"name": "two-digits", "examples": 40, "clients": 3, "holds": [[1, 0], [1, 1], [0, 1]]}
    _, federation, resolved = build_data(table, seed=0)
    assert federation.matrix(["left", "right"]).tolist() == [[True, False], [True, True], [False, True]]
    assert resolved["holds"] == table["holds"]


SENTENCES: list[tuple[Any, str]] = [
    ("some", "data.holds should be 'all' or 'one-each'. Found 'some'."),
    ("0.5", "data.holds should be a valid number. Found '0.5'."),
    (0, "data.holds should be 'all' or 'one-each' or greater than 0"),
    (1.5, "or less than or equal to 1"),
    ([[1, 0], [1, 1]], "data.holds should be 3 rows (clients) of 2 entries (objectives). Found 2 rows of 2 entries."),
    ([[1], [1, 0], [1, 0]], "Found 3 rows of 1 or 2 entries."),
    ([[1, 0], [0, 0], [0, 1]], "each client should hold an objective; client 1 (from 0) holds none."),
    ([[1, 0], [1, 0], [1, 0]], "each objective should have a client; 'right' has none."),
    ([[1, 2], [1, 0], [1, 0]], "data.holds.0.1 should be 0 or 1. Found 2."),
]


@pytest.mark.parametrize(("holds", "sentence"), SENTENCES)
def test_bad_input_is_a_sentence(holds: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        build_data({"name": "two-digits", "examples": 40, "clients": 3, "holds": holds}, seed=0)
    assert sentence in str(caught.value)


def test_one_each_needs_a_client_for_each() -> None:
    with pytest.raises(BadInput, match="needs a client for each of the 2 objectives"):
        build_data({"name": "two-digits", "examples": 40, "clients": 1, "holds": "one-each"}, seed=0)
