"""Runs that come back from disk as they were: adapters with frozen parts, constants, stopped runs, half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed import BadInput, Callback, FedAvg, Federation, Objective, Problem, load, train
from polyfed.callbacks import BestModel, EarlyStopping

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def federation() -> Federation:
    return Federation.from_arrays(X, {"y": Y}, clients=3)


class Net(nn.Module):
    """A constant beside what is trained, and a base that may be frozen."""

    mean: Tensor

    def __init__(self, constant: float = 1.0) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mean", torch.full((4,), constant))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.base(x - self.mean)))
        return out


def problem(constant: float = 1.0, seed: int = 0, **more: Any) -> Problem:
    torch.manual_seed(seed)
    return Problem(Net(constant), [Objective("y", "cross-entropy")], **more)


class Breaks(Callback):
    def on_round(self, run: Any, line: Any) -> None:
        if run.round == 3:
            raise RuntimeError("no more")


def stopped(path: Path, *callbacks: Callback) -> None:
    with pytest.raises(polyfed.RunStopped, match="no more"):
        train(problem(), federation(), FedAvg(lr=0.3), rounds=5, out=path, callbacks=[*callbacks, Breaks()])


def test_a_stopped_run_of_a_model_with_a_constant_is_loaded(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    found = load(tmp_path / "run", model=Net())
    assert found.round == 3
    assert found.model.state_dict()["mean"].tolist() == [1.0] * 4


def test_a_stopped_run_gives_its_best_model(tmp_path: Path) -> None:
    stopped(tmp_path / "run", BestModel())
    assert load(tmp_path / "run", model=Net(), best=True).round == 3
    stopped(tmp_path / "other")
    with pytest.raises(BadInput, match="kept no best model"):
        load(tmp_path / "other", model=Net(), best=True)


def test_a_run_does_not_go_on_over_another_base(tmp_path: Path) -> None:
    train(problem(), federation(), FedAvg(), rounds=1, out=tmp_path / "a")
    with pytest.raises(BadInput, match="over another base"):
        train(problem(constant=2.0), federation(), FedAvg(), rounds=2, out=tmp_path / "a", resume=True)
    train(problem(freeze=["base.*"]), federation(), FedAvg(), rounds=1, out=tmp_path / "b")
    with pytest.raises(BadInput, match="over another base"):
        train(problem(seed=1, freeze=["base.*"]), federation(), FedAvg(), rounds=2, out=tmp_path / "b", resume=True)
    train(problem(freeze=["base.*"]), federation(), FedAvg(), rounds=2, out=tmp_path / "b", resume=True)


def test_a_base_in_bfloat16_predicts_as_it_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    net.base.to(torch.bfloat16).requires_grad_(False)
    made = Problem(net, [Objective("y", "cross-entropy")], autocast="bf16")
    result = train(made, federation(), FedAvg(lr=0.3), rounds=2, out=tmp_path / "run")
    found = load(tmp_path / "run", model=made).predict(X[:5])
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = result.model(torch.from_numpy(X[:5])).argmax(1)
    assert np.asarray(found["y"]).tolist() == expected.tolist()


def test_adapters_with_a_frozen_part_are_kept_whole(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is a test's extra")
    torch.manual_seed(0)
    base = Net().state_dict()

    def adapted(seed: int, **more: Any) -> nn.Module:
        net = Net()
        net.load_state_dict(base)
        torch.manual_seed(seed)
        made: nn.Module = peft.get_peft_model(net, peft.LoraConfig(r=2, **{"target_modules": ["base"], **more}))
        return made

    made = Problem(adapted(1), [Objective("y", "cross-entropy")], freeze=["*lora_A*"])
    result = train(made, federation(), FedAvg(lr=0.3), rounds=2, out=tmp_path / "run")
    again = load(tmp_path / "run", model=adapted(2)).model
    with torch.no_grad():
        x = torch.from_numpy(X)
        torch.testing.assert_close(again(x), result.model(x))
    with pytest.raises(BadInput, match="the run has no"):
        load(tmp_path / "run", model=adapted(2, target_modules=["base", "head"]))


def test_another_criterion_begins_anew(tmp_path: Path) -> None:
    """A loss and an accuracy cannot be compared."""
    train(problem(), federation(), FedAvg(lr=0.1), rounds=2, out=tmp_path / "run", callbacks=[BestModel()])
    by = [BestModel(metric="accuracy"), EarlyStopping(metric="accuracy", patience=9)]
    result = train(problem(), federation(), FedAvg(lr=0.1), rounds=4, out=tmp_path / "run", resume=True, callbacks=by)
    assert result.summary["best"]["round"] > 2
    assert 0 <= result.summary["best"]["value"] <= 1


def test_what_cannot_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="A preference needs an objective above 0"):
        train(
            problem(),
            federation(),
            "fedavg",
            rounds=1,
            out=tmp_path / "a",
            callbacks=[BestModel(preference={"y": 0.0})],
        )
    with pytest.raises(BadInput, match="Replies are quantised once"):
        train(problem(), federation(), "fedavg", rounds=1, out=tmp_path / "b", layers=["quantise", "quantise"])


def test_who_could_not_be_measured_has_taken_part(tmp_path: Path) -> None:
    """Fine-tuning that diverges says nothing of the training."""
    evaluate = {"personalise": {"steps": 400, "lr": 1e30}}
    f = Federation.from_arrays(X, {"y": Y}, clients=3, test=0.3)
    result = polyfed.train(problem(), f, FedAvg(lr=0.1), rounds=2, out=tmp_path / "run", evaluate=evaluate)
    assert all(one.get("measuring") for line in result.history for one in line["failures"])
    assert "mostly_failed" not in result.summary
    assert "never_used" not in result.summary
