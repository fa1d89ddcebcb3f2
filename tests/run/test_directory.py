"""A run on disk: checkpoints that fall back, and one writer at a time."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyfed import BadInput, FedAvg, Problem, RunStopped, train
from polyfed.algorithms import State
from polyfed.core.door import Door
from polyfed.models import Headed
from polyfed.run.directory import RunDirectory, round_of
from small import small_federation, small_problem


def test_an_unreadable_checkpoint_falls_back_to_the_one_before() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r")
    directory = RunDirectory.open(Path("r"))
    directory.save(8, {"state": {"x": torch.ones(2)}})
    directory.save(9, {"state": {"x": torch.zeros(2)}})
    last = sorted(directory.checkpoints.iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1  # one bit, in the middle of a number
    last.write_bytes(data)
    found = directory.load()
    assert found is not None
    assert found[0] == 8
    last.write_bytes(b"")
    found = directory.load()
    assert found is not None
    assert found[0] == 8


def test_two_writers_are_one_too_many() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r")
    with RunDirectory.open(Path("r")).locked(), pytest.raises(BadInput, match="Another process"):
        train(small_problem(), small_federation(), FedAvg(), rounds=2, out="r", resume=True)


def lines(*rounds: int) -> bytes:
    text = '{{"round": {}, "seconds": 1.0, "bytes_up": 1, "bytes_down": 1, "failures": []}}\n'
    return "".join(text.format(round) for round in rounds).encode()


@pytest.fixture
def run() -> RunDirectory:
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r")
    Path("r/result.json").unlink()
    return RunDirectory.open(Path("r"))


def resumed(rounds: int = 3) -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=rounds, out="r", resume=True)


STRAYS = ["round-x.safetensors", "round-1-2-3.safetensors", "round-zzzzzzzz-00000000.safetensors", "round-.safetensors"]


@pytest.mark.parametrize("name", STRAYS)
def test_files_of_others_among_the_checkpoints_are_left_alone(run: RunDirectory, name: str) -> None:
    (run.checkpoints / name).write_bytes(b"not ours")
    resumed(6)
    assert (run.checkpoints / name).read_bytes() == b"not ours"
    assert round_of(run.saved()[0]) == 6
    assert run.result() is not None


def test_a_folder_called_like_a_checkpoint(run: RunDirectory) -> None:
    (run.checkpoints / "round-00000009-00000000.safetensors").mkdir()
    resumed(5)
    assert len(run.history()) == 5


def test_checkpoints_that_are_gone(run: RunDirectory) -> None:
    shutil.rmtree(run.checkpoints)
    resumed()
    assert len(run.history()) == 3


@pytest.mark.parametrize(
    "data",
    [lines(1, 3), lines(2, 3), lines(1, 2), lines(1, 1, 3), b"", b"\xff\xfe\x00", lines(1) + b"\xff\n" + lines(2, 3),
     b"[]\n1\nnull\n", lines(1, 2) + b'{"round": 3}\n', b"[" * 100_000],
)  # fmt: skip
def test_metrics_with_missing_rounds_are_never_added_up(run: RunDirectory, data: bytes) -> None:
    run.metrics.write_bytes(data)
    with pytest.raises(BadInput, match=r"has no round [123], and the checkpoint is of round 3.*runs repair r"):
        resumed()
    assert run.metrics.read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"objectives": 3}', b"[" * 100_000])
def test_a_broken_result(run: RunDirectory, data: bytes) -> None:
    (run.path / "result.json").write_bytes(data)
    with pytest.raises(BadInput, match=r"The result.json of r cannot be read. 'polyfed runs repair r'"):
        run.result()


def test_fewer_rounds_than_are_done_and_another_model_are_refused(run: RunDirectory) -> None:
    with pytest.raises(BadInput, match=r"at least what the run r has done, 3. Found 2"):
        resumed(2)
    wider = Headed(nn.Sequential(nn.Linear(5, 9), nn.Tanh()), {name: nn.Linear(9, 3) for name in ("left", "right")})
    with pytest.raises(BadInput, match=r"r is a run of another model: its arrays have other names or sh"):
        train(Problem(wider, small_problem().objectives), small_federation(), FedAvg(), rounds=3, out="r", resume=True)
    resumed()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["open", "fsync", "replace"])
def test_a_disk_that_takes_no_more(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int, operation: str
) -> None:
    before = {path: path.read_bytes() for path in run.checkpoints.iterdir()}

    def full(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(Path if operation == "open" else os, operation, full)
        with pytest.raises(
            RunStopped, match=r"cannot be written: .*train\(\.\.\., out='r', resume=True\) goes on from the last ch"
        ):
            run.save(4, {"state": {"x": torch.ones(2)}})
        with pytest.raises(RunStopped, match="cannot be written"):
            run.log({"round": 4}) if operation == "open" else run.rewind(3)
    assert {path: path.read_bytes() for path in run.checkpoints.iterdir()} == before
    resumed(6)
    assert len(run.history()) == 6


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOLCK])
def test_a_run_that_cannot_be_locked(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    with pytest.raises(BadInput, match=f"cannot be locked for writing: {os.strerror(number)}"):
        resumed()


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "\x1b[31m", "", "x" * 500])
def test_a_run_is_made_under_runs_whatever_its_name(name: str) -> None:
    made = RunDirectory.create(None, name, {})
    assert made.path.resolve().parent == Path("runs").resolve()
    assert made.path.name.isprintable()


def test_checkpoints_that_cannot_be_read_do_not_empty_a_run(tmp_path: Path) -> None:
    """All broken: a sentence, and the history stays. A stray newer one does not make the next checkpoint vanish."""
    run = RunDirectory.create(tmp_path / "run", "x", {"rounds": 3})
    for t in (1, 2):
        run.log({"round": t})
        run.save(t, {"state": {"x": torch.full((2,), float(t))}})
    whole = {path: path.read_bytes() for path in run.saved()}
    for path in whole:
        path.write_bytes(b"")
    with pytest.raises(BadInput, match="None of the 2 checkpoints"):
        run.load()
    assert run.metrics.read_text().count("\n") == 2
    for path, data in whole.items():
        path.write_bytes(data)
    for name in ("round-99999998-00000000.safetensors", "round-99999999-00000000.safetensors"):
        (run.checkpoints / name).write_bytes(b"stray")
    run.log({"round": 3})
    run.save(3, {"state": {"x": torch.full((2,), 3.0)}})
    found = run.load()
    assert found is not None
    assert found[0] == 3


class Refusing(FedAvg):
    """Finds in the first round that it cannot go on: before it asks the clients anything, or after."""

    asks = False

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, dict[str, Any]]:
        if self.asks:
            super().round(t, state, fleet)
        raise BadInput("These settings do not go together.")


@pytest.mark.parametrize("asks", [False, True])
def test_a_run_is_never_abandoned_once_clients_were_asked(asks: bool) -> None:
    """What they remember is kept under the run's id, and on Flower who they are lies in its directory."""
    method = Refusing()
    method.asks = asks
    with pytest.raises(BadInput, match="do not go together"):
        train(small_problem(), small_federation(), method, rounds=2, out="run")
    assert Path("run/experiment.toml").is_file() == asks
    if asks:
        assert RunDirectory.open(Path("run")).history() == []


def test_from_python_too_a_guard_that_changes_on_the_way_is_told_of() -> None:
    settings: dict[str, Any] = {"cohort": 3, "out": "run"}
    train(small_problem(), small_federation(), FedAvg(), rounds=1, **settings)
    Path("run/result.json").unlink()
    again = train(small_problem(), small_federation(), FedAvg(), rounds=2, guard="off", resume=True, **settings)
    assert again.summary["rules"] == ["guard is 'off' from here on; the run began with 'on'."]
