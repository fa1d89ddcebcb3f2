"""Evaluation is of all rows of a split that have labels, whoever has them and however large the targets are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, linear

import polyfed
from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.core.metric import SplitMetric

ENGINES = ["local", "wire", "batched", "flower"]
NAN = float("nan")
OWNER = np.repeat(list("abc"), [20, 30, 50])


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).float()


def problem(**metrics: SplitMetric) -> Problem:
    torch.manual_seed(0)
    return Problem(nn.Linear(4, 1), [Objective("y", "binary", metrics)])


def still() -> FedAvg:
    return FedAvg(lr=1e-20, local_steps=1)


def true_losses(made: Problem, x: Tensor, y: Tensor) -> NDArray[np.float64]:
    w = made.initial()["x"]
    loss = binary_cross_entropy_with_logits(linear(x, w[:4].reshape(1, 4), w[4:])[:, 0], y, reduction="none")
    return loss.double().numpy()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_is_held_out_whole_is_measured(engine: str) -> None:
    x, y = rows()
    test = (OWNER == "a") | (np.arange(100) % 5 == 0)
    made, f = problem(), Federation.from_arrays(x, {"y": y}, owner=OWNER, test=test)
    result = train(made, f, still(), rounds=1, engine=engine, evaluate={"per_client": True})
    losses = true_losses(made, x, y)
    assert result.summary["objectives"]["y"]["loss"] == pytest.approx(losses[test].mean(), rel=1e-5)
    assert result.clients["y"]["loss"][0] == pytest.approx(losses[:20].mean(), rel=1e-5)
    assert result.summary["failures"] == 0
    assert 0 not in result.history[0]["cohort"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_only_test_client_may_have_no_training_rows(engine: str) -> None:
    x, y = rows()
    made, f = problem(), Federation.from_arrays(x, {"y": y}, owner=OWNER, test=OWNER == "a")
    result = train(made, f, still(), rounds=1, engine=engine)
    assert result.summary["objectives"]["y"]["loss"] == pytest.approx(true_losses(made, x, y)[:20].mean(), rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_test_labels_count_where_training_labels_are_missing(engine: str) -> None:
    x, y = rows()
    test = np.arange(100) % 4 == 0
    some = y.clone()
    some[torch.from_numpy((OWNER == "a") & ~test)] = NAN
    some[4], some[80] = NAN, NAN  # and not all test rows have one
    made = problem(auc=polyfed.metrics.auc())
    f = Federation.from_arrays(x, {"y": some}, owner=OWNER, test=test)
    result = train(made, f, still(), rounds=1, engine=engine, evaluate={"per_client": True})
    there = test & ~some.isnan().numpy()
    losses = true_losses(made, x, y)
    assert result.summary["objectives"]["y"]["loss"] == pytest.approx(losses[there].mean(), rel=1e-5)
    assert result.clients["y"]["loss"][0] == pytest.approx(losses[there & (OWNER == "a")].mean(), rel=1e-5)
    scores = made.model(x)[:, 0].detach()
    above, below = (scores[torch.from_numpy(there) & (y == label)] for label in (1, 0))
    auc = (above[:, None] > below).double().mean()
    assert result.summary["objectives"]["y"]["auc"] == pytest.approx(float(auc), abs=5e-3)  # two pairs share a bin
    assert result.summary["failures"] == 0


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_what_a_client_is_said_not_to_hold_is_not_measured(engine: str) -> None:
    x, y = rows()
    some = y.clone()
    some[1] = NAN
    f = Federation.from_arrays(
        x, {"y": some}, owner=OWNER, test=np.arange(100) % 4 == 0, holds={"y": [False, True, True]}
    )
    result = train(problem(), f, still(), rounds=1, engine=engine, evaluate={"per_client": True})
    assert np.isnan(result.clients["y"]["loss"]).tolist() == [True, False, False]


def test_an_objective_without_a_test_label_is_named() -> None:
    x, y = rows()
    test = np.arange(100) % 4 == 0
    y[torch.from_numpy(test)] = NAN
    f = Federation.from_arrays(x, {"y": y}, owner=OWNER, test=test)
    result = train(problem(auc=polyfed.metrics.auc()), f, still(), rounds=1)
    assert result.summary["objectives"] == {"y": {"loss": None, "auc": None}}
    assert "No test row has a label for objective 'y', which is not measured on them." in result.summary["rules"]


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_large_targets_in_many_rows_are_honest(engine: str) -> None:
    """House prices: their squares add up to 3e15 at the larger client."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(12_000, 3, generator=g)
    price = 500_000 + 80_000 * x[:, 0] + 20_000 * torch.randn(12_000, generator=g)
    price[2000:] += 60_000 * torch.randn(10_000, generator=g)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[80_000.0, 0, 0]]))
        model.bias.fill_(500_000)
    f = Federation.from_arrays(x, {"price": price}, owner=np.repeat(["small", "large"], [2000, 10_000]))
    made = Problem(model, [Objective("price", "squared", {"r2": polyfed.metrics.r2()})])
    result = train(made, f, still(), rounds=1, engine=engine)
    with torch.no_grad():
        error, whole = (price - model(x)[:, 0]).double().square().sum(), price.double()
    assert result.summary["objectives"]["price"]["r2"] == pytest.approx(
        float(1 - error / (whole - whole.mean()).square().sum()), abs=1e-3
    )
    assert result.summary["failures"] == 0


def test_a_worker_may_look_after_clients_that_only_measure() -> None:
    x, y = rows()
    f = Federation.from_arrays(x, {"y": y}, owner=OWNER, test=OWNER == "a")
    shard = f.shard(0, 1)
    assert shard.examples.tolist() == [0]
    assert torch.equal(shard.take(torch.from_numpy(shard.rows("test", 0))).x, x[:20])
