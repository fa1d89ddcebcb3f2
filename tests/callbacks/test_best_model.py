"""The best model: that of the best round, in the result and on the disk, and the same after any stop of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polyfed import BadInput, Callback, FedAvg, train
from polyfed.callbacks import BestModel
from polyfed.core.errors import RunStopped
from polyfed.run.callbacks import RunView
from small import small_federation, small_problem

WILD = FedAvg(lr=8.0, local_steps=3, batch_size=4)  # better in some rounds and worse in others


def trained(*callbacks: Callback, rounds: int = 8, **more: Any) -> Any:
    return train(small_problem(), small_federation(), WILD, rounds=rounds, cohort=2, callbacks=list(callbacks), **more)


class StopAt(Callback):
    def __init__(self, round: int) -> None:
        self.at = round

    def on_round(self, run: RunView, line: Any) -> None:
        if run.round == self.at:
            raise RunStopped("The power went.")


class Copies(Callback):
    """Every round's model."""

    def __init__(self) -> None:
        self.models: dict[int, dict[str, torch.Tensor]] = {}

    def on_round(self, run: RunView, line: Any) -> None:
        self.models[run.round] = run.model().state_dict()


def test_the_best_rounds_model_is_kept() -> None:
    copies = Copies()
    result = trained(copies, BestModel(objective="left"), out="r")
    losses = [line["losses"]["left"] for line in result.history]
    best = losses.index(min(losses)) + 1
    assert best < 8  # or the last would do
    assert result.summary["best"]["round"] == best
    assert result.summary["best"]["value"] == min(losses)
    assert result.summary["best"]["by"] == "loss of 'left'"
    assert result.summary == json.loads(Path("r/result.json").read_text())
    saved = load_file("r/best.safetensors")
    assert not result.best_model.training
    for name, value in copies.models[best].items():
        assert torch.equal(result.best_model.state_dict()[name], value)
        assert torch.equal(saved[name], value)


def test_a_higher_accuracy_is_the_better() -> None:
    result = trained(BestModel(metric="accuracy"))
    means = [sum(row["accuracy"] for row in line["metrics"].values()) / 2 for line in result.history]
    assert result.summary["best"]["value"] == pytest.approx(max(means))
    assert result.summary["best"]["round"] == means.index(max(means)) + 1


@pytest.mark.parametrize("at", [1, 3, 5, 7])
def test_after_a_stop_it_is_the_same(at: int) -> None:
    whole = trained(BestModel())
    with pytest.raises(RunStopped, match="power"):
        trained(StopAt(at), BestModel(), out="r")
    again = trained(BestModel(), out="r", resume=True)
    assert again.summary["best"] == whole.summary["best"]
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_checkpoint_names_its_best_model_whatever_came_after() -> None:
    """A run that is killed has written more than its last checkpoint says."""
    whole = trained(BestModel(), rounds=4)
    trained(BestModel(), rounds=4, out="r")
    shutil.copytree("r", "killed")
    trained(BestModel(), rounds=8, out="r", resume=True)
    for newer in Path("r/best").iterdir():
        shutil.copy(newer, "killed/best")
    again = trained(BestModel(), rounds=4, out="killed", resume=True)
    assert again.summary["best"] == whole.summary["best"]
    kept = load_file("killed/best.safetensors")
    for name, value in whole.best_model.state_dict().items():
        assert torch.equal(kept[name], value)


def test_models_that_no_checkpoint_names_are_removed() -> None:
    result = train(
        small_problem(), small_federation(), FedAvg(lr=0.1, batch_size=0), rounds=12, callbacks=[BestModel()], out="r"
    )
    assert result.summary["best"]["round"] == 12  # each round was the best
    assert 1 <= len(list(Path("r/best").iterdir())) <= 6  # two newest and a few on the way back


def test_a_best_model_that_is_gone_is_said() -> None:
    trained(BestModel(), rounds=3, out="r")
    shutil.rmtree("r/best")
    with pytest.raises(BadInput, match=r"The best model of r, that of round \d, is not in r.best; put it back"):
        trained(BestModel(), rounds=5, out="r", resume=True)
    assert trained(rounds=5, out="r", resume=True).best_model is None


def test_one_is_enough() -> None:
    with pytest.raises(BadInput, match=r"A run keeps one best model. Found BestModel twice"):
        trained(BestModel(), BestModel(metric="accuracy"))
