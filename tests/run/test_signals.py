"""Signals end a run within a second or two, whatever it is doing, and nothing that was finished is lost."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from polyfed import BadInput
from polyfed.run.directory import RunDirectory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs process groups, and workers that are forked"),
]
POLYFED = [sys.executable, "-m", "polyfed"]
SLOW = """
import time
from pathlib import Path

from polyfed import FedAvg, Layer, train
from polyfed.cli.common import errors_as_sentences
from small import small_federation, small_problem

SECONDS = 0


class Slow(Layer):
    stage = "attack"

    def reply(self, out):
        if out.request.round == 3 and out.client.id == 2:
            Path("slow").touch()
            time.sleep(SECONDS)
        return out.arrays


def run(out, workers, resume=False):
    engine = {"name": "local", "workers": workers}
    with errors_as_sentences():
        more = {"engine": engine, "layers": [Slow()], "out": out, "resume": resume}
        train(small_problem(), small_federation(), FedAvg(), rounds=4, **more)
"""


def begun(command: list[str], sign: Path, **more: Any) -> subprocess.Popen[str]:
    """A process in a group of its own, once a file says that it is at work."""
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **more
    )
    limit = time.monotonic() + 60
    while not sign.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    assert sign.exists(), process.communicate(timeout=10)
    return process


def ended(process: subprocess.Popen[str], *signals: int) -> str:
    """What a run says at signals to its whole group; after the last of them, it must not take long."""
    for last in range(1, len(signals)):
        os.killpg(process.pid, signals[last - 1])
        time.sleep(1.0)  # or two of a kind could be one
    at = time.monotonic()
    os.killpg(process.pid, signals[-1])
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - at < 5  # of one busy machine; alone, half a second
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "died" not in err
    return err


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_signals_reach_long_kernels(workers: int, signals: list[int], tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = ["--set", "algorithm.epochs=1e9", "--set", f"engine.workers={workers}"]
    process = begun([*POLYFED, "run", "many-tasks", *long, "--out", str(run)], run / "metrics.jsonl")
    time.sleep(1.5)  # into the compiled loop
    err = ended(process, *signals)
    assert "Interrupted in round 1 of" in err
    assert f"polyfed resume {run}" in err


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_to_the_group_keeps_all_finished_rounds(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"slow_{workers}"
    (tmp_path / f"{module}.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    command = [sys.executable, "-c", f"import {module} as m; m.SECONDS = 60; m.run('run', {workers})"]
    err = ended(begun(command, tmp_path / "slow", env={**os.environ, "PYTHONPATH": path}), signal.SIGTERM)
    assert "Interrupted in round 3 of 4, which is given up. The run stopped after round 2." in err
    found = RunDirectory.open(tmp_path / "run").load()
    assert found is not None
    assert found[0] == 2
    slow = importlib.import_module(module)
    slow.run("run", workers, resume=True)
    slow.run("whole", workers)
    models = [tmp_path / out / "model.safetensors" for out in ("run", "whole")]
    assert models[0].read_bytes() == models[1].read_bytes()


ESTIMATOR = """
import numpy as np
from pathlib import Path
from polyfed.tasks import MochaEstimator

rng = np.random.default_rng(0)
X, y = rng.normal(size=(60, 4)), np.tile([-1.0, 1.0], 30)
Path("slow").touch()
MochaEstimator(epochs=1e9, n_jobs=2).fit([X] * 3, [y] * 3)
"""


def test_ctrl_c_ends_the_estimators_threads(tmp_path: Path) -> None:
    process = begun([sys.executable, "-c", ESTIMATOR], tmp_path / "slow", cwd=tmp_path)
    time.sleep(1.0)
    at = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - at < 5
    assert err.strip().endswith("KeyboardInterrupt")


def test_a_file_system_without_locks_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    run = RunDirectory.create(tmp_path / "run", "run", {})
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BadInput, match=f"cannot be locked.*{os.strerror(errno.ENOLCK)}"), run.locked():
        pytest.fail("locked")
