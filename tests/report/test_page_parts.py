"""The parts of a page: markup, packed numbers, results, sections of studies, the weight of it all."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.core.errors import BadInput
from polyfed.report.figure import Axis, Figure, Series
from polyfed.report.markup import Html, cell, header, table, tag, text
from polyfed.report.packing import in_script, packed
from polyfed.report.page import page, plotly_script
from polyfed.report.records import Record, Study, find
from polyfed.report.results import results
from polyfed.report.sections import counted, listed, size, span
from polyfed.report.studies import study_sections
from polyfed.report.writing import ROOM, as_named, left_over, small, write_report
from rundirs import line_of, write_front, write_run


def test_texts_and_attributes_are_escaped() -> None:
    made = tag("p", "<b>&", tag("i", "x"), title='"><script>', hidden=True, id=None)
    assert made == '<p title="&quot;&gt;&lt;script&gt;" hidden>&lt;b&gt;&amp;<i>x</i></p>'
    assert text("a\u202eb\x00c\ud800") == "a\\u202eb\\x00c\\ud800"


def test_a_column_of_words_has_its_name_above_its_words() -> None:
    made = table(["a", "b", "c"], [[header("r"), cell("word", words=True), cell(3, best=True)]], "what it is")
    assert '<th scope="col" class="text">b</th><th scope="col">c</th>' in made
    assert '<td class="best">3<span class="unseen"> (best)</span></td>' in made
    assert 'aria-label="what it is"' in made


def line_figure(y: np.ndarray[Any, np.dtype[np.float64]], key: str = "losses", series: int = 1) -> Figure:
    rounds = {"round": Axis("round", "round")}
    some = [Series(f"s{i}", y, {"round": np.arange(1.0, len(y) + 1)}, panel=f"p{i % 40}") for i in range(series)]
    panels = tuple(f"p{i}" for i in range(min(40, series)))
    return Figure(key, "Losses", "About.", "lines", Axis("loss", "loss"), rounds, tuple(some), panels=panels)


def test_long_lists_are_packed_and_short_ones_are_not() -> None:
    y = np.array([0.1, np.nan, *range(20)])
    told = packed(line_figure(y))
    kind, _, data = told["series"][0]["y"].partition(":")
    assert kind == "f4"
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(data), "<f4"), y.astype("f4"))
    assert packed(line_figure(y[:3]))["series"][0]["y"] == [0.1, None, 0]


def test_no_text_ends_a_script_element() -> None:
    told = in_script({"name": "</script><!--<script>&"})
    assert not set("<>&") & set(told)
    assert json.loads(told) == {"name": "</script><!--<script>&"}


def test_seeds_of_a_method_are_one_row_with_their_spread() -> None:
    def run(method: str, seed: int, loss: float) -> Record:
        settings = {"seed": seed, "algorithm": {"name": method}}
        return Record.of([{"round": 1, "losses": {"a": loss}}], f"{method}-{seed}", settings)

    found = results([run("one", 0, 0.5), run("one", 1, 0.7), run("two", 0, 0.8), run("two", 1, 0.9)])
    assert [(row.name, row.seeds, row.shown(("a", "loss"))) for row in found.rows] == [
        ("one", 2, "0.600 ± 0.141"), ("two", 2, "0.850 ± 0.071"),
    ]  # fmt: skip
    assert found.best(("a", "loss")) == {"one"}


def test_the_best_is_the_highest_where_higher_is_better_and_nothing_among_one() -> None:
    def run(name: str, value: float) -> Record:
        line = {"round": 1, "losses": {"a": 1.0}, "metrics": {"a": {"accuracy": value}}}
        return Record.of([line], name, {"algorithm": {"name": name}})

    found = results([run("low", 0.2), run("high", 0.9), run("none", float("nan"))])
    assert found.best(("a", "accuracy")) == {"high"}
    assert found.best(("a", "loss")) == {"low", "high", "none"}
    assert results([run("low", 0.2)]).best(("a", "accuracy")) == set()


def test_words_for_counts_and_sizes() -> None:
    assert [listed(names) for names in ([1], [1, 2], "abc", "abcdefgh")] == [
        "1",
        "1 and 2",
        "a, b and c",
        "a, b, c, d and 4 more",
    ]
    assert [counted(1, "run"), counted(2000, "run")] == ["1 run", "2,000 runs"]
    assert [size(999), size(1.5e6), size(2e13)] == ["999 B", "1.5 MB", "20 TB"]
    assert [span(3.14159), span(600), span(86400)] == ["3.14 s", "10 min", "24 h"]


COMPARED: dict[str, Any] = {
    "kind": "compare", "seeds": [0, 1], "split": "test", "notes": ["Left out: nothing."],
    "cells": [{"row": "one", "seed": 1, "state": "failed", "why": "It <b>stopped."}],
    "figures": [{"key": "a.loss", "title": "a loss", "shown": True}, {"key": "b", "title": "b", "shown": False}],
    "target": {"text": "loss at most 0.5"},
    "table": [
        {"row": "one", "runs": 1, "figures": {"a.loss": {"mean": 0.51, "std": None, "best": True}},
         "to_target": {"reached": 0, "rounds": {"mean": None}}},
        {"row": "two", "runs": 2, "figures": {"a.loss": {"mean": 0.6, "std": 0.1, "best": False}},
         "to_target": {"reached": 2, "rounds": {"mean": 7}, "bytes_up": {"mean": 2e6}, "seconds": {"mean": 4}}},
    ],
    "tests": {"name": "a test", "pairs": [
        {"figure": "a.loss", "better": "one", "worse": "two", "difference": 0.09, "p": 0.01, "holds": True}]},
}  # fmt: skip


def test_a_comparison_has_its_table_what_it_took_and_who_beats_whom() -> None:
    (made,) = study_sections([Study(Path("compare-x"), "compare", COMPARED)])
    assert '<th scope="row">one (1 of 2 runs)</th><td class="best">0.51<' in made
    assert "<td>0.600 ± 0.100</td>" in made
    assert "<td>2 of 2</td><td>7.0</td><td>2 MB</td><td>4 s</td>" in made
    assert "Who beats whom: a test." in made
    assert "It &lt;b&gt;stopped." in made
    unsure = COMPARED | {"tests": {"name": "a test", "pairs": []}}
    assert "No method is better" in study_sections([Study(Path("x"), "compare", unsure)])[0]
    early = {"kind": "compare", "cells": [{}, {}]}
    assert "not complete" in study_sections([Study(Path("x"), "compare", early)])[0]


def test_a_search_has_its_trials() -> None:
    trials = [
        {"trial": 0, "values": {"lr": 0.1}, "state": "done", "rounds": 5, "figures": {"a": 0.4}, "why": ""},
        {
            "trial": 1,
            "values": {"lr": 0.2},
            "state": "early",
            "rounds": 2,
            "figures": {"a": 0.9},
            "why": "Ended early.",
        },
    ]
    told = {"columns": ["a"], "higher": False, "trials": trials, "front": [0], "notes": []}
    (made,) = study_sections([Study(Path("tune-x"), "tune", told)])
    assert '<td class="best">0.4<' in made
    assert "Ended early." in made
    assert "Not dominated by another: 0." in made


@pytest.mark.parametrize(
    "told", [{}, {"points": 3, "objectives": []}, {"table": None, "cells": []}, {"trials": [None]}]
)
def test_a_study_that_says_it_in_another_way_is_left_out(told: dict[str, Any]) -> None:
    kinds = ("compare", "front", "tune", "other")
    assert study_sections([Study(Path("x"), kind, told) for kind in kinds]) == []


def test_a_front_is_a_report_of_its_points(tmp_path: Path) -> None:
    write_front(tmp_path / "front", points=3)
    found = find([tmp_path / "front"])
    (made,) = study_sections(found.studies)
    assert "3 of 3 points are not dominated by another; hypervolume 1.5; spacing 0.04." in made
    done = write_report([tmp_path / "front"], tmp_path / "page.html")
    whole = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert done.written == [tmp_path / "page.html"]
    assert done.skipped == []
    assert "<title>Front of two-digits</title>" in whole
    assert 'id="study"' in whole
    assert 'id="results"' not in whole


def test_many_runs_of_many_objectives_make_a_page_below_eight_megabytes() -> None:
    rng = np.random.default_rng(0)
    figures = [line_figure(rng.normal(size=1000), key, 800) for key in ("losses", "accuracy", "weights", "train")]
    some = small(figures)
    assert sum(len(one) for figure in some for one in figure.series) < ROOM
    assert min(len(one) for figure in some for one in figure.series) >= 25
    whole = page([Record.of([line_of(1)], "run")], some, "many")
    assert len(whole.encode()) < 8e6
    bare = page([Record.of([line_of(1)], "run")], [], "none")
    assert len(bare) < len(plotly_script()) / 2  # which is packed


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"at least one run: .*nowhere.* does not exist"):
        write_report([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"experiment\.toml"):
        write_report([tmp_path / "empty"])


def test_a_run_that_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    write_run(tmp_path / "good", rounds=3)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "experiment.toml").write_text("= broken", encoding="utf-8")
    done = write_report([tmp_path], tmp_path / "page.html")
    assert len(done.skipped) == 1
    assert "bad" in done.skipped[0]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    with pytest.raises(BadInput, match="cannot be written"):
        write_report([tmp_path / "run"], tmp_path / "nowhere" / "page.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="choose another -o"):
        write_report([tmp_path / "run"], tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run"]


def test_a_run_without_a_round_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=0, done=False)
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "stopped" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_markup_made_here_is_not_escaped_again() -> None:
    assert tag("p", Html("<b>x</b>"), None, 3) == "<p><b>x</b>3</p>"


@pytest.mark.parametrize("kind", ["cells", "points"])
def test_runs_that_another_call_left_in_a_studys_folder_are_not_of_it(kind: str, tmp_path: Path) -> None:
    for name in ("named", "left"):
        write_run(tmp_path / name)
    found = find([tmp_path / "named", tmp_path / "left"])
    study = Study(tmp_path, "compare", {kind: [{"run": "named"}]})
    assert [record.name for record in found.records if not left_over(record, [study])] == ["named"]


def test_a_studys_runs_come_as_it_names_them(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write_run(tmp_path / name)
    found = find([tmp_path / name for name in ("a", "b", "c", "d")])
    as_named(found.records, Study(tmp_path, "compare", {"cells": [{"run": "d"}, {"run": "b"}, {"run": "a"}, "odd"]}))
    assert [record.name for record in found.records] == ["d", "b", "c", "a"]
