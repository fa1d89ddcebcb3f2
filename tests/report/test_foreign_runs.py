"""Files that somebody else wrote, or broke: figures are made of what can be read, and nothing falls over."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_runs import falling, made_run
from polyfed.report import Record
from polyfed.report.csv_files import as_csv
from polyfed.report.figures import figures_of
from polyfed.report.records import find
from polyfed.report.settings import differences
from polyfed.report.thinning import thinned
from polyfed.report.words import words

NAMES = (
    "losses",
    "metrics",
    "left",
    "right",
    "accuracy",
    "weights",
    "gap",
    "clients",
    "mean",
    "std",
    "worst_10",
    "loss",
)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
THINGS = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
)
KEYS = (
    "losses", "metrics", "weights", "train", "gap", "clients", "splits", "personalised", "improved", "failures",
    "cohort", "bytes_up", "seconds", "progress", "stationarity", "split", "bounds", "not_computed", "mine",
)  # fmt: skip
LINES = st.lists(st.dictionaries(st.sampled_from(KEYS), THINGS, max_size=8), min_size=1, max_size=4)


def everything(records: list[Record]) -> None:
    for figure in figures_of(records):
        json.dumps(thinned(figure, 10).to_json(6), allow_nan=False)
        as_csv(figure)
    differences(records)
    for record in records:
        words(record)
        assert isinstance(record.tags, tuple)


@given(LINES, st.lists(THINGS, max_size=3), THINGS)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_lines_of_any_kind_are_read(lines: list[dict[str, Any]], clients: list[Any], told: Any) -> None:
    whole = [{"round": i, **line} for i, line in enumerate(lines, start=1)]
    asked = [{"round": i, "clients": one} for i, one in enumerate(clients, start=1)]
    summary = {"objectives": told, "best": told, "better": told, "bounds": told, "tasks": told, "never_used": told}
    hostile = Record.of(whole, "one", {"seed": 0}, summary, asked)
    everything([hostile, Record.of(falling(2), "two", {"seed": 0})])
    everything([hostile])


@given(st.dictionaries(st.sampled_from(["algorithm", "models", "data", "seed", "rounds", "name", "schedule"]), THINGS))
@settings(max_examples=50, deadline=None)
def test_settings_of_any_kind_are_read(table: dict[str, Any]) -> None:
    everything([Record.of(falling(2), "one", table), Record.of(falling(2), "two", {"algorithm": "fedavg"})])


@pytest.mark.parametrize("text", ["[]", "3", '{"round": true}', '{"round": -1}', '{"round": 1e400}', "{" * 50_000,
                                  '{"round": 99999999999999999999999}', "\\ud800", '{"round": 1.5}'])  # fmt: skip
def test_what_is_no_line_is_left_out(tmp_path: Path, text: str) -> None:
    path = made_run(tmp_path / "one", falling(2))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(text + "\n")
    (path / "clients.jsonl").write_text(text + "\n" + '{"round": 1, "clients": 3}\n')
    record = Record.read(path)
    assert len(record.columns) == 2
    everything([record])


@pytest.mark.parametrize(
    "name", ["experiment.toml", "result.json", "metrics.jsonl", "clients.jsonl", "model.safetensors"]
)
def test_a_folder_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    path = made_run(tmp_path / "one", falling(2))
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    if name != "experiment.toml":
        everything([Record.read(path)])
    else:
        from polyfed.report import find

        assert find([tmp_path]).records == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with pipes")
@pytest.mark.parametrize("file", ["metrics.jsonl", "clients.jsonl", "result.json", ".lock", "experiment.toml"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path, file: str) -> None:
    made_run(tmp_path / "good", falling(2))
    made_run(tmp_path / "odd", falling(2))
    (tmp_path / "odd" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "odd" / file)
    os.mkfifo(tmp_path / "study.json")
    found = find([tmp_path])
    everything(found.records)
    assert [record.state for record in found.records] == ["stopped"] * len(found.records)
    assert [record.name for record in found.records] == (["good"] if file == "experiment.toml" else ["good", "odd"])
    assert any("study.json" in sentence for sentence in found.skipped)
    assert (file != "experiment.toml") == (len(found.skipped) == 1)


@pytest.mark.parametrize(
    "head", [f"[{'.'.join('a' * 5000)}]", "\n".join(f"[[{'.'.join('a' * i)}]]" for i in range(1, 300))]
)
def test_tables_in_tables_without_end_are_refused(tmp_path: Path, head: str) -> None:
    made_run(tmp_path / "a", falling(2))
    (tmp_path / "a" / "experiment.toml").write_text(f"{head}\nb = 1\n", encoding="utf-8")
    found = find([tmp_path])
    assert not found.records
    assert "tables in tables" in found.skipped[0]


def test_a_line_of_tables_in_tables_is_read(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"x": 1.0}
    for _ in range(300):
        deep = {"x": deep}
    record = Record.of([{"round": 1, "losses": {"left": 1.0}, "mine": deep}], "a")
    everything([record])
    assert record.objectives == ("left",)
