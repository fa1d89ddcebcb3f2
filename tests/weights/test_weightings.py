"""What each registered weighting promises: properties stated once, applied by a table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gram_families import FAMILIES, VECTORS, gram, lengths

from polyfed.core.errors import BadInput
from polyfed.weights import preference, psd, weigh, weightings
from polyfed.weights.gram import Array

Rule = Callable[[Array], Array]
SAFE = ("generic", "single")  # full rank: where a rule divides by eigenvalues it may ask for them
OPTIONS = {"fixed": {"weights": (0.1, 0.2, 0.3, 0.25, 0.15)}}
SIZE = 5


def rule(name: str) -> Rule:
    """Weights of the first round, as a function of G alone."""
    if name == "preference":
        return lambda G: preference(G, np.arange(1.0, 6.0), np.ones(SIZE)).weights
    weighting = weightings[name](**OPTIONS.get(name, {}))
    return lambda G: weigh(weighting, G, weighting.init(SIZE), key=3)[0]


def direction(G: Array, w: Array) -> float:
    """||sum_k w_k g_k|| relative to the lengths that went into it."""
    return float(np.sqrt(max(float(w @ psd(G) @ w), 0.0)) / max(float(np.abs(w) @ lengths(psd(G))), 1e-300))


def finite(f: Rule, G: Array) -> None:
    assert np.isfinite(f(G)).all()


def on_the_simplex(f: Rule, G: Array) -> None:
    w = f(G)
    assert w.min() >= 0.0
    assert w.sum() == pytest.approx(1.0, abs=1e-9)


def same_under_permutation(f: Rule, G: Array) -> None:
    order = np.array([3, 0, 4, 2, 1])
    back = np.zeros(SIZE)
    back[order] = f(G[np.ix_(order, order)])
    assert direction(G, f(G) - back) * np.abs(f(G) - back).max() <= 1e-6


def same_at_any_scale(f: Rule, G: Array) -> None:
    for scale in (1e-8, 1e8):
        difference = f(scale * G) - f(G)
        assert direction(G, difference) * np.abs(difference).max() <= 1e-6


def conflicts_with_none(f: Rule, G: Array) -> None:
    P, w = psd(G), f(G)
    assert (P @ w >= -1e-7 * lengths(P) * max(w @ lengths(P), 1e-12 * lengths(P).max())).all()


EXACT = (on_the_simplex, same_under_permutation, same_at_any_scale, conflicts_with_none)
PROMISES: dict[str, tuple[tuple[str, ...], tuple[Callable[[Rule, Array], None], ...]]] = {
    "min-norm": (FAMILIES, EXACT),
    "pgd": (FAMILIES, (on_the_simplex, same_under_permutation)),
    "preference": (FAMILIES, (on_the_simplex, same_at_any_scale)),
    "uniform": (FAMILIES, (on_the_simplex, same_under_permutation, same_at_any_scale)),
    "mean": (FAMILIES, (on_the_simplex, same_under_permutation, same_at_any_scale)),
    "sum": (FAMILIES, (same_under_permutation, same_at_any_scale)),
    "fixed": (FAMILIES, (on_the_simplex, same_at_any_scale)),
    "cagrad": (FAMILIES, (finite, same_under_permutation, same_at_any_scale)),
    "upgrad": (FAMILIES, (same_under_permutation, same_at_any_scale, conflicts_with_none)),
    "dualproj": (FAMILIES, (same_under_permutation, same_at_any_scale, conflicts_with_none)),
    "imtl-g": (SAFE, (finite, same_under_permutation, same_at_any_scale)),
    "aligned-mtl": (SAFE, (finite, same_under_permutation, same_at_any_scale)),
    "mgda": (tuple(VECTORS), (on_the_simplex, same_at_any_scale)),
    "pcgrad": (FAMILIES, (finite, same_at_any_scale)),
    "gradvac": (FAMILIES, (finite,)),
    "krum": (SAFE, (on_the_simplex, same_under_permutation, same_at_any_scale)),
    "random": (FAMILIES, (on_the_simplex, same_at_any_scale)),
    "fairgrad": (SAFE, (finite, same_under_permutation)),
}
CASES = [
    (name, family, promise)
    for name, (families, promises) in PROMISES.items()
    for family in families
    for promise in promises
]


@pytest.mark.parametrize(("name", "family", "promise"), CASES)
def test_keeps_its_promises(name: str, family: str, promise: Callable[[Rule, Array], None]) -> None:
    for seed in range(3):
        promise(rule(name), gram(family, seed, SIZE, spread=10.0**seed))


def test_the_table_is_complete_and_every_name_has_a_line_of_help() -> None:
    assert set(PROMISES) - {"preference"} == set(weightings)
    assert all(weightings.help(name).endswith(".") for name in weightings)


@pytest.mark.parametrize("name", sorted(set(PROMISES) - {"preference", "krum"}))
def test_an_absent_objective_gets_nothing_and_changes_nothing(name: str) -> None:
    """Two rounds, the second without objective 1, whose row of G may hold anything."""
    weighting, G = weightings[name](**OPTIONS.get(name, {})), gram("generic", 0, SIZE)
    present = np.array([True, False, True, True, True])
    _, state = weigh(weighting, G, weighting.init(SIZE), key=1)
    holed = np.where(np.outer(present, present), G, np.nan)
    w, after = weigh(weighting, holed, state, key=2, present=present)
    assert w[1] == 0.0
    assert np.isfinite(w).all()
    assert {n: v.shape for n, v in after.items()} == {n: v.shape for n, v in state.items()}
    assert all((after[n][1] == state[n][1]).all() for n in after)


def test_nobody_present_is_no_weight() -> None:
    w, state = weigh(weightings["pgd"](), np.eye(2), {"weights": np.array([0.3, 0.7])}, present=[False, False])
    assert w.tolist() == [0.0, 0.0]
    assert state["weights"].tolist() == [0.3, 0.7]


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"Unknown weighting 'min-nrom'. Did you mean 'min-norm'\?"):
        weightings["min-nrom"]


def test_fixed_weights_are_checked_and_shared_out() -> None:
    with pytest.raises(BadInput, match="`weights` should hold 3 finite numbers"):
        weightings["fixed"](weights=(1.0, 2.0)).init(3)
    with pytest.raises(BadInput, match="`weights` should have no negative entry"):
        weightings["fixed"](weights=(1.0, -2.0)).init(2)
    fixed = weightings["fixed"](weights=(1.0, 1.0, 2.0))
    assert weigh(fixed, np.eye(3), fixed.init(3), present=[True, False, True])[0].tolist() == [1 / 3, 0.0, 2 / 3]
    alone = weightings["fixed"](weights=(0.0, 1.0))
    assert weigh(alone, np.eye(2), alone.init(2), present=[True, False])[0].tolist() == [0.0, 0.0]
