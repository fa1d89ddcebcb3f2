"""A run from Python: kept or not, watched or not, and resumed with what it was begun with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyfed import BadInput, Callback, FedAvg, MultiModel, Objective, Problem, RunStopped, train, train_many
from polyfed.callbacks import BestModel, Printer
from polyfed.callbacks.printer import shown_progress
from polyfed.core.federation import Federation
from polyfed.models import Headed
from polyfed.run.callbacks import RunView
from small import small_federation, small_problem


def trained(federation: Federation | None = None, problem: Problem | None = None, **more: Any) -> Any:
    arguments = {"rounds": 3, **more}
    return train(problem or small_problem(), federation or small_federation(), FedAvg(), **arguments)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def nothing_left(temporary: Path) -> bool:
    return not list(temporary.iterdir()) and {path.name for path in Path().iterdir()} == {"temporary"}


def test_nothing_is_left_of_a_run_that_is_not_kept(temporary: Path) -> None:
    result = trained(keep=False, callbacks=[BestModel()], evaluate={"per_client": True, "clients": True})
    assert nothing_left(temporary)
    assert result.run is None
    assert result.summary["run"] is None
    assert len(result.history) == 3
    assert set(result.clients) == {"left", "right"}
    assert isinstance(result.best_model, nn.Module)
    assert result.summary["model_sha256"] == trained().summary["model_sha256"]


class Failing(Callback):
    def on_round(self, run: RunView, line: Any) -> None:
        raise ValueError("no disk")


def test_nothing_is_left_of_it_after_an_error_either(temporary: Path) -> None:
    with pytest.raises(RunStopped, match=r"no disk\). Nothing of it is kept, since keep=False."):
        trained(keep=False, callbacks=[Failing()])
    assert nothing_left(temporary)
    with pytest.raises(BadInput, match=r"keep=False leaves nothing behind, .* Found out='r'"):
        trained(keep=False, out="r")
    several = MultiModel({"a": (small_problem(), FedAvg()), "b": (small_problem(1), FedAvg())})
    assert train_many(several, small_federation(), rounds=1, keep=False).run is None
    assert nothing_left(temporary)


def test_progress_as_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    trained(progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 1/3", "round 2/3", "round 3/3"]
    assert "left loss 1." in lines[0]
    assert "accuracy 0." in lines[0]
    trained(callbacks=[Printer(every=2)])
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == ["round 2/3", "round 3/3"]
    trained()
    assert capsys.readouterr().err == ""
    long = shown_progress(1000)
    assert isinstance(long, Printer)
    assert long.every == 20


def test_progress_as_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("polyfed.run.display.Progress.on_round", lambda self, run, line: seen.append("bar"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    trained(progress=True)
    assert seen == ["bar"] * 3
    monkeypatch.setenv("TERM", "dumb")  # an editor's: its cursor does not move
    assert isinstance(shown_progress(3), Printer)


def other_labels() -> Federation:
    federation = small_federation()
    targets = {name: torch.flip(t, (0,)) for name, t in federation.targets.items()}
    return Federation(federation.x, targets, federation.train, server=federation.server)


def named() -> Federation:
    return replace(small_federation(), names=[f"site {i}" for i in range(6)])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: small_federation(clients=5), "it has 6 clients with 120 training rows. Found 5 clients with 100"),
        (lambda: small_federation(rows=21), "Found 6 clients with 126 training rows"),
        (lambda: small_federation(holds={"left": [True] * 5 + [False]}), "Found as many, and others"),
        (other_labels, "Found as many, and others"),
        (named, "Found as many, and others"),
    ],
)
def test_a_run_does_not_go_on_over_another_federation(other: Any, says: str) -> None:
    trained(out="r")
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=f"r is a run over another federation: .*{says}"):
        trained(other(), rounds=4, out="r", resume=True)
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before
    assert trained(rounds=4, out="r", resume=True).summary["rounds"] == 4


def test_a_run_does_not_go_on_with_another_model_or_fewer_rounds() -> None:
    trained(out="r")
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    heads = {name: nn.Linear(8, 3) for name in ("left", "right")}
    renamed = Headed(nn.Sequential(nn.Tanh(), nn.Linear(5, 8), nn.Tanh()), heads)  # as many parameters, other names
    with pytest.raises(BadInput, match="r is a run of another model: its arrays have other names or shapes"):
        trained(problem=Problem(renamed, small_problem().objectives), out="r", resume=True)
    with pytest.raises(BadInput, match=r"rounds should be at least what the run r has done, 3. Found 2."):
        trained(rounds=2, out="r", resume=True)
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before


def test_a_directory_that_is_taken_is_spoken_of_as_out() -> None:
    trained(out="r")
    with pytest.raises(BadInput, match=r"^out='r' holds a run already: resume=True continues it; or choose another\.$"):
        trained(out="r")
    Path("full").mkdir()
    Path("full/a").touch()
    with pytest.raises(BadInput, match=r"^out='full' exists and is not a run"):
        trained(out="full")


INTERRUPTED = """
import os, signal
from polyfed import Callback, FedAvg, train
from small import small_federation, small_problem

class Press(Callback):
    def on_round(self, run, line):
        if run.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

train(small_problem(), small_federation(), FedAvg(), rounds=9, out="r", callbacks=[Press()])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_ctrl_c_advises_what_works_in_python() -> None:
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 1
    assert "Stopped after round 2 of 9. Continue with: polyfed.train(..., out='r', resume=True)" in done.stderr
    assert "polyfed resume" not in done.stderr
    assert trained(rounds=9, out="r", resume=True).summary["rounds"] == 9


def test_several_models_are_resumed_by_their_own_function() -> None:
    several = MultiModel({"a": (small_problem(), FedAvg()), "b": (small_problem(1), FedAvg())})
    with pytest.raises(RunStopped, match=r"Continue with: polyfed.train_many\(\.\.\., out='r', resume=True\)"):
        train_many(several, small_federation(), rounds=2, out="r", callbacks=[Failing()])


def test_objectives_are_as_they_were() -> None:
    """The fingerprint does not look at what may change: metrics, evaluation."""
    trained(out="r")
    problem = small_problem()
    fewer = [Objective(o.name, "cross-entropy", metrics={}) for o in problem.objectives]
    assert trained(problem=Problem(problem.model, fewer), rounds=4, out="r", resume=True).summary["rounds"] == 4
