"""A SuperLink and three SuperNodes of the tests' own, on loopback: the same models as `local`, also after kills."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import NODES, Loopback, loopback
from safetensors.numpy import load_file

from polyfed import experiment as ex
from polyfed.deploy.init import init
from polyfed.run import execute
from polyfed.rundir import RunDirectory

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
pytestmark = pytest.mark.processes

DIGITS = """
rounds = {rounds}
seed = 3
cohort = "all"
[data]
name = "two-digits"
clients = 3
[model]
name = "mlp"
hidden = [16]
[algorithm]
lr = 0.1
local_steps = 3
{more}
[evaluate]
every = 100
"""
TASKS = """
rounds = {rounds}
cohort = "all"
[data]
name = "related-tasks"
tasks = 3
partition = "natural"
key = "task"
[model]
name = "linear"
dtype = "float64"
[algorithm]
name = "mocha"
omega_every = 2
[evaluate]
every = 100
"""


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("flower")) as made:
        made.superlink()
        for i in range(NODES):
            made.supernode(i, node(made, i))
        yield made


def node(flower: Loopback, i: int) -> str:
    return f'partition-id={i} state="{flower.folder}/state-{i}"'


class Run:
    """An experiment as a Flower app, and its run directory."""

    def __init__(self, flower: Loopback, text: str, **config: Any) -> None:
        self.flower, self.app = flower, Path("app").absolute()
        Path("experiment.toml").write_text(text)
        init(self.app, "experiment.toml")
        self.path = Path("run").absolute()
        self.config = {"out": str(self.path), "timeout": 200.0, "wait": 200.0, **config}  # deadlines nobody should meet

    def start(self) -> None:
        self.flower.run(self.app, self.config)

    def lines(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def after_round(self, t: int) -> None:
        self.flower.until(lambda: len(self.lines()) >= t, 300, f"round {t}")

    def end(self) -> list[dict[str, Any]]:
        self.flower.until(lambda: (self.path / "result.json").is_file(), 400, "the end of the run")
        return self.lines()

    def same_as_local(self) -> None:
        name, settings = ex.read("experiment.toml")
        plan, resolved = ex.plan(name, {**settings, "engine": {"name": "local"}})
        execute(plan, RunDirectory.create(Path("local"), name, resolved))
        ours, theirs = load_file(self.path / "model.safetensors"), load_file("local/model.safetensors")
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.allclose(ours[key], theirs[key], atol=1e-6), key
        locally = map(json.loads, Path("local/metrics.jsonl").read_text().splitlines())
        for line, local in zip(self.lines(), locally, strict=True):
            assert (line["bytes_up"], line["bytes_down"]) == (local["bytes_up"], local["bytes_down"])


def test_fedcmoo_with_two_exchanges(flower: Loopback) -> None:
    run = Run(flower, DIGITS.format(rounds=2, more='name = "fedcmoo"'))
    run.start()
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()


def test_mocha_whose_server_and_then_superlink_was_killed_ends_at_the_same_model(flower: Loopback) -> None:
    """The nodes' dual variables are on their own disks, the server goes back to its last round, and the SuperLink knows
    its nodes again. (A node that was pulling a message when it died tries for 40 s before it asks for another.)"""
    run = Run(flower, TASKS.format(rounds=3))
    run.start()
    run.after_round(1)
    time.sleep(2)  # into the second round
    (server,) = flower.children("superlink", "flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    assert len(run.lines()) < 3
    run.start()
    run.after_round(2)
    flower.kill("superlink")
    flower.superlink()
    run.start()
    assert [line["failures"] for line in run.end()] == [[], [], []]
    run.same_as_local()


def test_a_node_killed_in_a_round_is_missing_and_the_run_ends(flower: Loopback) -> None:
    run = Run(flower, DIGITS.format(rounds=2, more='name = "fedavg"'), timeout=45.0)
    run.start()
    run.after_round(1)
    flower.kill("node-2")
    try:
        missing = run.end()[1]["failures"]
    finally:
        flower.supernode(2, node(flower, 2))
    assert {failure["client"] for failure in missing} == {2}
    assert all("no reply within 45 s" in f["why"] or "Node Unavailable" in f["why"] for f in missing)


@pytest.mark.soak
def test_a_node_restarted_in_a_round_is_the_same_client_with_its_memory(flower: Loopback) -> None:
    run = Run(flower, TASKS.format(rounds=2))
    run.start()
    run.after_round(1)
    flower.kill("node-1")
    flower.supernode(1, node(flower, 1))
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()


OTHERS = {
    "fedavg": DIGITS.format(rounds=2, more='name = "fedavg"'),
    "fsmgda": DIGITS.format(rounds=2, more='name = "fsmgda"'),
    "fedcmoo-1": DIGITS.format(rounds=2, more='name = "fedcmoo"\nexchanges = 1'),
    "mocha": TASKS.format(rounds=2),
    "mfa-rr": DIGITS.format(rounds=2, more='name = "fedavg"\n[schedule]\nname = "mfa-rr"\n[models.a]\n[models.b]'),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_all_others(flower: Loopback, name: str) -> None:
    run = Run(flower, OTHERS[name])
    run.start()
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()
