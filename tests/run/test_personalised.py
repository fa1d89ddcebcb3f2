"""Fine-tuning before evaluation: the figures by hand, on every engine, and a run that does not notice."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import (
    AFL,
    BadInput,
    FedAvg,
    FedCMOO,
    Federation,
    Mocha,
    MultiModel,
    Objective,
    Problem,
    Rows,
    metrics,
    train,
    train_many,
)  # fmt: skip
from polyfed.experiment.building import plan
from polyfed.run.display import show
from small import small_federation, small_problem

ENGINES: list[Any] = ["local", "wire", {"name": "batched", "device": "cpu"}]
TRAIN, ASIDE = ([14, 5, 18, 1], [6, 15, 2, 0])  # rows of each client


def uneven(aside: str = "test", holds: Mapping[str, Any] | None = None) -> Federation:
    """Four clients of different sizes, the last of whom keeps nothing aside."""
    starts = np.cumsum([0, *TRAIN, *ASIDE])
    rows = [np.arange(a, b) for a, b in pairwise(starts)]
    own: Any = {aside: Rows.of(rows[4:])}
    return replace(small_federation(), train=Rows.of(rows[:4]), server=None, holds=dict(holds or {}), **own)


def fine_tuned(
    problem: Problem, federation: Federation, weights: Mapping[str, float], steps: int, lr: float, split: str
) -> dict[str, dict[str, float]]:
    """Every objective's loss and accuracy over all clients' kept rows, each client's model by plain torch."""
    sums: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in problem.names}
    matrix = federation.matrix(problem.names)
    start = {name: value.clone() for name, value in problem.model.state_dict().items()}
    for client in range(len(federation)):
        held = {name: weights[name] for name, holds in zip(problem.names, matrix[client], strict=True) if holds}
        problem.model.load_state_dict(start)
        optimiser = torch.optim.SGD(problem.model.parameters(), lr)
        batch = federation.take(torch.from_numpy(federation.rows("train", client)))
        for _ in range(steps):
            optimiser.zero_grad()
            out = problem.model(batch.x)
            losses = {n: nn.functional.cross_entropy(out[n], batch.targets[n]) for n in held}
            total = sum((held[n] * losses[n] for n in held), start=torch.zeros(())) / sum(held.values())
            torch.autograd.backward(total)
            optimiser.step()
        kept = federation.take(torch.from_numpy(federation.rows(split, client)))
        with torch.no_grad():
            out = problem.model(kept.x)
        for name in held:
            sums[name][0] += float(nn.functional.cross_entropy(out[name], kept.targets[name], reduction="sum"))
            sums[name][1] += float((out[name].argmax(1) == kept.targets[name]).sum())
            sums[name][2] += len(kept.targets[name])
    problem.model.load_state_dict(start)
    return {name: {"loss": a / n, "accuracy": b / n} for name, (a, b, n) in sums.items()}


def no_fall_back() -> Any:
    return warnings.catch_warnings(action="error", category=RuntimeWarning)


@pytest.mark.parametrize("engine", ENGINES, ids=["local", "wire", "batched"])
@pytest.mark.parametrize("aside", ["test", "valid"])
def test_the_figures_are_those_of_plain_torch(engine: Any, aside: str) -> None:
    problem, federation = small_problem(), uneven(aside, {"left": [True, False, True, True]})
    method = FedAvg(lr=0.2, batch_size=0, local_steps=2, weights={"left": 3, "right": 1})
    with no_fall_back():
        asked = {"personalise": {"steps": 4, "lr": 0.5}}
        result = train(problem, federation, method, rounds=2, engine=engine, evaluate=asked)
    problem.model.load_state_dict(result.model.state_dict())
    wanted = fine_tuned(problem, federation, {"left": 3, "right": 1}, 4, 0.5, aside)
    figures = result.history[-1]["personalised"]
    assert list(figures) == [aside]
    for name, row in wanted.items():
        assert figures[aside]["losses"][name] == pytest.approx(row["loss"], rel=1e-4)
        assert figures[aside]["metrics"][name]["accuracy"] == pytest.approx(row["accuracy"])
    assert result.summary["personalised"] == figures
    assert result.history[-1]["losses"] != figures[aside]["losses"]


@pytest.mark.parametrize("how", [{"optimizer": "adamw", "clip": 0.5}, {"local_epochs": 1, "momentum": 0.5}])
def test_clients_step_as_they_do_for_the_method(how: dict[str, Any]) -> None:
    """Where FedAvg has one client, fine-tuning for its local steps at its lr is the round that comes next."""
    problem, federation = small_problem(objectives=1), uneven()
    one = replace(federation, train=Rows.of([np.arange(14)]), test=Rows.of([np.arange(14, 20)]))
    method = FedAvg(lr=0.1, local_steps=3, batch_size=0, **how)
    steps = 1 if "local_epochs" in how else 3
    history = train(problem, one, method, rounds=3, evaluate={"personalise": {"steps": steps}}).history
    for line, after in pairwise(history):
        assert line["personalised"]["test"]["losses"]["left"] == pytest.approx(after["losses"]["left"], rel=1e-5)


def networks() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    return Problem(model, [Objective("left", "cross-entropy")])


@pytest.mark.parametrize("engine", ENGINES, ids=["local", "wire", "batched"])
@pytest.mark.parametrize("method", [FedAvg(), FedCMOO(width=8, exchanges=1, server_optimizer="fedadam")])
def test_a_run_does_not_notice(engine: Any, method: Any) -> None:
    runs = [
        train(small_problem(), uneven(), method, rounds=3, cohort=2, engine=engine, evaluate=asked)
        for asked in ({}, {"personalise": {}, "clients": True})
    ]
    assert runs[0].summary["model_sha256"] == runs[1].summary["model_sha256"]
    for plain, line in zip(runs[0].history, runs[1].history, strict=True):
        assert plain["losses"] == line["losses"]
        assert (plain["cohort"], plain["bytes_up"], plain["bytes_down"]) == (
            line["cohort"], line["bytes_up"], line["bytes_down"],
        )  # fmt: skip
        assert line["evaluation_bytes"] > plain["evaluation_bytes"]
        spread = line["personalised"]["test"]["clients"]["left"]["loss"]
        assert spread["worst"] >= line["personalised"]["test"]["losses"]["left"]


def test_nor_does_one_with_dropout_and_batch_norm() -> None:
    """Statistics of BatchNorm move with a client's steps, and are its own."""
    kept = replace(uneven(), train=Rows.of([np.arange(14), np.arange(20, 40)]), test=Rows.of([[14], [15, 16]]))
    shas = {
        train(networks(), kept, FedAvg(), rounds=3, evaluate=asked).summary["model_sha256"]
        for asked in ({}, {"personalise": {"steps": 7}})
    }
    assert len(shas) == 1


def test_metrics_of_the_whole_split_are_of_the_fine_tuned_models_together() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    federation = Federation.from_arrays(x, {"y": y}, clients=4, test=0.5)
    problem = Problem(nn.Linear(4, 1), [Objective("y", "binary", {"auc": metrics.auc()})])
    lines = [
        train(problem, federation, FedAvg(lr=1e-9), rounds=1, engine=engine, evaluate={"personalise": {"lr": 5.0}})
        for engine in ENGINES
    ]
    found = [line.history[0]["personalised"]["test"]["metrics"]["y"]["auc"] for line in lines]
    assert found[0] > lines[0].history[0]["metrics"]["y"]["auc"]
    assert found == pytest.approx([found[0]] * 3)


def test_several_models_are_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    many = MultiModel({"a": (small_problem(), FedAvg()), "b": (small_problem(1), FedCMOO(width=8))})
    data = {"a": uneven("test"), "b": uneven("valid")}
    result = train_many(many, data, rounds=1, evaluate={"personalise": {"steps": 2}})
    figures = result.history[0]["personalised"]
    assert {split: set(found["losses"]) for split, found in figures.items()} == {
        "test": {"a/left", "a/right"}, "valid": {"b/left", "b/right"},
    }  # fmt: skip
    show(result.summary)
    assert "b/right, personalised, on valid data" in capsys.readouterr().out


def test_an_experiment_says_so() -> None:
    data = {"name": "two-digits", "clients": 4, "examples": 80, "test": 0.25}
    settings = {"cohort": 2, "data": data, "algorithm": {"name": "fedavg"}}
    made, resolved = plan("x", {**settings, "evaluate": {"personalise": {"steps": 3, "lr": 0.05}}})
    assert resolved["evaluate"]["personalise"] == {"steps": 3, "lr": 0.05}
    assert (made.evaluate["personalise"][""].steps, made.evaluate["personalise"][""].split) == (3, "test")
    _, resolved = plan("x", settings)
    assert "personalise" not in resolved["evaluate"]


def refused(method: Any, federation: Federation, personalise: Any, problem: Problem | None = None) -> str:
    with pytest.raises(BadInput) as error:
        train(problem or small_problem(), federation, method, rounds=1, evaluate={"personalise": personalise})
    return str(error.value)


def test_what_cannot_be_fine_tuned_is_a_sentence() -> None:
    assert "rows that clients have kept aside, and they have none; set data.test" in refused(
        FedAvg(), small_federation(), {}
    )
    assert "'evaluate.personalise.lr' is needed" in refused(AFL(), uneven(), {})
    assert "personalise.steps should be greater than or equal to 1" in refused(FedAvg(), uneven(), {"steps": 0})
    assert "evaluate.personalise.epochs" in refused(FedAvg(), uneven(), {"epochs": 3})
    x = torch.randn(20, 3)
    tasks = Federation.from_arrays(x, {"y": (x[:, 0] > 0).float()}, clients=2, test=0.5)
    linear = Problem(nn.Linear(3, 1), [Objective("y", "binary")], torch.float64)
    assert "'mocha' learns a model for every client" in refused(Mocha(), tasks, {}, linear)


def test_steps_that_diverge_do_not_end_the_run() -> None:
    torch.manual_seed(0)
    problem = Problem(nn.Linear(5, 1), [Objective("left", "squared")])
    asked = {"personalise": {"steps": 50, "lr": 1e3}}
    result = train(problem, uneven(), FedAvg(lr=0.01), rounds=2, evaluate=asked)
    assert result.summary["personalised"] == {"test": {"losses": {}, "metrics": {}}}
    assert [failure["client"] for failure in result.history[-1]["failures"]] == [0, 1, 2]
    assert "holds NaN or infinity" in result.history[-1]["failures"][0]["why"]


def test_a_method_without_local_steps_is_fine_tuned_at_a_given_rate() -> None:
    line = train(small_problem(), uneven(), AFL(), rounds=1, evaluate={"personalise": {"lr": 0.5}}).history[0]
    figures: dict[str, Tensor] = line["personalised"]["test"]["losses"]
    assert figures["left"] < line["losses"]["left"]
