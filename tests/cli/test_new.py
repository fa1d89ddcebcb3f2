"""`polyfed new`: what it writes runs as it is, says what it can be changed to, and never overwrites."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.core.registry import forget


@pytest.fixture(autouse=True)
def _same_modules_after() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    if sys.modules.pop("mine", None):
        forget("mine")


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_it_runs_as_it_is_and_learns() -> None:
    made = polyfed("new", "first")
    assert (made.exit_code, made.stderr) == (0, "")
    assert "polyfed run first/experiment.toml" in made.stdout
    assert sorted(path.name for path in Path("first").iterdir()) == ["experiment.toml", "mine.py"]
    done = polyfed("run", "first/experiment.toml", "--rounds", "5", "--json")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["algorithm"], summary["split"], Path(summary["run"]).name[:6]) == ("fedcmoo", "test", "first-")
    assert summary["objectives"]["returns"]["accuracy"] > 0.75
    assert list(summary["objectives"]) == ["returns", "amount"]


def test_what_is_commented_out_runs_too() -> None:
    polyfed("new", "first")
    file = Path("first/experiment.toml")
    fixed, more = file.read_text().split("take the first # of a line away.\n")
    file.write_text(fixed + "\n" + "\n".join(line.removeprefix("# ") for line in more.splitlines()))
    assert {"objectives", "faults", "network", "attacks"} <= set(tomllib.loads(file.read_text()))
    done = polyfed("run", "first/experiment.toml", "--rounds", "1", "--set", "data.rows=600")
    assert done.exit_code == 0, done.stderr


def test_another_method_model_and_data_set_by_one_word_each() -> None:
    polyfed("new", "first")
    words = ["--algorithm", "fedavg", "--set", "model.name=linear", "--set", "data.name=synthetic", "--rounds", "1"]
    done = polyfed("run", "first/experiment.toml", *words, "--set", "data.users=12", "--set", "data.key=user")
    assert done.exit_code == 0, done.stderr
    assert "Left out, because fedavg does not have it: algorithm.weighting." in done.stderr
    assert "Left out, because synthetic does not have it: data.rows." in done.stderr
    assert "Left out, because linear does not have it: model.hidden." in done.stderr


def test_names_with_spaces_and_folders() -> None:
    made = polyfed("new", "some/where/my first")
    assert made.exit_code == 0, made.stderr
    assert "polyfed run 'some/where/my first/experiment.toml'" in made.stdout
    settings = tomllib.loads(Path("some/where/my first/experiment.toml").read_text(encoding="utf-8"))
    assert settings["name"] == "my first"


def test_what_exists_stays() -> None:
    Path("empty").mkdir()
    Path("file").write_text("mine")
    Path("lost").symlink_to("nowhere")
    for name in ("empty", "file", "lost"):
        done = polyfed("new", name)
        assert (done.exit_code, "exists already; choose a name that is new" in done.stderr) == (2, True), done.stderr
    assert list(Path("empty").iterdir()) == []
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "-x", 'a"b', "a\nb", "a\0b", ".hidden", "a:b", "x" * 300, "file/x"]
)
def test_odd_names_are_sentences(name: str) -> None:
    Path("file").write_text("mine")
    done = polyfed("new", "--", name)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "should be" in done.stderr or "cannot be made" in done.stderr
    assert len(done.stderr) <= 400
    assert [path.name for path in Path().iterdir()] == ["file"]
