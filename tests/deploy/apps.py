"""Experiments as Flower apps on a deployment of the tests' own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import NODES, Loopback, loopback
from safetensors.numpy import load_file

from polyfed.deploy.init import init
from polyfed.experiment.building import plan as build_plan
from polyfed.experiment.reading import read
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute

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
    """A SuperLink and three SuperNodes for the tests of one file (`conftest`)."""
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
        self.seen = time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def after_round(self, t: int) -> None:
        self.flower.until(lambda: len(self.lines()) >= t, 300, f"round {t}")

    def end(self) -> list[dict[str, Any]]:
        self.flower.until(lambda: self._finished() or not self._runs(), 400, "the end of the run")
        assert self._finished(), self.flower.logs()
        return self.lines()

    def _finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def _runs(self) -> bool:
        """Whether there is a ServerApp, or may be soon."""
        if self.flower.children("superlink", "flwr-serverapp"):
            self.seen = time.monotonic()
        return time.monotonic() - self.seen < 30

    def same_as_local(self) -> None:
        name, settings = read("experiment.toml")
        plan, resolved = build_plan(name, {**settings, "engine": {"name": "local"}})
        execute(plan, RunDirectory.create(Path("local"), name, resolved))
        ours, theirs = load_file(self.path / "model.safetensors"), load_file("local/model.safetensors")
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.allclose(ours[key], theirs[key], atol=1e-6), key
        locally = map(json.loads, Path("local/metrics.jsonl").read_text().splitlines())
        for line, local in zip(self.lines(), locally, strict=True):
            assert (line["bytes_up"], line["bytes_down"]) == (local["bytes_up"], local["bytes_down"])
