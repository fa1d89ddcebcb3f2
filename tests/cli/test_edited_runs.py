"""A run's experiment that was edited since: refused where it would make another model, with the difference shown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app

SMALL = ["--set", "data.examples=300", "--set", "data.clients=10", "--set", "cohort=3", "--rounds", "2"]


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def edited(key: str, value: object) -> None:
    """A run of two rounds that stopped, with another value of a key in its experiment.toml."""
    assert polyfed("run", *SMALL, "--set", "network.name=3g", "--out", "r").exit_code == 0
    Path("r/result.json").unlink()
    settings = node = tomllib.loads(Path("r/experiment.toml").read_text())
    *path, leaf = key.split(".")
    for part in path:
        node = node.setdefault(part, {})
    node[leaf] = value
    Path("r/experiment.toml").write_text(tomli_w.dumps(settings))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("seed", 5, "seed: 0 -> 5"),
        ("algorithm.name", "fedavg", "algorithm.name: 'fedcmoo' -> 'fedavg'"),
        ("algorithm.lr", 0.25, "algorithm.lr: "),
        ("data.clients", 5, "data.clients: 10 -> 5"),
        ("model.dtype", "float64", "model.dtype: 'float32' -> 'float64'"),
        ("cohort", 5, "cohort: 3 -> 5"),
        ("network.name", "wifi", "network.name: '3g' -> 'wifi'"),
        ("layers", [{"name": "faults", "drop": 0.5}], "layers: None -> [{'name': 'faults'"),
    ],
)
def test_what_would_make_another_model_is_refused(key: str, value: object, says: str) -> None:
    edited(key, value)
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    done = polyfed("resume", "r")
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr
    assert len(done.stderr) < 420
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("key", "value"), [("rounds", 4), ("evaluate.every", 2), ("engine.workers", 1), ("engine", {"name": "wire"})]
)
def test_what_leaves_the_model_as_it_is_goes_on(key: str, value: object) -> None:
    edited(key, value)
    done = polyfed("resume", "r", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == (4 if key == "rounds" else 2)


@pytest.mark.parametrize("now", ["off", "on"])
def test_a_guard_that_changes_on_the_way_is_told_of(now: str) -> None:
    """It makes no round that was done another, and decides who is let in from here on."""
    edited("guard", now)
    if now == "on":
        for name in ("started", "experiment"):
            text = Path(f"r/{name}.toml").read_text().replace('guard = "on"\n', "")
            Path(f"r/{name}.toml").write_text(('guard = "off"\n' if name == "started" else "") + text)
    done = polyfed("resume", "r", "--json")
    assert done.exit_code == 0, done.stderr
    said = f"guard is '{now}' from here on; the run began with '{'on' if now == 'off' else 'off'}'."
    assert said in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rules"] == [said]


def test_fewer_rounds_than_are_done() -> None:
    edited("rounds", 1)
    done = polyfed("resume", "r")
    assert (done.exit_code, "at least what the run r has done, 2. Found 1." in done.stderr) == (2, True), done.stderr


def test_a_run_of_before_goes_on() -> None:
    edited("rounds", 3)
    Path("r/started.toml").unlink()
    assert polyfed("resume", "r").exit_code == 0
