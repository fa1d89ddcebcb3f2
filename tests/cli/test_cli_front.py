"""`polyfed front`: the table, the folder, the page; and the model that a preference picks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import polyfed
from polyfed.cli import app

EXPERIMENT = """
rounds = 4
cohort = "all"
[data]
name = "paraboloids"
examples = 1
clients = 1
[model]
name = "point"
[algorithm]
name = "fedcmoo"
lr = 0.2
batch_size = 0
"""
FRONT = "runs/front-small"


@pytest.fixture(autouse=True)
def small() -> None:
    Path("small.toml").write_text(EXPERIMENT)


def test_a_front_and_the_model_of_a_preference() -> None:
    done = CliRunner().invoke(app, ["front", "small.toml", "--points", "4", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["state"], len(told["points"]), told["study"]) == ("done", 4, FRONT)
    assert Path(told["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(Path(FRONT, "front.json").read_text())["points"] == told["points"]
    assert "4 of 4, preference" in done.stderr

    shown = CliRunner().invoke(app, ["front", FRONT])
    assert shown.exit_code == 0
    assert len([line for line in shown.stdout.splitlines() if line.startswith("preference ")]) == 4

    picked = CliRunner().invoke(app, ["front", FRONT, "--pick", "f1=0.9,f2=0.1", "-o", "chosen.safetensors", "--json"])
    assert picked.exit_code == 0, picked.stderr
    point = json.loads(picked.stdout)
    worst = [max(0.9 * one["losses"]["f1"], 0.1 * one["losses"]["f2"]) for one in told["points"]]
    assert point["losses"] == told["points"][worst.index(min(worst))]["losses"]
    assert torch.equal(load_file("chosen.safetensors")["w"], polyfed.load(point["run"]).model.state_dict()["w"])

    again = CliRunner().invoke(app, ["front", FRONT, "--pick", "f1=0.9,f2=0.1", "-o", "chosen.safetensors"])
    assert (again.exit_code, again.stderr.strip()) == (
        2, "polyfed: 'chosen.safetensors' is there already; choose another file with -o.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["small.toml", "--pick", "f1=1"], "--pick needs the folder of a front"),
        (["small.toml", "--reference", "f1"], "--reference needs NAME=NUMBER"),
        (["small.toml", "--points", "2"], "--points should be at least 3"),
        (["nowhere"], "No experiment 'nowhere'"),
        (["many-models"], "one model with several objectives"),
    ],
)
def test_what_is_wrong_is_a_sentence(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["front", *words])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not Path("runs").exists()
