"""Min-norm weights: every family of Gram matrices, every solver, with and without a box."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from gram_families import FAMILIES, VECTORS, box, golden, gradients, gram, grams, kkt_residual
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from polyfed.core.errors import BadInput
from polyfed.weights import frank_wolfe_gap, min_norm, psd, qp
from polyfed.weights.gram import Array

module = importlib.import_module("polyfed.weights.min_norm")


def uniform(size: int) -> Array:
    return np.full(size, 1.0 / size)


def check(G: Array, w: Array, lower: Array, upper: Array) -> None:
    assert w.sum() == pytest.approx(1.0, abs=1e-12)
    assert (w >= lower - 1e-9).all()
    assert (w <= upper + 1e-9).all()
    assert kkt_residual(G, w, lower, upper) <= 1e-6


@example(np.array([[103.58449002, -24.21047637, 0], [-24.21047637, 31.90729048, 0], [0, 0, 0]]), 0.5, 31)
@settings(max_examples=400, deadline=None)
@given(grams(sizes=(1, 12)), st.sampled_from([1.0, 0.5, 0.1, 0.01]), st.integers(0, 2**20))
def test_kkt_with_any_box(G: Array, eps: float, seed: int) -> None:
    center = np.random.default_rng(seed).dirichlet(np.ones(len(G))) if seed % 2 else None
    w = min_norm(G, center=center, eps=eps)
    check(G, w, *box(uniform(len(G)) if center is None else center, eps))


@pytest.mark.parametrize("order", [(qp.solve_daqp, qp.solve_piqp), (qp.solve_piqp,)], ids=["daqp", "piqp"])
@pytest.mark.parametrize("eps", [1.0, 0.2])
@pytest.mark.parametrize("family", FAMILIES)
def test_kkt_of_each_solver(
    monkeypatch: pytest.MonkeyPatch, family: str, eps: float, order: tuple[qp.Solver, ...]
) -> None:
    """DAQP misses about one singular Gram matrix in a thousand, and PIQP takes over; PIQP stands alone."""
    monkeypatch.setattr(module, "MANY", 0)  # not the quick way
    monkeypatch.setattr(qp, "_order", lambda size: order)
    for seed, size in enumerate((3, 5, 17)):
        G = gram(family, seed, size, spread=1e6, scale=10.0 ** (10 * seed - 10))
        check(G, min_norm(G, eps=eps), *box(uniform(size), eps))


@pytest.mark.parametrize("eps", [1.0, 0.02])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [40, 100, 130])
def test_kkt_of_many_objectives(size: int, family: str, eps: float) -> None:
    G = gram(family, 0, size, spread=1e2)
    check(G, min_norm(G, eps=eps), *box(uniform(size), eps))


@settings(max_examples=100, deadline=None)
@given(grams(sizes=(2, 2)), st.sampled_from([1.0, 0.3, 0.05]))
def test_closed_form_is_the_solvers_answer(G: Array, eps: float) -> None:
    pair = module._box(2, None, eps)
    by_formula, by_solver = module._pair(psd(G), pair), module._many(psd(G), pair)
    for w in (by_formula, by_solver):
        check(G, w, pair.lower, pair.upper)
    assert by_formula @ psd(G) @ by_formula <= by_solver @ psd(G) @ by_solver + 1e-9 * np.trace(psd(G))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(VECTORS)), st.integers(0, 2**20), st.integers(2, 12))
def test_as_short_as_nnls_finds_it(family: str, seed: int, size: int) -> None:
    """`min ||J^T w||^2 + (1^T w - 1)^2` over w >= 0 is min-norm up to scale: scipy's answer is exact."""
    J = gradients(family, seed, size, spread=100.0)
    J /= np.linalg.norm(J) or 1.0
    z, _ = nnls(np.vstack([J.T, np.ones(size)]), np.append(np.zeros(J.shape[1]), 1.0))
    w = min_norm(J @ J.T)
    assert np.linalg.norm(J.T @ w) <= np.linalg.norm(J.T @ z) / z.sum() + 1e-7
    assert frank_wolfe_gap(J @ J.T, w) <= 1e-9


def test_golden_weights() -> None:
    for case in golden("min_norm.json"):
        clamped = max(case["weights"]) == pytest.approx(0.999)
        np.testing.assert_allclose(min_norm(case["gram"]), case["weights"], atol=2e-3 if clamped else 1e-6)


def test_golden_boxes() -> None:
    """Boxes around 1/n, caps, and singular Gram matrices, on which the recorded solver failed."""
    for case in golden("fedmgda_qp.json"):
        U = np.array(case["U"])
        G, n = U @ U.T, len(U)
        if "cap" in case:
            bounds = np.zeros(n), np.full(n, case["cap"])
            w = (module._pair if n == 2 else module._many)(psd(G), module._Box(uniform(n), *bounds))
        else:
            bounds = box(uniform(n), case["epsilon"])
            w = min_norm(G, eps=case["epsilon"])
        check(G, w, *bounds)
        if "quad" in case:
            assert w @ G @ w == pytest.approx(case["quad"], rel=1e-6)


def test_eps_0_is_the_center_to_the_last_bit_and_eps_1_forgets_it() -> None:
    G, center = gram("generic", 0, 5), np.random.default_rng(0).dirichlet(np.ones(5))
    assert (min_norm(G, center=center, eps=0.0) == center).all()
    np.testing.assert_allclose(min_norm(G, center=center), min_norm(G), atol=1e-12)
    assert min_norm([[3.0]]).tolist() == [1.0]


def test_what_does_not_move_is_left_where_it_is() -> None:
    center = [0.2, 0.3, 0.5]
    assert min_norm(np.zeros((3, 3)), center=center, eps=0.1).tolist() == center
    assert min_norm(np.zeros((4, 4))).tolist() == [0.25] * 4
    assert min_norm(np.diag([1.0, 0.0, 2.0])).tolist() == [0.0, 1.0, 0.0]
    assert min_norm([[2.0, 2.0], [2.0, 2.0]]).tolist() == [0.5, 0.5]


def test_any_array_will_do() -> None:
    G = gram("generic", 3, 6)
    expected = min_norm(G)
    for same in (
        np.asfortranarray(G),
        G.tolist(),
        torch.tensor(G, requires_grad=True),
        np.repeat(G, 2, axis=1)[:, ::2],
    ):
        np.testing.assert_allclose(min_norm(same), expected, atol=1e-12)
    assert min_norm(torch.tensor(G, dtype=torch.float32)).dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"eps": 1.5}, r"`eps` should lie in \[0, 1\]. Found 1.5."),
        ({"eps": -0.1}, r"`eps` should lie in \[0, 1\]. Found -0.1."),
        ({"eps": float("nan")}, r"`eps` should lie in \[0, 1\]. Found nan."),
        ({"center": [0.5, 0.5]}, "`center` should hold 3 finite numbers"),
        ({"center": [0.5, 0.5, 0.5]}, "`center` should hold weights that sum to 1"),
        ({"center": [1.5, -0.5, 0.0]}, "`center` should have no negative entry"),
    ],
)
def test_bad_boxes(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        min_norm(np.eye(3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [(0, 0), (0, 1), (2, 2)])
def test_bad_entries(entry: float, where: tuple[int, int]) -> None:
    G = np.eye(3)
    G[where] = entry
    with pytest.raises(BadInput, match="should hold finite numbers"):
        min_norm(G)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (0, 0)])
def test_bad_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="should be square"):
        min_norm(np.ones(shape))


def test_what_calls_share_is_left_alone() -> None:
    """DAQP wants writable arrays, and those that depend on M only are shared between calls: it must not write."""
    shared = [qp._sense(6, 1), *qp._simplex(6), *module._box(6, None, 0.2)]
    before = [array.copy() for array in shared]
    for family in FAMILIES:
        for eps in (1.0, 0.2, 0.0):
            min_norm(gram(family, 0, 6), eps=eps)[:] = -1.0
    assert all((array == old).all() for array, old in zip(shared, before, strict=True))


def test_a_solver_that_fails_is_replaced_and_the_best_answer_is_kept() -> None:
    program = qp.Program(np.eye(3), np.zeros(3), np.ones((1, 3)), np.array([0, 0, 0, 1.0]), np.ones(4))
    lost = lambda p: (np.full(3, np.nan), np.zeros(1))  # noqa: E731
    poor = lambda p: (np.array([1.0, 0.0, 0.0]), np.zeros(1))  # noqa: E731
    np.testing.assert_allclose(qp.solve(program, [lost, poor, qp.solve_piqp]), uniform(3), atol=1e-8)
    assert qp.solve(program, [lost, poor]).tolist() == [1.0, 0.0, 0.0]
