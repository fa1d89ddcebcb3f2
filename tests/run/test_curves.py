"""Small curves in a terminal: as wide and as high as it is, in characters that it has, cheap in long runs."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.run.curves import ASCII, BLOCKS, MOST_POINTS, Curve, Curves, levels_of
from polyfed.run.directory import RunDirectory

SMALL = ["--set", "data.clients=4", "--set", "data.examples=60", "--set", "cohort=2"]


def curve(*values: float | None) -> Curve:
    made = Curve()
    for round, value in enumerate(values, 1):
        made.add(round, value)
    return made


def curves(objectives: int, name: str = "o") -> Curves:
    made = Curves()
    for t in (1, 2, 3):
        made.add({"round": t, "losses": {f"{name}{k}": 1 / t for k in range(objectives)}})
    made.add({"round": 4})  # without an evaluation
    return made


def test_a_curve_falls_as_its_losses_do() -> None:
    assert curve(*(2.0**-k for k in range(8))).drawn(20) == BLOCKS[::-1]  # by logarithms
    assert curve(3, 2, 1, 0, -1, -2, -3, -4).drawn(20) == BLOCKS[::-1]  # which these do not have
    assert curve(4, None, 1, math.inf, 2).drawn(20) == "█ ▁ ▅"
    assert curve(0.5, 0.5).drawn(20) == "▅▅"
    assert curve(None).drawn(20) == " "
    assert curve().drawn(20) == ""


def test_last_and_best_are_the_true_ones_of_a_thinned_curve() -> None:
    made = curve(*((5000 - t) / 100 if t != 77 else 1e-9 for t in range(5000)), None)
    assert math.isnan(made.last)
    assert (made.best, made.best_round) == (1e-9, 78)
    assert len(made._points) < MOST_POINTS
    drawn = made.drawn(40)
    assert len(drawn) == 40
    assert sorted(drawn, reverse=True) == list(drawn), drawn


@pytest.mark.parametrize(("width", "height", "shown"), [(100, 40, 8), (80, 9, 5), (40, 24, 8), (30, 3, 1)])
def test_lines_fit_the_terminal_and_the_rest_are_counted(width: int, height: int, shown: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=height)
    lines = [text.plain for text in curves(12, "a long name, 日本, of an objective ").lines(console)]
    assert len(lines) == shown + 1
    assert lines[-1] == f"and {12 - shown} more objectives"
    assert all(cell_len(line) <= width for line in lines)
    assert all("0.3333" in line for line in lines[:-1])
    assert ("best 0.3333 in round 3" in lines[0]) == (width >= 64)


def test_no_rest_is_counted_where_there_is_none() -> None:
    lines = curves(2).lines(Console(file=io.StringIO(), width=80, height=24))
    assert [line.plain.split()[0] for line in lines] == ["o0", "o1"]


def test_characters_that_the_terminal_has() -> None:
    assert levels_of("utf-8") == BLOCKS
    assert levels_of("ascii") == levels_of("latin-1") == levels_of("no such") == ASCII
    assert ASCII.isascii()


def test_a_resumed_run_begins_with_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["run", *SMALL, "--rounds", "3", "--out", "r"]).exit_code == 0
    Path("r/result.json").unlink()
    settings = Path("r/experiment.toml")
    settings.write_text(settings.read_text().replace("rounds = 3\n", "rounds = 5\n"))
    out = io.StringIO()
    monkeypatch.setattr("polyfed.run.display.Console", lambda **_: Console(file=out, width=90, height=20))
    monkeypatch.setattr("polyfed.callbacks.printer.shown_progress", _bar)
    done = CliRunner().invoke(app, ["resume", "r", "--json"])
    assert done.exit_code == 0, done.stderr
    (line,) = re.findall(r"^left .*$", out.getvalue(), re.MULTILINE)
    assert sum(c in BLOCKS for c in line) == 5
    last = RunDirectory(Path("r")).history()[-1]["losses"]["left"]
    assert f" {last:.4g} " in line


def _bar(rounds: int) -> object:
    from polyfed.run.display import Progress

    return Progress()


def test_without_a_terminal_lines_go_to_stderr_and_stdout_is_the_table() -> None:
    done = CliRunner().invoke(app, ["run", *SMALL, "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert [line.split("  ")[0] for line in done.stderr.splitlines()] == ["round 1/2", "round 2/2"]
    own = Path("e.toml")
    own.write_text('rounds = 2\ncohort = 2\n[data]\nexamples = 60\nclients = 4\n[[callbacks]]\nname = "printer"\n')
    done = CliRunner().invoke(app, ["run", str(own)])
    assert done.stderr.count("round 1/2") == 1, "an experiment that prints its rounds itself"
