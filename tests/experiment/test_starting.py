"""[model] weights: training begins with the weights of a file or of a run; of another model they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import polyfed
from polyfed.core.errors import BadInput
from polyfed.experiment.building import plan
from polyfed.experiment.reading import read
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute


def settings(**model: Any) -> dict[str, Any]:
    return {
        "rounds": 1,
        "cohort": "all",
        "data": {"name": "paraboloids", "examples": 4, "clients": 2},
        "model": {"name": "point", **model},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 0},
    }


def run(out: Path, **model: Any) -> Path:
    made, resolved = plan("start", settings(**model))
    execute(made, RunDirectory.create(out, "start", {"name": "start", "folder": "", **resolved}))
    return out


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "first")


@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_a_model_begins_with_the_weights_of_a_run_or_of_its_file(first: Path, file: str) -> None:
    made, resolved = plan("second", settings(weights=str(first / file)))
    assert torch.equal(made.parts[""].problem.initial()["x"], load_file(first / "model.safetensors")["w"])
    assert resolved["model"]["weights"] == str((first / "model.safetensors").resolve())


def test_other_precision_is_cast(first: Path) -> None:
    made, _ = plan("second", settings(weights=str(first), dtype="float64"))
    assert made.parts[""].problem.initial()["x"].dtype == torch.float64


def test_a_path_in_a_file_is_beside_it(first: Path, tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text(f'[model]\nname = "point"\nweights = "{first.name}"\n')
    _, found = read(str(tmp_path / "again.toml"))
    assert found["model"]["weights"] == str(tmp_path / first.name)


def test_weights_of_another_model_are_a_sentence(first: Path, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(5)}, tmp_path / "wide.safetensors")
    save_file({"v": torch.zeros(2)}, tmp_path / "named.safetensors")
    (tmp_path / "text.safetensors").write_text("no model")
    (tmp_path / "empty").mkdir()
    for name, said in {
        "wide.safetensors": r"has the shape \(5,\), the model's \(2,\)",
        "named.safetensors": "which the model does not have",
        "text.safetensors": "cannot be read",
        "empty": "has no model yet",
        "nowhere": "cannot be read",
    }.items():
        with pytest.raises(BadInput, match=said):
            plan("second", settings(weights=str(tmp_path / name)))


def test_a_finished_run_is_loaded_without_the_file_that_it_began_with(first: Path, tmp_path: Path) -> None:
    (tmp_path / "begin.safetensors").write_bytes((first / "model.safetensors").read_bytes())
    second = run(tmp_path / "second", weights=str(tmp_path / "begin.safetensors"))
    (tmp_path / "begin.safetensors").unlink()
    assert polyfed.load(second).model(torch.zeros(1, 2)).shape == (1, 2)
