"""[models.NAME] in experiments, `polyfed gain`, bad input as one sentence, and runs that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result as Done
from typer.testing import CliRunner

from polyfed import FedAvg, MultiModel, train_many
from polyfed.algorithms.objectives.centralised import Centralised
from polyfed.cli import app
from polyfed.core.errors import BadInput
from polyfed.experiment.building import expanded
from polyfed.experiment.gain import chosen
from polyfed.experiment.reading import builtin
from small import small_federation, small_problem

SHORT = ["--set", "models.digits.data.examples=200", "--rounds", "4"]


def polyfed(*arguments: str) -> Done:
    return CliRunner().invoke(app, list(arguments))


def refused(*arguments: str) -> str:
    done = polyfed(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("polyfed: ")
    assert done.stderr.count("\n") == 1
    assert not Path("runs").exists()
    return done.stderr


def test_the_built_in_experiment_trains_three_unrelated_models() -> None:
    done = polyfed("run", "many-models", *SHORT, "--json", "--out", "r")
    assert done.exit_code == 0, done.stderr
    objectives = json.loads(done.stdout)["objectives"]
    assert set(objectives) == {"digits/left", "digits/right", "synthetic/class", "quadratic/f"}
    table = polyfed("resume", "r").stdout
    assert "quadratic/f" in table


def test_the_resolved_experiment_runs_again_to_the_same_models() -> None:
    changed = ["--set", "models.synthetic.algorithm.lr=0.05", "--set", "schedule.name=mfa-rand"]
    first = json.loads(polyfed("run", "many-models", *SHORT, *changed, "--json", "--out", "a").stdout)
    settings = tomllib.loads(Path("a/experiment.toml").read_text())
    assert settings["models"]["synthetic"]["algorithm"]["lr"] == 0.05
    assert settings["models"]["quadratic"]["algorithm"]["local_steps"] == 5  # the experiment's
    assert settings["models"]["digits"]["algorithm"]["name"] == "fedcmoo"
    second = json.loads(polyfed("run", "a/experiment.toml", "--json", "--out", "b").stdout)
    assert first["model_sha256"] == second["model_sha256"]
    assert first["algorithm"] == "mfa-rand"


def test_copies_and_chosen_objectives() -> None:
    Path("e.toml").write_text(
        "rounds = 2\ncohort = 6\n[data]\nname = 'two-digits'\nclients = 8\nexamples = 100\n"
        "[algorithm]\nname = 'fedavg'\n"
        "[models.left]\nobjectives = ['left']\ncopies = 2\n[models.right]\nobjectives = ['right']\nseed = 4\n"
    )
    done = polyfed("run", "e.toml", "--json")
    assert done.exit_code == 0, done.stderr
    assert set(json.loads(done.stdout)["objectives"]) == {"left-1/left", "left-2/left", "right/right"}


def test_one_model_is_the_experiment_without_models() -> None:
    common = ["--set", "data.examples=200", "--set", "data.clients=6", "--set", "cohort=3", "--rounds", "3"]
    polyfed("run", "two-digits", *common, "--out", "alone")
    Path("one.toml").write_text(builtin()["two-digits"].read_text() + "\n[models.it]\n")
    done = polyfed("run", "one.toml", *common, "--out", "it")
    assert done.exit_code == 0, done.stderr
    from safetensors.torch import load_file

    alone, it = load_file("alone/model.safetensors"), load_file("it/model.safetensors")
    assert set(it) == {f"it.{name}" for name in alone}
    assert all(torch.equal(it[f"it.{name}"], value) for name, value in alone.items())


# -- bad input


def test_bad_input_is_one_sentence() -> None:
    run = ["run", "many-models"]
    assert "there is no model 'digit'. Did you mean 'digits'?" in refused(*run, "--set", "models.digit.data.alpha=1")
    assert "there is no model 'a'" in refused("run", "two-digits", "--set", "models.a.data.alpha=1")
    assert "Found 13 models for the 12 clients" in refused(
        "run", "quadratic", "--set", "data.clients=12", "--set", "models={a={copies=13}}"
    )
    assert "Found 3 models for the cohort of 2 clients" in refused(*run, "--set", "cohort=2")
    assert "Found 24 for 'digits', 24 for 'synthetic', 12 for 'quadratic'" in refused(
        *run, "--set", "models.quadratic.data.users=12"
    )
    assert "Did you mean 'mfa-rand'?" in refused(*run, "--set", "schedule.name=mfa-rnd")
    assert "[models.NAME]" in refused("run", "two-digits", "--set", "schedule.name=mfa-rr")
    assert "Model 'digits': Unknown key 'data.alhpa'" in refused(*run, "--set", "models.digits.data.alhpa=1")
    assert "Unknown key 'models.digits.dta'" in refused(*run, "--set", "models.digits.dta=1")
    assert "'objectives' names 'middle'" in refused(*run, "--set", "models.digits.objectives=['middle']")
    assert "models.digits should be a table" in refused(*run, "--set", "models.digits=3")
    assert "letters, digits" in refused("run", "quadratic", "--set", "models={'a.b'={}}")


def test_bad_input_from_python_is_a_sentence() -> None:
    fed, problem = small_federation(), small_problem()
    two: dict[str, Any] = {name: (problem, FedAvg()) for name in "ab"}
    with pytest.raises(BadInput, match=r"same number. Found 6 for 'a', 5 for 'b'"):
        train_many(MultiModel(two), {"a": fed, "b": small_federation(clients=5)})
    with pytest.raises(BadInput, match="needs a federation"):
        train_many(MultiModel(two), {"a": fed})
    with pytest.raises(BadInput, match="Found 7 models for the 6 clients"):
        train_many(MultiModel({f"m{j}": (problem, FedAvg()) for j in range(7)}), fed)
    with pytest.raises(BadInput, match="at least one model"):
        MultiModel({})
    with pytest.raises(BadInput, match="Unknown schedule 'mfa'"):
        MultiModel(two, "mfa")
    with pytest.raises(BadInput, match="centralised"):
        train_many(MultiModel({"a": (problem, Centralised())}), fed)
    with pytest.raises(BadInput, match="rounds should be"):
        train_many(MultiModel(two), fed, rounds=0)
    with pytest.raises(BadInput, match="Two models are called 'a-2'"):
        expanded({"a": {"copies": 2}, "a-2": {}})


# -- the gain


GAIN = ["gain", "quadratic", "--set", "data.clients=4", "--set", "data.examples=4", "--set", "algorithm.lr=0.2"]


def test_gain_prints_rounds_alone_and_together() -> None:
    goal = ["--metric", "loss", "--target", "-0.2", "--seeds", "2", "--schedule", "mfa-rand,mfa-rr"]
    done = polyfed(*GAIN, "--models", "1,2", *goal, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(row["schedule"], row["M"]) for row in found["rows"]] == [
        ("mfa-rand", 1), ("mfa-rand", 2), ("mfa-rr", 1), ("mfa-rr", 2),
    ]  # fmt: skip
    for row in found["rows"]:
        assert len(row["T_1"]) == len(row["T_M"]) == len(row["gain"]) == 2
        assert row["gain"] == [a / b for a, b in zip(row["T_1"], row["T_M"], strict=True)]
    assert "mfa-rr" in polyfed(*GAIN, "--models", "2", *goal).stdout


def test_gain_without_a_target_asks_for_what_each_reaches_alone() -> None:
    settings = ["--set", "rounds=3", "--set", "models.digits.data.examples=200"]
    done = polyfed("gain", "many-models", *settings, "--models", "2", "--metric", "loss", "--json")
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["T_1"] == [6]
    assert row["T_M"][0] is None or row["gain"][0] == 6 / row["T_M"][0]


def test_gain_takes_the_experiments_models_or_copies_of_them() -> None:
    settings = {"models": {"a": {}, "b": {"copies": 7}}}
    assert chosen(settings, 2) == {"a": "a", "b": "b"}
    assert chosen(settings, 3) == {"a-1": "a", "b-1": "b", "a-2": "a"}
    assert chosen({}, 1) == {"model": "model"}


def test_gain_refuses_what_cannot_be() -> None:
    assert "does not reach loss -100" in refused(*GAIN, "--metric", "loss", "--target", "-100", "--set", "rounds=3")
    assert "has no finite metric 'accuracy'" in refused(*GAIN, "--set", "rounds=2")
    assert "--models should be numbers" in refused(*GAIN, "--models", "two")
    assert "Unknown schedule" in refused(*GAIN, "--schedule", "mfa")


# -- killed and resumed


SMALL = """
rounds = 30
cohort = 5
[algorithm]
name = "fedavg"
[models.digits]
data = { name = "two-digits", clients = 6, examples = 60 }
algorithm = { name = "fedcmoo", local_steps = 2 }
[models.quadratic]
data = { name = "tridiagonal", users = 6, p = 1, partition = "natural" }
model = { name = "point", dtype = "float64" }
"""


def wait_for(run: Path, rounds: int, process: subprocess.Popen[bytes]) -> None:
    metrics, limit = run / "metrics.jsonl", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < limit:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= rounds:
            return
        time.sleep(0.005)
    raise AssertionError("the run ended before it was killed")


def test_killed_and_resumed_are_the_same_models() -> None:
    Path("small.toml").write_text(SMALL)
    whole = json.loads(polyfed("run", "small.toml", "--json", "--out", "whole").stdout)
    run, environment = Path("run"), {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "polyfed", "run", "small.toml", "--out", "run", "--set", "engine.workers=2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    wait_for(run, 7, process)
    process.kill()
    process.communicate(timeout=60)
    assert not (run / "result.json").exists()
    done = polyfed("resume", "run", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["model_sha256"] == whole["model_sha256"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 31))
