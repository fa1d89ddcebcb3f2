"""Run directories are read as they are: without torch, without writing, and whatever a crash has left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from made_runs import falling, made_line, made_run
from polyfed.core.errors import BadInput
from polyfed.report import Record, Tail, find


def test_a_record_has_settings_rounds_and_summary(tmp_path: Path) -> None:
    summary = {"algorithm": "fedavg", "objectives": {"left": {"loss": 1.0}}, "rounds": 3}
    record = Record.read(made_run(tmp_path / "one", falling(3), summary=summary))
    assert (record.name, record.algorithm, record.seed, record.rounds, record.state) == ("one", "fedavg", 0, 3, "done")
    assert record.objectives == ("left", "right")
    assert record.settings["algorithm"] == {"name": "fedavg", "lr": 0.1}
    assert "format" not in record.settings
    assert "fedavg" in record.tags
    assert "seed 0" in record.tags


def test_every_number_of_the_lines_is_a_curve(tmp_path: Path) -> None:
    lines = [made_line(t, {"left": 2.0 / t}, gap=0.1 * t) for t in (1, 2, 3)]
    lines[1].pop("losses")
    columns = Record.read(made_run(tmp_path / "one", lines)).columns
    losses, gap = columns.curve("losses", "left"), columns.curve("gap")
    assert losses is not None
    assert losses.rows.tolist() == [0, 2]
    assert losses.values.tolist() == [2.0, 2.0 / 3]
    assert gap is not None
    assert gap.values.tolist() == [0.1, 0.2, 0.1 * 3]
    assert columns.curve("nothing") is None
    assert columns.total("seconds").tolist() == [0.5, 1.0, 1.5]
    assert columns.keys("metrics", "left") == ["accuracy"]
    assert columns.asked == {0: 3, 1: 3}


def test_null_is_not_a_number_and_a_gap(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", [made_line(1, {"left": 1.0}), {**made_line(2, {}), "losses": {"left": None}}])
    curve = Record.read(path).columns.curve("losses", "left")
    assert curve is not None
    assert np.isnan(curve.values[1])
    assert curve.values[0] == 1.0


def test_objectives_that_come_and_go_keep_their_rounds(tmp_path: Path) -> None:
    lines = [made_line(1, {"a": 1.0}), made_line(2, {"a": 2.0, "b": 20.0}), made_line(3, {"a": 3.0})]
    columns = Record.read(made_run(tmp_path / "one", lines)).columns
    a, b = columns.curve("losses", "a"), columns.curve("losses", "b")
    assert a is not None
    assert a.rows.tolist() == [0, 1, 2]
    assert a.values.tolist() == [1.0, 2.0, 3.0]
    assert b is not None
    assert b.rows.tolist() == [1]
    assert b.values.tolist() == [20.0]


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(2))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "losses": {"le')
    record = Record.read(path)
    assert len(record.columns) == 2
    assert record.last is not None
    assert record.last["round"] == 2
    with (path / "metrics.jsonl").open("a") as file:
        file.write('ft": 0.5}}\n')
    assert record.update()
    assert len(record.columns) == 3
    assert not record.update()


def test_a_tail_reads_only_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"round": 1}\n{"round": 2}\n')
    assert [line["round"] for line in tail.read()] == [1, 2]
    with path.open("a") as file:
        file.write('{"round": 3}\nnonsense\n[4]\n{"round": 5}\n')
    assert [line["round"] for line in tail.read()] == [3, 5]
    assert not tail.began_again
    assert tail.read() == []


def test_a_run_that_went_back_is_read_anew(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(5))
    record = Record.read(path)
    assert len(record.columns) == 5
    made = path / "metrics.new"
    made.write_text("".join(json.dumps(line) + "\n" for line in falling(6, start=9.0)))
    os.replace(made, path / "metrics.jsonl")  # as resuming does
    assert record.update()
    assert len(record.columns) == 6
    curve = record.columns.curve("losses", "left")
    assert curve is not None
    assert curve.values[0] == 9.0


def test_the_last_line_is_found_behind_a_long_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n' + json.dumps({"round": 2, "cohort": list(range(50_000))}) + "\n")
    last = Tail(path).last()
    assert last is not None
    assert last["round"] == 2
    assert len(last["cohort"]) == 50_000


def test_running_is_whoever_holds_the_lock_and_looking_does_not_take_it(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(2))
    record = Record.read(path)
    states = [record.state]
    assert not (path / ".lock").exists()
    lock = FileLock(path / ".lock")
    with lock.acquire(timeout=1):
        states.append(record.state)
        assert lock.is_locked
    assert [*states, record.state] == ["stopped", "running", "stopped"]
    with lock.acquire(timeout=1):  # still to be had
        assert lock.is_locked


def test_find_walks_folders_and_says_what_it_skips(tmp_path: Path) -> None:
    made_run(tmp_path / "b", falling(1))
    made_run(tmp_path / "deep" / "a", falling(1))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "experiment.toml").write_text("= nonsense")
    study = tmp_path / "study"
    made_run(study / "cell", falling(1))
    (study / "study.json").write_text('{"kind": "tune", "cells": []}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "front.json").write_text("[")
    found = find([tmp_path, tmp_path / "nowhere"])
    assert [record.name for record in found.records] == ["b", "deep/a", "study/cell"]
    assert [(one.kind, [r.name for r in one.records]) for one in found.studies] == [("tune", ["study/cell"])]
    assert len(found.skipped) == 3
    assert all(len(said) <= 400 for said in found.skipped)
    assert any("broken" in said for said in found.skipped)
    assert any("nowhere" in said for said in found.skipped)


def test_one_run_given_twice_is_one_record(tmp_path: Path) -> None:
    path = made_run(tmp_path / "runs" / "one", falling(1))
    assert len(find([path, tmp_path / "runs", path]).records) == 1


def test_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(1), {"format": 99})
    with pytest.raises(BadInput, match="format 99"):
        Record.read(path)


def test_a_broken_summary_is_as_good_as_none(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(2))
    (path / "result.json").write_text("{")
    record = Record.read(path)
    assert record.summary is None
    assert record.state == "stopped"
    assert len(record.columns) == 2


def test_lines_in_memory_are_a_record_too() -> None:
    record = Record.of(falling(3), "here", {"algorithm": "fedavg"})
    assert record.columns.curve("losses", "left") is not None
    assert record.algorithm == "fedavg"
    assert record.last is not None
    assert record.last["round"] == 3
    assert not record.update()


def test_reading_needs_no_torch() -> None:
    code = "import sys, polyfed.report, polyfed.report.figures; print('torch' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("metric", "better"),
    [("loss", "lower"), ("accuracy", "higher"), ("absolute_error", "lower"), ("auc", "higher"), ("zebra", "")],
)
def test_the_way_that_is_better_goes_by_name_where_no_run_says_it(metric: str, better: str) -> None:
    assert Record.of(falling(1), "one").better("left", metric) == better


def test_the_way_that_is_better_is_what_the_run_says() -> None:
    told = {"better": {"left": {"zebra": "higher", "accuracy": "lower"}}}
    record = Record.of(falling(1), "one", summary=told)
    assert (record.better("left", "zebra"), record.better("left", "accuracy")) == ("higher", "lower")
