"""What a person sees while a comparison runs, and at its end: in a terminal, and where nobody looks."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyfed.study import live
from polyfed.study.cells import Cell
from polyfed.study.live import Lines, LiveTable, last_figures, span, watching
from polyfed.study.runner import Outcome
from polyfed.study.showing import as_rich, as_text, cost_text, figure_text

CELLS = [Cell(row, seed, {"rounds": 4}, f"{row}-{seed}") for row in ("fedavg", "[red]x") for seed in (0, 1)]
OBJECTIVES = {"left": {"loss": 1.5, "accuracy": 0.5}, "right": {"loss": 2.5, "accuracy": 0.25}}


def line(round: int) -> dict[str, Any]:
    metrics = {name: {"accuracy": row["accuracy"]} for name, row in OBJECTIVES.items()}
    losses = {name: row["loss"] for name, row in OBJECTIVES.items()}
    return {"round": round, "seconds": 2.0, "losses": losses, "metrics": metrics}


def outcome(cell: Cell, why: str = "") -> Outcome:
    summary = None if why else {"objectives": OBJECTIVES, "seconds": 8.0}
    return Outcome(cell, Path(cell.name), summary, why)


def printed(thing: Any, terminal: bool = False, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None).print(thing)
    return file.getvalue()


def test_the_live_table_has_a_row_a_method_with_its_progress_and_time() -> None:
    shown = LiveTable(CELLS)
    for t in (1, 2):
        shown.line(CELLS[0], line(t))
    shown.outcome(outcome(CELLS[2]))
    shown.outcome(outcome(CELLS[3], "It diverged."))
    text = printed(shown._table())
    first, second = (next(one for one in text.splitlines() if row in one) for row in ("fedavg", "[red]x"))
    assert "0/2" in first
    assert "accuracy left 50.0 %, right 25.0 %" in first
    assert "12 s" in first  # six rounds of 2 s
    assert "2/2, 1 failed" in second
    assert "done" in second


def test_time_that_is_left_is_guessed_by_the_others_rounds_before_a_row_has_any() -> None:
    shown = LiveTable(CELLS)
    assert " s │" not in printed(shown._table())
    shown.line(CELLS[0], line(1))
    assert "16 s" in next(one for one in printed(shown._table()).splitlines() if "[red]x" in one)


def test_times_are_as_people_say_them() -> None:
    assert [span(t) for t in (0.4, 119, 125, 7000, 9000)] == ["0 s", "119 s", "2 min", "117 min", "2.5 h"]


def test_without_a_terminal_a_line_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(CELLS) as shown:
        assert isinstance(shown, Lines)
        shown.line(CELLS[0], line(1))
        for i, cell in enumerate(CELLS):
            shown.outcome(outcome(cell, "No\x1b[31m lr." if i == 3 else ""))
    assert capsys.readouterr().err.splitlines() == [
        "1/4 fedavg, seed 0: accuracy left 50.0 %, right 25.0 % (8.0 s)",
        "2/4 fedavg, seed 1: accuracy left 50.0 %, right 25.0 % (done before)",
        "3/4 [red]x, seed 0: accuracy left 50.0 %, right 25.0 % (done before)",
        "4/4 [red]x, seed 1: failed: No\\x1b[31m lr.",
    ]


def test_in_a_terminal_the_table_is_live_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with live.watching(CELLS) as shown:
        assert isinstance(shown, LiveTable)
        shown.line(CELLS[0], line(1))
    assert "last figures" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the last of its lines is taken away


def test_figures_on_a_line_are_few() -> None:
    many = {f"o{i}": {"loss": float(i)} for i in range(7)}
    assert last_figures(many) == "loss o0 0, o1 1, o2 2, o3 3, and 3 more"
    assert last_figures({"a": {"loss": None}}) == "loss a -"


def about(why: str = "") -> dict[str, Any]:
    def spread(mean: float) -> dict[str, Any]:
        return {"mean": mean, "std": 0.01, "values": [mean, mean]}

    rows = [
        {
            "row": row, "runs": 2, "figures": {"left.accuracy": {**spread(mean), "best": mean == 0.9}},
            "to_target": {"reached": reached, "rounds": spread(3.0), "bytes_up": spread(2e6), "seconds": spread(1.0)},
        }
        for row, mean, reached in (("good", 0.9, 2), ("[i]bad", 0.8, 1))
    ]  # fmt: skip
    figure = {"key": "left.accuracy", "title": "left accuracy", "metric": "accuracy", "shown": True}
    return {
        "name": "small", "seeds": [0, 1], "rounds": None, "split": "test", "figures": [figure], "table": rows,
        "target": {"text": "left accuracy is at least 0.7"}, "tests": {"why": "No test.", "pairs": [], "name": None},
        "cells": [{"row": row, "seed": seed, "why": why if row == "good" else ""} for row in ("good", "[i]bad")
                  for seed in (0, 1)],
    }  # fmt: skip


def test_the_best_is_bold_in_a_terminal_and_has_a_star_elsewhere() -> None:
    screen = printed(as_rich(about(), 120), terminal=True)
    assert re.search(r"\x1b\[1m *90.0 ± 1.0 %\x1b\[0m", screen)
    assert not re.search(r"\x1b\[1m *80.0", screen)
    text = as_text(about("It diverged."))
    assert "90.0 ± 1.0 % *" in text
    assert "[i]bad (1 of 2 runs)" in text
    assert "The last evaluation of each run, on test data" in text
    assert "good, seeds 0, 1, failed: It diverged." in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [44, 60, 80, 120])
def test_columns_that_have_no_room_go_on_below(width: int) -> None:
    wide = about()
    wide["figures"] = [{**wide["figures"][0], "key": f"o{i}", "title": f"objective {i}"} for i in range(6)]
    for row in wide["table"]:
        row["row"] += " with=settings of=its own"
        row["figures"] = {f"o{i}": row["figures"]["left.accuracy"] for i in range(6)}
    text = printed(as_rich(wide, width), width=width)
    assert all(f" objective {i} " in text for i in range(6))
    assert text.count(" 90.0 ± 1.0 % ") == 6
    assert text.count(" good ") > 6 * 20 // width
    assert "…" not in text


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_terminal_has_the_whole_live_table(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cells = [Cell("fedcmoo compress=sketch lr=0.1 of=a long name", 0, {"rounds": 4}, "long")]
    shown = LiveTable(cells)
    shown.line(cells[0], line(2))
    rows = printed(shown._table(), width=width).splitlines()
    assert rows[1].endswith(" work left ┃")
    assert rows[3].endswith(" 4 s │")
    assert " fedcmoo" in rows[3]


def test_numbers_are_as_long_as_they_need_to_be() -> None:
    assert figure_text("loss", {"mean": 0.5, "std": 0.01}) == "0.500 ± 0.010"
    assert figure_text("loss", {"mean": 1.5e-5, "std": 1e-6}) == "1.5e-05 ± 1e-06"
    assert figure_text("loss", {"mean": 0.5, "std": None}) == "0.5"
    assert figure_text("accuracy", {"mean": None, "std": None}) == "-"
    assert [cost_text(key, 1500.0) for key in ("rounds", "bytes_up", "seconds")] == ["1500.0", "1.5 kB", "1500.0 s"]
