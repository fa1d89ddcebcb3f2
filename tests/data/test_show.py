"""`polyfed data show`: the figures are right, the picture is drawn, what is missing is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyfed.cli.data import data_app
from polyfed.core.federation import Rows
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.build import federate
from polyfed.data.show import count_labels, describe, lines, show

runner = CliRunner()


def tiny() -> Dataset:
    """Eight rows for the clients, labels 0 0 0 0 1 1 2 2, and two for the server."""
    y = np.array([0, 0, 0, 0, 1, 1, 2, 2, 0, 1])
    names = ("y", "z")
    objectives = tuple(Objective(name, "cross-entropy") for name in names)
    return Dataset(np.zeros((10, 2), np.float32), dict.fromkeys(names, y), objectives, train=8, labels=y)


def test_figures_of_a_split_done_by_hand() -> None:
    rows = Rows.of([[0, 1], [2, 3, 4, 5], [5, 6]])
    federation = federate(tiny(), rows, holds=[[1, 0], [1, 1], [1, 1]])
    found = describe(tiny(), federation, count_labels(tiny(), federation.train))
    assert found == {
        "clients": 3,
        "rows": {"all": 8, "unowned": 1, "shared": 1},
        "server_rows": 2,
        "sizes": {"train": {"min": 2, "median": 2.0, "max": 4}},
        "labels": {
            "by": "label", "count": 3, "clients_looked_at": 3, "per_client": {"min": 1, "median": 2.0, "max": 2},
            "entropy_bits": round((0 + 1 + 1) / 3, 3), "entropy_bits_of_all": 1.406,
        },
        "objectives": {"y": 3, "z": 2},
    }  # fmt: skip


@pytest.mark.parametrize(("start", "unowned", "shared"), [([0, 6], 0, 4), ([2, 2], 2, 6), ([7, 1], 0, 4)])
def test_owners_are_counted_around_the_end(start: list[int], unowned: int, shared: int) -> None:
    rows = Rows(np.arange(8), np.array(start), np.array([6, 6]))
    federation = federate(tiny(), rows)
    found = describe(tiny(), federation, None)
    assert found["rows"] == {"all": 8, "unowned": unowned, "shared": shared}


def test_a_million_clients_are_looked_at_by_sample() -> None:
    table = {
        "name": "two-digits",
        "examples": 2000,
        "partition": "windows",
        "clients": 1_000_000,
        "rows_per_client": 100,
    }
    found = show("million", table, 0)
    assert found["labels"]["clients_looked_at"] == 1000
    assert found["rows"] == {"all": 2000, "unowned": 0, "shared": 2000}


def test_printed_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "split.png"
    asked = ["show", "two-digits", "--set", "data.test=0.2", "--set", "data.holds=one-each", "--out", str(out)]
    said = runner.invoke(data_app, asked).output.splitlines()
    assert said[0] == "two-digits, seed 0"
    assert said[1:5] == [
        "  clients    100, partition dirichlet",
        "  rows       10,000, each with one owner; 2,000 more at the server to test on",
        "  train      80 a client",
        "  test       20 a client",
    ]
    assert said[5].endswith("a client, of 100 (by label)")
    assert said[6].endswith("over all")
    assert said[7:] == ["  objectives held by 50 (left), 50 (right) clients", f"  picture    {out}"]
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert out.stat().st_size > 10_000


def test_json_and_a_picture_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(runner.invoke(data_app, ["show", "quadratic", "--json"]).output.splitlines()[-1])
    assert found["png"] == "quadratic-split.png"
    assert (tmp_path / "quadratic-split.png").is_file()
    assert found["labels"] is None
    assert found["sizes"] == {"train": {"min": 5, "median": 5.0, "max": 5}}
    assert any(line.endswith("f1, f2, everyone holds all") for line in lines(found))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "picture" not in runner.invoke(data_app, ["show", "quadratic"]).output
    asked = runner.invoke(data_app, ["show", "quadratic", "--out", str(tmp_path / "a.png")])
    assert asked.exit_code == 2
    assert asked.stderr == "polyfed: Drawing needs matplotlib, which is not installed: pip install 'polyfed[report]'.\n"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            ["quadratic", "--out", "nowhere/a.png"],
            "--out should be a file in a folder that exists. Found nowhere/a.png.",
        ),
        (["quadratic", "--out", "/"], "--out should be a file in a folder that exists. Found /."),
        (["quadratc"], "No experiment 'quadratc': neither a file nor built in. Did you mean 'quadratic'?"),
        (["quadratic", "--set", "data.clients=0"], "data.clients should be greater than or equal to 1. Found 0."),
        (["quadratic", "--set", "round=3"], "Unknown key 'round'. Did you mean 'rounds'?"),
    ],
)
def test_bad_input_is_a_sentence(asked: list[str], sentence: str) -> None:
    answer = runner.invoke(data_app, ["show", *asked])
    assert answer.exit_code == 2
    assert answer.stderr == f"polyfed: {sentence}\n"
