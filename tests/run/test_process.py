"""A process that is killed or interrupted at any moment resumes to the same bits, and leaves the caller's alone."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_twice_and_resumed_is_the_same_model(whole: str, tmp_path: Path, workers: int) -> None:
    moments = random.Random(workers)
    run = tmp_path / "run"
    process = start("run", *EXPERIMENT, "--out", str(run), "--set", f"engine.workers={workers}")
    wait_for(run, moments.randint(1, 25), process)
    process.kill()
    process.communicate(timeout=60)
    process = start("resume", str(run))
    wait_for(run, moments.randint(26, 50), process)
    process.kill()
    process.communicate(timeout=60)
    assert not (run / "result.json").exists()
    done = polyfed("resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["model_sha256"] == whole
    assert [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(
        range(1, 61)
    )


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
