"""How good a model is: the same numbers at the server and by asking the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import (
    BadInput,
    Callback,
    FedAvg,
    Federation,
    MultiModel,
    Objective,
    Problem,
    Rows,
    RunStopped,
    train,
    train_many,
)
from polyfed.client.runner import ClientRunner
from polyfed.core.engine import Engine
from polyfed.run.display import show
from polyfed.run.evaluation import Evaluation
from small import small_federation, small_problem


def test_evaluation_by_asking_the_clients_is_the_same_measure() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=1, evaluate={"clients": True})
    spread = result.history[0]["clients"]["left"]["accuracy"]
    assert set(spread) == {"mean", "std", "worst", "worst_5", "worst_10", "mean_by_examples", "mean_by_participation"}
    assert spread["worst"] <= spread["mean"] <= 1
    assert result.history[0]["evaluation_bytes"] > 0
    same = small_federation()
    everybodys = replace(same, server=same.train.order)  # the server tests on the rows that the clients have
    at_server = train(small_problem(), everybodys, FedAvg(), rounds=1).history[0]
    by_asking = train(small_problem(), replace(same, server=None), FedAvg(), rounds=1).history[0]
    for name in ("left", "right"):
        assert by_asking["losses"][name] == pytest.approx(at_server["losses"][name], rel=1e-5)
        assert by_asking["metrics"][name] == pytest.approx(at_server["metrics"][name], rel=1e-5)


def test_evaluation_may_be_rare_but_the_last_round_has_it() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=5, evaluate={"every": 3})
    assert [("losses" in line) for line in result.history] == [False, False, True, False, True]


def test_divergence_is_logged_not_fatal() -> None:
    result = train(small_problem(), small_federation(), FedAvg(lr=1e12, local_steps=1), rounds=1)
    assert "losses" in result.history[0]


# splits by name


def numbered(train_rows: list[list[int]], **splits: list[list[int]]) -> tuple[Problem, Federation]:
    """A model that stays at 0 on targets 0, 1, 2, ...: the squared error of row j is j^2."""
    rows = 1 + max(j for lists in (train_rows, *splits.values()) for some in lists for j in some)
    y = torch.arange(float(rows), dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    server = splits.pop("server", None)
    own: Any = {name: Rows.of(lists) for name, lists in splits.items()}
    federation = Federation(
        torch.zeros(rows, 1, dtype=torch.float64), {"y": y}, Rows.of(train_rows), **own,
        server=None if server is None else np.array(server[0]),
    )  # fmt: skip
    return Problem(model, [Objective("y", "squared")], torch.float64), federation


STILL: dict[str, Any] = {"lr": 1e-12, "local_steps": 1, "batch_size": 0}


def test_losses_and_metrics_of_each_named_split() -> None:
    problem, federation = numbered([[1], [2, 3]], valid=[[4], []], test=[[5], [7]], server=[[9]])
    asked = {"splits": ["train", "valid", "test"]}
    result = train(problem, federation, FedAvg(**STILL), rounds=1, evaluate=asked)
    line = result.history[0]
    assert {s: t["losses"]["y"] for s, t in line["splits"].items()} == pytest.approx(
        {"train": (1 + 4 + 9) / 3, "valid": 16, "test": 81}
    )
    assert line["splits"]["train"]["metrics"]["y"]["absolute_error"] == pytest.approx(2)
    assert line["losses"] == line["splits"]["test"]["losses"]
    assert (line["split"], result.summary["split"]) == ("test", "test")


def test_without_a_server_the_clients_test_rows_are_the_main_split_and_else_their_training_rows() -> None:
    for splits, split, loss in (({"test": [[5], [7]]}, "test", (25 + 49) / 2), ({}, "train", (1 + 4) / 2)):
        problem, federation = numbered([[1], [2]], **splits)
        result = train(problem, federation, FedAvg(**STILL), rounds=1)
        assert result.summary["split"] == split
        assert result.summary["objectives"]["y"]["loss"] == pytest.approx(loss)


def test_the_table_says_which_rows_its_figures_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    show(train(*numbered([[1], [2]]), FedAvg(**STILL), rounds=1).summary)
    assert "objective, on train data" in capsys.readouterr().out


def test_models_that_are_judged_on_different_rows_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    (one, federation), (two, kept) = numbered([[1], [2]]), numbered([[1], [2]], test=[[3], [4]])
    many = MultiModel({"a": (one, FedAvg(**STILL)), "b": (two, FedAvg(**STILL))})
    result = train_many(many, {"a": federation, "b": kept}, rounds=1)
    assert result.summary["split"] == {"a": "train", "b": "test"}
    show(result.summary)
    assert "b/y, on test data" in capsys.readouterr().out


def test_splits_of_several_models_are_in_one_table() -> None:
    (one, federation), (two, _) = numbered([[1], [2]]), numbered([[1], [2]])
    many = MultiModel({"a": (one, FedAvg(**STILL)), "b": (two, FedAvg(**STILL))})
    asked = {"splits": ["train"], "clients": True, "progress": 1}
    result = train_many(many, federation, rounds=1, evaluate=asked)
    assert result.history[0]["splits"]["train"]["losses"] == pytest.approx({"a/y": 2.5, "b/y": 2.5})
    assert set(result.history[0]["progress"]) == {"a/y", "b/y"}
    assert result.summary["split"] == "train"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_that_nobody_has_is_a_sentence_and_leaves_nothing(split: str, tmp_path: Path) -> None:
    problem, federation = numbered([[1], [2]])
    with pytest.raises(BadInput, match=rf"names '{split}'.*set data.{split}.*Found train"):
        train(problem, federation, FedAvg(), rounds=1, evaluate={"splits": [split]}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match="'train', 'valid' or 'test'"):
        train(problem, federation, FedAvg(), rounds=1, evaluate={"splits": ["tset"]})


# means that count clients otherwise


class StopAfter(Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round(self, run: Any, line: Any) -> None:
        if line["round"] == self.rounds:
            raise RuntimeError("killed")


def means(rounds: int, out: Path, stop: int = 0) -> list[dict[str, Any]]:
    """Three clients with the losses 1, (4 + 9) / 2 and 16, two of them a round."""
    problem, federation = numbered([[1], [2, 3], [4]])
    how: dict[str, Any] = {"rounds": rounds, "cohort": 2, "evaluate": {"clients": True}, "out": out, "resume": True}
    if stop:
        with pytest.raises(RunStopped, match="killed"):
            train(problem, federation, FedAvg(**STILL), callbacks=[StopAfter(stop)], **how)
    return train(problem, federation, FedAvg(**STILL), **how).history


def test_means_by_examples_and_by_participation(tmp_path: Path) -> None:
    lines = means(4, tmp_path / "whole")
    loss, counts = np.array([1, 6.5, 16]), np.zeros(3)
    for line in lines:
        counts[line["cohort"]] += 1
        found = line["clients"]["y"]["loss"]
        assert found["mean"] == pytest.approx(loss.mean())
        assert found["mean_by_examples"] == pytest.approx((1 + 13 + 16) / 4)
        assert found["mean_by_participation"] == pytest.approx(loss @ counts / counts.sum())


def test_participation_survives_a_run_that_stopped(tmp_path: Path) -> None:
    whole, resumed = means(4, tmp_path / "whole"), means(4, tmp_path / "resumed", stop=2)
    assert [line["clients"] for line in resumed] == [line["clients"] for line in whole]


def test_the_server_measures_where_the_engine_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And here, from then on, where that cannot be done: a GPU's memory may be full."""
    x, y = torch.randn(60, 4), {"y": torch.randint(0, 3, (60,))}
    federation = Federation.from_arrays(x[:40], {"y": y["y"][:40]}, clients=4, test=(x[40:], {"y": y["y"][40:]}))
    torch.manual_seed(0)
    problem = Problem(nn.Linear(4, 3), [Objective("y", "cross-entropy")])
    made: list[str] = []
    ordinary = ClientRunner.__init__

    def noted(self: ClientRunner, *given: Any, **named: Any) -> None:
        ordinary(self, *given, **named)
        if self.layers.finite is False:
            made.append(self.device.type)

    monkeypatch.setattr(ClientRunner, "__init__", noted)
    lines = []
    for device in ("cpu", "meta"):  # the second one computes nothing
        monkeypatch.setattr(Engine, "device", torch.device(device))
        result = train(problem, federation, FedAvg(lr=0.1), rounds=3, engine="wire", keep=False)
        lines.append([(line["losses"], line["metrics"]) for line in result.history])
    assert made == ["cpu", "meta", "cpu"]
    assert lines[0] == lines[1]


def test_a_gpu_without_room_for_the_test_rows_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(20, 4), {"y": torch.randint(0, 3, (20,))}
    federation = Federation.from_arrays(x, y, clients=2, test=(x, y))
    problem = Problem(nn.Linear(4, 3), [Objective("y", "cross-entropy")])

    def full(self: Federation, device: torch.device) -> Federation:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(Federation, "moved", full)
    found = Evaluation(problem, federation, device=torch.device("meta"))
    assert found._runner is not None
    assert found._runner.device == torch.device("cpu")
