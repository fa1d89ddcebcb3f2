"""FedAvg and FedProx against what they must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyfed import FedAvg, Federation, FedProx, Objective, Problem, train
from polyfed.algorithms.base import InverseDecay, StepDecay, objective_weights, present, value_in_round
from polyfed.core.errors import BadInput
from polyfed.core.keys import key, permutation
from polyfed.data.quadratic import minimiser, quadratic, quadratic_loss
from polyfed.models.basic import Point
from polyfed.testing import open_door
from small import small_federation, small_problem, vector


def one_client() -> tuple[Problem, Federation]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)).astype(np.float32), rng.integers(0, 3, 20)
    return Problem(nn.Linear(4, 3), [Objective("y", "cross-entropy")]), Federation.from_arrays(x, y, clients=1)


@pytest.mark.parametrize(
    ("settings", "optimiser"),
    [
        ({}, lambda p: torch.optim.SGD(p, 0.2)),
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.2, momentum=0.9)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, 0.2)),
    ],
)
def test_one_client_one_objective_is_plain_training(settings: dict[str, Any], optimiser: Any) -> None:
    problem, federation = one_client()
    model = nn.Linear(4, 3)
    model.load_state_dict(problem.model.state_dict())
    result = train(problem, federation, FedAvg(lr=0.2, local_steps=7, batch_size=6, **settings), rounds=1)
    rows = federation.rows("train", 0)
    order = np.concatenate([rows[permutation(key(key(0, 1, 0), "batch", e), 20)] for e in range(2)])
    steps = [order[a:b] for a, b in ((0, 6), (6, 12), (12, 18), (18, 20), (20, 26), (26, 32), (32, 38))]
    opt = optimiser(model.parameters())
    for step in steps:
        batch = federation.take(torch.from_numpy(step))
        opt.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(batch.x), batch.targets[""]))
        opt.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(result.model.state_dict()[name], value, atol=1e-6), name


def test_local_epochs_pass_over_the_rows() -> None:
    problem, federation = one_client()
    steps = train(problem, federation, FedAvg(local_steps=8, batch_size=6), rounds=1)
    problem, federation = one_client()
    epochs = train(problem, federation, FedAvg(local_epochs=2, batch_size=6), rounds=1)
    assert steps.summary["model_sha256"] == epochs.summary["model_sha256"]


def quadratic_federation(clients: int) -> tuple[Problem, Federation, Any]:
    data = quadratic(seed=1, examples=40, dim=3, objectives=2)
    objectives = [Objective(name, quadratic_loss, {}) for name in data.targets]
    federation = Federation.from_arrays(data.x, data.targets, clients=clients)
    return Problem(Point(3), objectives, torch.float64), federation, data


def test_full_batches_on_a_quadratic_are_the_textbook_recursion() -> None:
    """w_{t+1} = w_t - eta (A w_t - b), A and b the weighted means, when every client takes one full step."""
    problem, federation, data = quadratic_federation(clients=8)
    algorithm = FedAvg(lr=0.3, local_steps=1, batch_size=0, weights={"f1": 3, "f2": 1})
    result = train(problem, federation, algorithm, rounds=5)
    mean = 0.75 * data.targets["f1"].mean(0) + 0.25 * data.targets["f2"].mean(0)
    A, b, w = mean[:9].reshape(3, 3), mean[9:], np.zeros(3)
    for _ in range(5):
        w = w - 0.3 * (A @ w - b)
    assert np.allclose(result.model.state_dict()["w"].numpy(), w, atol=1e-12)


def test_it_ends_at_the_known_minimiser() -> None:
    problem, federation, data = quadratic_federation(clients=8)
    result = train(problem, federation, FedAvg(lr=1.0, local_steps=1, batch_size=0), rounds=150)
    best = minimiser(data.targets, {"f1": 0.5, "f2": 0.5})
    assert np.allclose(result.model.state_dict()["w"].numpy(), best, atol=1e-9)


def test_size_weighting_counts_examples() -> None:
    data = quadratic(seed=1, examples=40, dim=3, objectives=1)
    problem = Problem(Point(3), [Objective("f1", quadratic_loss, {})], torch.float64)
    uneven = Federation.from_arrays(data.x, data.targets, clients=[np.arange(30), np.arange(30, 40)])
    one_step: dict[str, Any] = {"lr": 1.0, "local_steps": 1, "batch_size": 0}
    by_size = train(problem, uneven, FedAvg(**one_step, weighting_by="size"), rounds=1).model.state_dict()["w"]
    assert np.allclose(by_size.numpy(), data.targets["f1"].mean(0)[9:])
    problem = Problem(Point(3), [Objective("f1", quadratic_loss, {})], torch.float64)
    uniform = train(problem, uneven, FedAvg(**one_step), rounds=1).model.state_dict()["w"]
    halves = (data.targets["f1"][:30].mean(0) + data.targets["f1"][30:].mean(0)) / 2
    assert np.allclose(uniform.numpy(), halves[9:])


def test_fedprox_without_a_term_is_fedavg_and_with_a_large_one_stays() -> None:
    moved = {}
    for mu in (0.0, 9.0):
        problem, federation = small_problem(), small_federation()
        start = problem.initial()["x"]
        result = train(problem, federation, FedProx(mu=mu, lr=0.1, local_steps=20), rounds=1)
        moved[mu] = float((vector(result) - start).norm())
    problem, federation = small_problem(), small_federation()
    start = problem.initial()["x"]
    result = train(problem, federation, FedAvg(lr=0.1, local_steps=20), rounds=1)
    assert moved[0.0] == float((vector(result) - start).norm())
    assert moved[9.0] < moved[0.0] / 3


def test_clients_with_different_objectives_train_together() -> None:
    """sum_s lambda_s times the mean over those who hold s, in one vector a client."""
    data = quadratic(seed=1, examples=30, dim=3, objectives=2)
    objectives = [Objective(name, quadratic_loss, {}) for name in data.targets]
    problem = Problem(Point(3), objectives, torch.float64)
    holds = {"f1": [True, True, False], "f2": [False, True, True]}
    rows = [np.arange(10), np.arange(10, 20), np.arange(20, 30)]
    federation = Federation.from_arrays(data.x, data.targets, clients=rows, holds=holds)
    w = train(problem, federation, FedAvg(lr=1.0, local_steps=1, batch_size=0), rounds=1).model.state_dict()["w"]
    f1, f2 = data.targets["f1"][:20].mean(0)[9:], data.targets["f2"][10:].mean(0)[9:]
    assert np.allclose(w.numpy(), (f1 + f2) / 2)


def test_an_objective_nobody_in_the_cohort_holds_has_weight_zero() -> None:
    holds = {"right": [False] * 6}
    result = train(small_problem(), small_federation(holds=holds), FedAvg(), rounds=2, cohort=3)
    assert result.history[-1]["weights"] == {"left": 1.0, "right": 0.0}
    assert result.history[-1]["train"]["right"] is None


def test_weights_that_make_one_vector_a_client_enough() -> None:
    holds = np.array([[True, False], [True, True], [True, True]])
    assert objective_weights(np.array([0.5, 0.5]), np.array([1.0, 1.0, 2.0]), holds).tolist() == [0.5, 0.5 * 4 / 3]
    assert present(np.array([0.5, 0.5]), holds[:1]).tolist() == [1.0, 0.0]


def test_step_sizes_change_over_rounds() -> None:
    fleet = open_door(small_problem(), small_federation())
    steps = StepDecay(start=1.0, decay=0.5, every=2)
    assert [value_in_round(steps, t, fleet) for t in (1, 2, 3, 5)] == [1, 1, 0.5, 0.25]
    assert value_in_round(InverseDecay(beta=30, gamma=100), 1, fleet) == 30 / 101
    assert value_in_round(0.1, 7, fleet) == 0.1
    a = train(small_problem(), small_federation(), FedAvg(server_lr=StepDecay(start=1, decay=1e-9)), rounds=2)
    b = train(small_problem(), small_federation(), FedAvg(), rounds=1)
    for name, value in b.model.state_dict().items():
        assert torch.allclose(a.model.state_dict()[name], value, atol=1e-6)


def test_batch_norm_statistics_are_averaged() -> None:
    torch.manual_seed(0)
    problem = Problem(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), [Objective("y", "cross-entropy")])
    _, federation = one_client()
    result = train(problem, federation, FedAvg(local_steps=5, batch_size=5), rounds=3)
    assert result.model.state_dict()["1.running_mean"].abs().sum() > 0
    assert np.isfinite(result.summary["objectives"]["y"]["loss"])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedAvg(lr=float("nan")), "finite number"),
        (lambda: FedAvg(lr=-1.0), "greater than 0"),
        (lambda: FedAvg(local_steps=0), "local_steps or local_epochs"),
    ],
)
def test_impossible_settings(make: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


def test_weights_must_name_objectives() -> None:
    with pytest.raises(BadInput, match="Did you mean 'left'"):
        train(small_problem(), small_federation(), FedAvg(weights={"lefft": 1.0}), rounds=1)
    with pytest.raises(BadInput, match="positive weight"):
        train(small_problem(), small_federation(), FedAvg(weights={"left": 0.0}), rounds=1)
