"""Methods as their papers print them, where replays from outside had found them otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import AFL, FMGDA, FSMGDA, BadInput, FedCMOO, Federation, Objective, Problem, QFedAvg, Rows, train
from polyfed.algorithms.objectives.fedcmoo import _keeping
from polyfed.algorithms.objectives.fmgda import random_round
from polyfed.core.keys import generator
from polyfed.core.messages import Request
from polyfed.layers.faults import Faults
from polyfed.testing import open_door
from polyfed.weights import pgd, project_simplex
from small import small_federation, small_problem, vector


def uneven_rows(sizes: tuple[int, ...]) -> Rows:
    length = np.array(sizes)
    return Rows(np.arange(length.sum()), np.cumsum(length) - length, length)


# FedCMOO with one exchange: objectives that nobody in the cohort holds


def test_an_absent_objective_keeps_its_weight_and_those_heard_share_the_rest() -> None:
    before, fresh = np.array([0.5, 0.3, 0.2]), np.array([0.25, 0.75, 0.0])
    kept = _keeping(before, fresh, np.array([True, True, False]))
    np.testing.assert_allclose(kept, [0.8 * 0.25, 0.8 * 0.75, 0.2])


def test_one_objective_a_client_and_one_client_a_round_train_in_every_round() -> None:
    """Weights that were stored as 0 had left most of the rounds without anything to train."""
    held = np.arange(6) % 2 == 0
    federation = small_federation(holds={"left": held.tolist(), "right": (~held).tolist()})
    result = train(small_problem(), federation, FedCMOO(exchanges=1, width=16), rounds=12, cohort=1)
    for line in result.history:
        client = line["cohort"][0]
        assert line["weights"] == {"left": float(held[client]), "right": float(not held[client])}
    x = [
        vector(train(small_problem(), federation, FedCMOO(exchanges=1, width=16), rounds=t, cohort=1))
        for t in (1, 2, 3)
    ]
    assert not torch.equal(x[0], x[1])
    assert not torch.equal(x[1], x[2])


# Algorithm 9: two independent sets


def two_set_grams(compress: Any, rounds: int, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """The mean of many estimates of G at the start, and G itself, over all clients' full batches."""
    problem, federation = small_problem(dtype=torch.float64), small_federation(clients=4, rows=6)
    method = FedCMOO(gram="two-sets", compress=compress, batch_size=2, gram_over="all", **settings)
    exact = FedCMOO(compress="exact", batch_size=0, gram_over="all")
    fleet = open_door(problem, federation, cohort=4)
    model = dict(problem.initial())
    found = []
    for t in range(1, rounds + 1):
        fleet.begin(t)
        found.append(method._gram(t, fleet.cohort(t), model, fleet)[0].numpy())
    fleet.begin(rounds + 1)
    return np.mean(found, 0), exact._gram(1, fleet.cohort(1), model, fleet)[0].numpy()


@pytest.mark.parametrize("compress", ["exact", {"name": "random-mask", "budget": 1.0}])
def test_two_sets_are_unbiased_although_a_client_may_be_in_both(compress: Any) -> None:
    """All four clients are in both sets: with common batches the diagonal was a third too large."""
    mean, G = two_set_grams(compress, 300)
    assert np.abs(mean.diagonal() / G.diagonal() - 1).max() < 0.15


def test_the_two_sets_have_a_size_of_their_own() -> None:
    method = FedCMOO(gram="two-sets", gram_clients=3, compress="exact")
    result = train(small_problem(), small_federation(clients=12), method, rounds=1, cohort=2)
    assert 5 <= len(result.history[0]["cohort"]) <= 8  # 3 and 3 for the Gram matrix, 2 to train; some may be the same
    with pytest.raises(BadInput, match="gram_clients goes with"):
        FedCMOO(gram_clients=3)


def test_where_models_share_the_clients_the_two_sets_are_of_the_models_own() -> None:
    problem, method = small_problem(), FedCMOO(gram="two-sets", compress="exact")
    fleet = open_door(problem, small_federation(), cohort=6)
    fleet._draw = lambda t, purpose: [1, 4]
    fleet.begin(1)
    method.round(1, method.init(problem), fleet)
    assert set(fleet.asked) == {1, 4}


# what cannot be is refused before anything is written


@pytest.mark.parametrize("compress", ["sketch", "client-grams"])
def test_two_ways_need_a_jacobian_back(compress: str) -> None:
    with pytest.raises(BadInput, match="ways = 2 needs a compressor whose result is a Jacobian"):
        train(small_problem(), small_federation(), {"name": "fedcmoo", "ways": 2, "compress": compress}, out="r")
    assert not Path("r").exists()


def test_clients_lost_between_the_two_exchanges_are_counted() -> None:
    result = train(small_problem(), small_federation(), FedCMOO(width=16), rounds=8, layers=[Faults(drop=0.3)], seed=1)
    lost = [line["lost_between"] for line in result.history]
    assert any(lost)
    assert all(isinstance(n, int) and n >= 0 for n in lost)


# FindWeights as printed (Algorithm 2, and one step in Algorithm 10)


def test_projected_gradient_steps_without_the_authors_division() -> None:
    G = np.array([[4.0, 1.0], [1.0, 9.0]])
    w = pgd(G, [0.5, 0.5], steps=1, step=0.01, normalise=False)
    np.testing.assert_allclose(w, project_simplex(np.array([0.5, 0.5]) - 0.01 * G @ [0.5, 0.5]))
    np.testing.assert_allclose(w, [0.5125, 0.4875])
    method = FedCMOO(weighting={"name": "pgd", "steps": 1, "step": 0.01, "normalise": False}, width=16)
    assert train(small_problem(), small_federation(), method, rounds=2).summary["failures"] == 0


# the strongly convex theorems' random output


def test_the_random_round_is_drawn_once_with_the_theorems_eta() -> None:
    """What is kept is the iterate of the round that eta = eta_s eta_c K and the seed decide."""
    how: dict[str, Any] = {"lr": 0.1, "server_lr": 0.5, "local_steps": 5}
    method, rounds = FSMGDA(output="random", convexity=2.0, **how), 4
    for seed in range(4):
        kept = vector(train(small_problem(), small_federation(), method, rounds=rounds, seed=seed, cohort=2))
        drawn = random_round(rounds, 2.0, 0.5 * 0.1 * 5, generator(seed, "output"))
        iterate = train(small_problem(), small_federation(), FSMGDA(**how), rounds=drawn, seed=seed, cohort=2)
        assert torch.equal(kept, vector(iterate))


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": {"start": 0.2, "decay": 0.5}}, {"server_lr": {"beta": 1.0}}, {"local_epochs": 2},
        {"lr": 1.0, "local_steps": 10},
    ],
)  # fmt: skip
def test_a_changing_rate_has_no_random_round(settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"one step size for all rounds|convexity should be below"):
        FSMGDA(output="random", convexity=1.0, **settings)
    assert FSMGDA(output="random", **settings).output == "random"  # mu = 0: all rounds alike, whatever the rate


# AFL with some of the clients


def test_the_mixture_moves_for_those_asked_alone() -> None:
    problem, federation = small_problem(), small_federation(clients=8)
    fleet = open_door(problem, federation, cohort=2)
    method = AFL(lambda_lr=0.5)
    state: Any = method.init(problem)
    for t in (1, 2, 3):
        fleet.begin(t)
        before = state.get("lambda", torch.full((8,), 1 / 8, dtype=torch.float64))
        state, _ = method.round(t, state, fleet)
        asked = list(fleet.asked)
        others = [c for c in range(8) if c not in asked]
        assert torch.equal(state["lambda"][others], before[others])
        assert float(state["lambda"][asked].sum()) == pytest.approx(float(before[asked].sum()))
        assert float(state["lambda"].min()) >= 0


def test_where_nobody_asked_has_any_weight_the_model_stays() -> None:
    problem = Problem(
        nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), [Objective("left", "cross-entropy")]
    )
    fleet = open_door(problem, small_federation(clients=4), cohort=1)
    method = AFL()
    fleet.begin(1)
    asked = fleet.cohort(1)[0]
    state: Any = {**method.init(problem), "lambda": torch.eye(4, dtype=torch.float64)[(asked + 1) % 4]}
    after, _ = method.round(1, state, fleet)
    assert torch.equal(after["x"], state["x"])
    assert torch.equal(after["buffers"], state["buffers"])
    assert torch.equal(after["lambda"], state["lambda"])


def test_afl_may_start_from_the_clients_sizes() -> None:
    rows = uneven_rows((10, 30, 60))
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    federation = Federation(x, {"left": (x[:, 0] > 0).long(), "right": (x[:, 1] > 0).long()}, rows)
    fleet = open_door(small_problem(), federation)
    fleet.begin(1)
    np.testing.assert_allclose(AFL(weighting_by="size")._start(fleet), [0.1, 0.3, 0.6])
    result = train(small_problem(), federation, AFL(weighting_by="size", lambda_lr=1e-12), rounds=1)
    np.testing.assert_allclose(list(result.history[0]["client_weights"].values()), [0.1, 0.3, 0.6], atol=1e-9)


# q-FedAvg under both weightings, from the paper's formulas


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
def test_q_fedavg_weighs_clients(by: Any, q: float) -> None:
    torch.manual_seed(0)
    sizes, lr = (5, 20, 12), 0.1
    x, y = torch.randn(37, 3, dtype=torch.float64), torch.randn(37, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    federation = Federation(x, {"": y}, uneven_rows(sizes))
    problem = Problem(model, [Objective("y", "squared")], torch.float64)
    w = problem.initial()["x"].clone()
    result = train(problem, federation, QFedAvg(q=q, lr=lr, local_steps=1, batch_size=0, weighting_by=by), rounds=1)
    top, bottom, start = torch.zeros(3, dtype=torch.float64), 0.0, 0
    for n in sizes:
        xi, yi = x[start : start + n], y[start : start + n]
        start += n
        error = xi @ w - yi
        F, g = float((error**2).mean()), 2 * xi.T @ error / n
        a = n if by == "size" else 1
        top += a * F**q * g
        bottom += a * (q * F ** (q - 1) * float(g @ g) + F**q / lr)
    torch.testing.assert_close(vector(result), w - top / bottom, rtol=1e-6, atol=1e-9)


# what the Gram matrix is about


def test_fmgdas_gram_may_be_over_all_parameters_as_printed() -> None:
    """Heads have gradients of their own objective only: over all parameters G has a larger diagonal."""
    one: dict[str, Any] = {"lr": 0.1, "local_steps": 1}
    shared, everything = (
        train(small_problem(), small_federation(), FMGDA(gram_over=over, **one), rounds=1).history[0]["weights"]
        for over in ("shared", "all")
    )
    problem = small_problem()
    fleet = open_door(problem, small_federation())
    fleet.begin(1)
    method = FMGDA(gram_over="all", **one)
    assert len(method.columns(problem)) == problem.dim > len(FMGDA(**one).columns(problem))
    assert not math.isclose(shared["left"], everything["left"], rel_tol=1e-3)


def test_the_weights_of_two_sets_are_shared_by_what_the_cohort_holds() -> None:
    """Six clients, one of which holds 'right': cohorts of one mostly lack it, and 'left' then has all the weight."""
    holds = {"left": [True] * 6, "right": [False] * 5 + [True]}
    method = FedCMOO(gram="two-sets", gram_clients=6, compress="exact", lr=0.01)
    found = train(small_problem(), small_federation(holds=holds), method, rounds=6, cohort=1)
    weights = [line["weights"] for line in found.history]
    assert all(sum(w.values()) == pytest.approx(1) for w in weights)
    assert sum(w["left"] == 1 for w in weights) >= 3


def test_the_two_sets_drop_units_independently() -> None:
    """A client in both sets sees the same rows (all of them) through different dropout masks."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
    problem = Problem(model, [Objective(name, "cross-entropy") for name in ("left", "right")])
    fleet = open_door(problem, small_federation())
    options: dict[str, Any] = {**FedCMOO(batch_size=0).local_options(1, fleet), "compress": {"name": "exact"}}
    sizes: dict[str, Any] = {"rows": 2, "columns": problem.dim, "over": "all"}
    fleet.begin(1)
    one, other = (
        fleet.sum([0], Request("jacobian", dict(problem.initial()), options={**options, **sizes, "draw": draw}))["H"]
        for draw in (1, 2)
    )
    assert not torch.equal(one, other)
