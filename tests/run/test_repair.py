"""`polyfed runs repair`: every kind of damage is set aside, nothing is deleted, and the run ends at the same model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

from polyfed import BadInput
from polyfed.cli import app
from polyfed.run.directory import RunDirectory
from polyfed.run.repair import repair

SMALL = ["--set", "data.examples=200", "--set", "data.clients=6", "--set", "cohort=3", "--rounds", "4"]


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "r"
    done = polyfed("run", *SMALL, "--out", str(path))
    assert done.exit_code == 0, done.stderr
    return path


@pytest.fixture
def run(whole: Path) -> Path:
    shutil.copytree(whole, "r")
    return Path("r")


def first(run: Path, name: str) -> Path:
    return sorted(run.glob(name))[-1]


def cut_lines(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))
    (run / "result.json").unlink()


def add_line(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + b"{}\n")


def replace_by_folder(run: Path) -> None:
    (run / "result.json").unlink()
    (run / "result.json").mkdir()


def replace_by_file(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a broken result": lambda run: (run / "result.json").write_bytes(b"\xff{"),
    "a result that is a folder": replace_by_folder,
    "a model that is cut short": lambda run: (run / "model.safetensors").write_bytes(b"\x08"),
    "no model": lambda run: os.remove(run / "model.safetensors"),
    "a round is missing": cut_lines,
    "metrics that are no text": lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\x00"),
    "more metrics than rounds": add_line,
    "no metrics": lambda run: os.remove(run / "metrics.jsonl"),
    "checkpoints are a file": replace_by_file,
    "no checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "a checkpoint with a wrong bit": lambda run: first(run, "checkpoints/*").write_bytes(b"not a checkpoint"),
    "strays": lambda run: (run / "checkpoints/round-x.safetensors").write_bytes(b"stray"),
    "a broken experiment": lambda run: (run / "experiment.toml").write_bytes(b"rounds = [\xff"),
    "no experiment": lambda run: os.remove(run / "experiment.toml"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_mended_and_ends_at_the_same_model(whole: Path, run: Path, damage: str) -> None:
    DAMAGE[damage](run)
    before = {p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    done = polyfed("runs", "repair", "r", "--json")
    assert done.exit_code == 0, done.stderr or done.exception
    said = json.loads(done.stdout)
    after = {p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert before <= after  # set aside, never deleted
    assert all((run / "damaged").rglob(Path(name).name) for name in said["set_aside"])
    resumed = polyfed("resume", "r", "--json")
    assert resumed.exit_code == 0, resumed.stderr or resumed.exception
    summary = json.loads(resumed.stdout.splitlines()[-1])
    whole_summary = json.loads((whole / "result.json").read_text())
    assert summary["model_sha256"] == whole_summary["model_sha256"]
    assert summary["bytes_up"] == whole_summary["bytes_up"]
    assert repair(run).complete


def test_a_good_run_is_left_alone(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    done = polyfed("runs", "repair", "r")
    assert done.stdout == "r: the run is complete.\n"
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("keep", ["folder", "nothing"])
def test_a_complete_run_whose_checkpoints_were_cleared_away_is_left_alone(run: Path, keep: str) -> None:
    """Checkpoints are large, and nobody goes on from those of a run that is complete."""
    shutil.rmtree(run / "checkpoints")
    if keep == "folder":
        (run / "checkpoints").mkdir()
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert polyfed("runs", "repair", "r").stdout == "r: the run is complete.\n"
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert (run / "checkpoints").exists() == (keep == "folder")
    assert not (run / "damaged").exists()


def test_a_complete_run_with_another_model_in_it_is_not_whole(run: Path) -> None:
    arrays = {name: a + 1 for name, a in load_file(run / "model.safetensors").items()}
    (run / "model.safetensors").write_bytes(save(arrays))
    assert not repair(run).complete
    assert (run / "checkpoints").is_dir()


def test_rounds_after_the_newest_good_checkpoint_are_done_again(run: Path) -> None:
    (run / "result.json").unlink()
    last = RunDirectory(run).saved()[0]
    last.write_bytes(b"")
    found = repair(run)
    assert found.round < 4
    assert len(RunDirectory(run).history()) == found.round
    assert any("metrics.jsonl" in line for line in found.done)
    assert f"from round {found.round}" in found.sentence() or found.round == 0


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_what_is_no_run(name: str) -> None:
    Path("file").touch()
    done = polyfed("runs", "repair", name)
    assert (done.exit_code, "is not a run" in done.stderr) == (2, True)


def test_a_run_whose_experiment_is_lost(run: Path) -> None:
    (run / "experiment.toml").write_bytes(b"[")
    (run / "started.toml").unlink()
    with pytest.raises(BadInput, match=r"neither its experiment.toml nor its started.toml"):
        repair(run)
