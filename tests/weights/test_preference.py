"""The preference program of FedCMOO-Pref."""

from __future__ import annotations

import importlib

import numpy as np
import numpy.typing as npt
import pytest
from gram_families import FAMILIES, golden, gram, grams, lengths
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.errors import BadInput
from polyfed.weights import min_norm, preference, psd
from polyfed.weights.gram import Array

module = importlib.import_module("polyfed.weights.preference")


def program(G: Array, losses: Array, r: Array, band: float, mode: str) -> tuple[Array, npt.NDArray[np.int_], Array]:
    """What is maximised, and the rows and bounds of the constraints, written out once more from problem (19)."""
    u = r * losses / (r @ losses)
    a = r * (np.log(u * len(r)) - (u * np.log(u * len(r))).sum())
    if mode == "descent":
        return G @ np.ones(len(r)), np.arange(len(r)), np.zeros(len(r))
    worst, helped = r * losses >= band * (r * losses).max(), G @ a > 0
    rows = np.array([k for k in range(len(r)) if worst[k] or not helped[k]])
    return G @ a, rows, np.array([0.0 if worst[k] or not helped.any() else (G @ a)[k] for k in rows])


def test_golden() -> None:
    for case in golden("pref_lp.json"):
        G, losses, r = (np.array(case[name]) for name in ("G", "losses", "r"))
        found = preference(G, losses, r, threshold=case["eps"], band=0.9)
        assert found.mode == {"bal": "balance", "dom": "descent"}[case["mode"]]
        assert found.mu == pytest.approx(case["mu"], abs=1e-9)
        np.testing.assert_allclose(found.a, case["a"], atol=1e-9)
        # The recorded program took G as it came, even where it is no Gram matrix; so does `best_vertex`.
        gain, rows, least = program(G, losses, r, 0.9, found.mode)
        w = module.best_vertex(G, found.a if found.mode == "balance" else np.ones(len(r)), rows, least)
        assert (G[rows] @ w >= least - 1e-8).all()
        assert w @ gain == pytest.approx(case["objective"], abs=1e-7)


@settings(max_examples=150, deadline=None)
@given(grams(sizes=(2, 8)), st.integers(0, 2**20), st.sampled_from([1.0, 0.9]))
def test_feasible_and_no_worse_than_min_norm(G: Array, seed: int, band: float) -> None:
    rng = np.random.default_rng(seed)
    losses, r = rng.uniform(0.1, 3.0, len(G)), rng.uniform(0.1, 3.0, len(G))
    found = preference(G, losses, r, band=band)
    P, w = psd(G), found.weights
    gain, rows, least = program(P, losses, r, band, found.mode)
    tolerance = 1e-7 * lengths(P).max() * lengths(P)
    assert found.feasible
    assert w.min() >= 0.0
    assert w.sum() == pytest.approx(1.0, abs=1e-12)
    assert (P[rows] @ w >= least - tolerance[rows]).all()
    assert w @ gain >= min_norm(P) @ gain - 1e-6 * np.abs(gain).max()


def test_even_losses_descend_and_uneven_ones_balance() -> None:
    G = gram("generic", 0, 3)
    even, uneven = preference(G, [2.0, 1.0, 4.0], [2.0, 4.0, 1.0]), preference(G, [2.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    assert (even.mode, uneven.mode) == ("descent", "balance")
    assert even.mu == pytest.approx(0.0, abs=1e-12)
    assert uneven.a.argmax() == 2  # the largest r F pulls most


def test_without_a_solution_it_is_min_norm_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.best_vertex(-np.eye(2), np.ones(2), np.arange(2), np.zeros(2)) is None
    monkeypatch.setattr(module, "best_vertex", lambda *program: None)
    G = gram("generic", 0, 3)
    found = preference(G, [1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert not found.feasible
    np.testing.assert_allclose(found.weights, min_norm(G), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_objective_gets_all(family: str) -> None:
    assert preference(gram(family, 0, 1), [0.7], [2.0]).weights.tolist() == [1.0]


@pytest.mark.parametrize(
    ("losses", "r"), [([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [0.0, 1.0]), ([0.0, 0.0], [1.0, 1.0])]
)
def test_a_loss_or_a_preference_of_zero(losses: list[float], r: list[float]) -> None:
    found = preference(np.eye(2), losses, r)
    assert np.isfinite(found.a).all()
    assert found.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("losses", "r", "sentence"),
    [
        ([1.0, 1.0], [1.0, -1.0], r"`preference` should have no negative entry.*Found \[1.0, -1.0\]"),
        ([1.0, 1.0], [0.0, 0.0], "`preference` should .* not all be zero"),
        ([1.0, 1.0], [1.0], "`preference` should hold 2 finite numbers"),
        ([1.0, float("nan")], [1.0, 1.0], "`losses` should hold 2 finite numbers"),
        ([1.0, -2.0], [1.0, 1.0], "losses that are not negative"),
    ],
)
def test_bad_input(losses: list[float], r: list[float], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        preference(np.eye(2), losses, r)
