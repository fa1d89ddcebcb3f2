"""A process that is killed or interrupted at any moment resumes to the same bits, and leaves the caller's alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed import FedAvg, train
from polyfed.run.directory import RunDirectory
from small import small_federation, small_problem


def test_the_callers_torch_state_is_left_alone() -> None:
    threads = torch.get_num_threads()
    problem, federation = small_problem(), small_federation()
    before = torch.get_rng_state()
    train(problem, federation, FedAvg(), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


COMMAND = [sys.executable, "-m", "polyfed"]
EXPERIMENT = ["--rounds", "60", "--set", "data.examples=2000", "--set", "data.clients=20", "--set", "cohort=4"]


def polyfed(*arguments: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, **kw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("whole") / "run"
    done = polyfed("run", *EXPERIMENT, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1])["model_sha256"])


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(run: Path, rounds: int, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while lines(run) < rounds and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    assert lines(run) >= rounds


FORKING = """
import json, os, sys
import polyfed.run.loop
from polyfed.cli import app
from polyfed.experiment.building import plan
from polyfed.experiment.reading import read

plan(*read("two-digits"))  # imports what a run does
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            app(json.loads(line), standalone_mode=False)
        finally:
            os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Forking:
    """A process that forks one `polyfed` after the other: a start takes no seconds, and what is killed is the same."""

    def __enter__(self) -> Forking:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKING], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def killed(self, arguments: list[str], run: Path, rounds: int, moment: float) -> None:
        """Start it, and kill it a moment after so many rounds are in the run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        wait_for(run, rounds, self.process)
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        assert int(self.process.stdout.readline()) == signal.SIGKILL


def killed_and_resumed(run: Path, whole: str, workers: int, kills: int, seed: int) -> None:
    """A run that is killed so many times, at moments drawn at random, ends at the same model."""
    moments = random.Random(seed)
    rounds = sorted(moments.randint(1, 35) for _ in range(kills))
    begin = ["run", *EXPERIMENT, "--out", str(run), "--set", f"engine.workers={workers}"]
    with Forking() as forking:
        for i, t in enumerate(rounds):
            forking.killed(["resume", str(run)] if i else begin, run, t, moments.uniform(0, 0.05))
    assert not (run / "result.json").exists()
    done = polyfed("resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["model_sha256"] == whole
    kept = [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert kept == list(range(1, 61))


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_four_times_and_resumed_is_the_same_model(whole: str, tmp_path: Path, workers: int) -> None:
    killed_and_resumed(tmp_path / "run", whole, workers, kills=4, seed=workers)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_killed_300_times_and_resumed_is_the_same_model(whole: str, tmp_path: Path, seed: int) -> None:
    killed_and_resumed(tmp_path / "run", whole, 1 + seed % 2, kills=10, seed=100 + seed)


def test_ctrl_c_checkpoints_and_says_how_to_go_on(whole: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("run", *EXPERIMENT, "--out", str(run))
    wait_for(run, 5, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"polyfed resume {run}" in err
    done = lines(run)
    found = RunDirectory.open(run).load()
    assert found is not None
    assert found[0] == done < 60
    assert json.loads(polyfed("resume", str(run), "--json").stdout)["model_sha256"] == whole
