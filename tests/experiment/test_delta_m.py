"""Delta_M: the experiment against each objective alone, by command and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyfed import BadInput
from polyfed.cli import app
from polyfed.experiment.delta_m import measure, of_one
from polyfed.experiment.reading import read
from polyfed.metrics import delta_m

SHORT = {"rounds": 2, "cohort": 4, "data": {"name": "two-digits", "clients": 8, "examples": 120}}


def polyfed(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["delta-m", *arguments])


def settings(**more: Any) -> dict[str, Any]:
    return {**SHORT, "algorithm": {"name": "fedcmoo", "local_steps": 2, "lr": 0.2}, **more}


@pytest.mark.parametrize(("metric", "better", "sign"), [("loss", "lower", 1), ("accuracy", "higher", -1)])
def test_delta_m_of_an_experiment(metric: str, better: str, sign: int) -> None:
    set_ = ["--set", "rounds=2", "--set", "data.examples=200", "--set", "data.clients=8", "--set", "cohort=4"]
    done = polyfed("two-digits", *set_, "--metric", metric, "--seeds", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = found["objectives"]
    assert set(rows) == {"left", "right"}
    assert {row["better"] for row in rows.values()} == {better}
    S, alone = (np.array([row[key] for row in rows.values()]) for key in ("values", "alone"))
    assert S.shape == (2, 2)
    assert found["delta_m"] == pytest.approx((sign * (S - alone) / alone).mean(0).tolist())
    assert found["mean"] == pytest.approx(np.mean(found["delta_m"]))
    assert found["split"] == "test"
    assert not Path("runs").exists()


def test_the_table_names_every_figure() -> None:
    lines = polyfed("two-digits", "--set", "rounds=1", "--set", "data.examples=200").stdout.splitlines()
    assert lines[0] == "loss on test data; alone by fedavg; 1 seed"
    assert [line.split()[0] for line in lines[2:]] == ["left", "right", "Delta_M"]


def test_one_objective_alone_is_the_experiment_itself() -> None:
    """With one objective and the same method there is nothing to gain or lose."""
    data = {"name": "quadratic", "objectives": 1, "clients": 3, "examples": 9}
    one: dict[str, Any] = {"rounds": 3, "cohort": "all", "data": data, "algorithm": {"name": "fedavg"}}
    one["model"] = {"name": "point", "dtype": "float64"}
    found = measure(one)
    assert found["delta_m"] == [0.0]
    assert found["objectives"]["f1"]["values"] == found["objectives"]["f1"]["alone"]


def test_the_method_alone_gets_the_settings_that_it_has() -> None:
    given = settings(algorithm={"name": "fedcmoo", "lr": 0.2, "server_lr": 1.5, "compress": "exact", "batch_size": 7})
    assert of_one(given, "fedavg")["algorithm"] == {"name": "fedavg", "lr": 0.2, "server_lr": 1.5, "batch_size": 7}
    weighted = settings(algorithm={"name": "fedavg", "weights": {"left": 2.0, "right": 1.0}})
    assert of_one(weighted, "fedavg")["algorithm"] == {"name": "fedavg"}


@pytest.mark.parametrize("alone", ["fedavg", "centralised"])
def test_what_else_the_experiment_says_may_be_about_all_objectives(alone: str) -> None:
    more: dict[str, Any] = {"evaluate": {"clients": True}, "objectives": {"right": {"loss": "squared"}}}
    one_step = {"name": "fedcmoo", "local_steps": 1}
    found = measure(settings(algorithm=one_step, **more), alone=alone)
    assert np.isfinite(found["mean"])


def test_clients_may_hold_some_of_the_objectives() -> None:
    data = {**SHORT["data"], "holds": "one-each"}  # type: ignore[dict-item]  # a table
    assert np.isfinite(measure(settings(data=data))["mean"])


def test_what_cannot_be_compared_is_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"'left' has no 'acuracy'. Did you mean 'accuracy'"):
        measure(settings(), metric="acuracy")
    with pytest.raises(BadInput, match=r"one model with several objectives. Found \[models\]"):
        measure(read("many-models")[1])
    with pytest.raises(BadInput, match=r"should not be 0. Found 0 for 'a'"):
        delta_m({"a": 0.1}, {"a": 0.0})
    done = polyfed("two-digits", "--alone", "fedavgg")
    assert done.exit_code == 2
    assert "Unknown algorithm 'fedavgg'" in done.stderr
