"""Figures as files: pictures in a column's width, and tables with every point."""

from __future__ import annotations

import csv
import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import falling, made_line
from polyfed.core.errors import BadInput
from polyfed.report import Axis, Figure, Record, Series
from polyfed.report.csv_files import as_csv, write_csv
from polyfed.report.drawing import draw, save, svg
from polyfed.report.figures import figures_of, front, losses, radar


def run(name: str = "fedavg", lines: list[dict[str, Any]] | None = None) -> Record:
    return Record.of(falling(5) if lines is None else lines, name, {"algorithm": {"name": name}})


def loss_figure() -> Figure:
    figure = losses([run()])
    assert figure is not None
    return figure


def width(png: bytes) -> float:
    """Inches of a picture of 300 dots an inch."""
    return float(struct.unpack(">I", png[16:20])[0]) / 300


KINDS: dict[str, Figure] = {
    "lines": Figure("a", "A", "About.", "lines", Axis("y", "y"), {"x": Axis("x", "x", unit="bytes")},
                    (Series("one", np.arange(3.0), {"x": np.arange(3.0)}, np.zeros(3), np.ones(3)),)),
    "points": Figure("b", "B", "About.", "points", Axis("y", "y"), {"x": Axis("x", "x")},
                     (Series("one", np.arange(3.0), {"x": np.arange(3.0)}, mode="points"),)),
    "bars": Figure("c", "C", "About.", "bars", Axis("y", "y"), {"x": Axis("x", "x")},
                   (Series("one", np.arange(2.0)), Series("two", np.ones(2))), ("a rather long name", "b")),
    "dots": Figure("d", "D", "About.", "dots", Axis("y", "y"), {"x": Axis("x", "x")},
                   (Series("one", np.ones(2), low=np.zeros(2), high=2 * np.ones(2)),), ("a", "b")),
    "heatmap": Figure("e", "E", "About.", "heatmap", Axis("y", "y"), {"x": Axis("x", "x")}, (), ("a", "b"),
                      matrix=np.eye(2), rows=("a", "b"), diverging=True),
    "radar": Figure("f", "F", "About.", "radar", Axis("y", "y"), {}, (Series("one", np.ones(3)),), ("a", "b", "c")),
    "parallel": Figure("g", "G", "About.", "parallel", Axis("y", "y"), {}, (Series("one", np.ones(2)),), ("a", "b"),
                       (Axis("a", "a", low=0.0, high=1.0), Axis("b", "b"))),
    "ternary": Figure("h", "H", "About.", "ternary", Axis("y", "y"), {}, (
        Series("one", np.arange(2.0), {"a": np.array([1, 0.2]), "b": np.array([0, 0.3]), "c": np.array([0, 0.5])}),
    ), ("a", "b", "c")),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_is_drawn_without_a_word(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    text = svg(KINDS[kind])
    assert text.startswith("<svg ")
    assert 'role="img"' in text
    assert 'aria-label="About."' in text
    assert "<script" not in text
    assert not recwarn.list


def test_pictures_are_as_wide_as_a_column_or_a_page(tmp_path: Path) -> None:
    figures = [figure for figure in figures_of([run(), run("fedcmoo")]) if figure.key in ("losses", "front")]
    for path, figure in zip(save(figures, tmp_path / "new" / "png", "png"), figures, strict=True):
        assert path.name == f"{figure.key}.png"
        assert width(path.read_bytes()) == pytest.approx(7.0 if figure.wide else 3.4, abs=0.01)
    assert save(figures[:1], tmp_path / "pdf", "pdf")[0].read_bytes().startswith(b"%PDF")


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    one, two = (save([loss_figure()], tmp_path / name, "pdf")[0].read_bytes() for name in ("a", "b"))
    assert one == two
    assert svg(loss_figure()) == svg(loss_figure())


def test_names_in_a_drawing_are_text_and_neither_markup_nor_formulas(recwarn: pytest.WarningsRecorder) -> None:
    evil = ('<script>alert("x")</script>', "a $\\frac{1}{$ b", "\x1b[31m 漢字 " + "long " * 50)
    records = [run(name, falling(2, evil)) for name in ("fedavg", "fedcmoo")]
    for figure in [figure for figure in figures_of(records) if figure.key in ("losses", "front", "radar")]:
        text = svg(figure)
        assert "<script" not in text
        assert "\x1b" not in text
    assert not recwarn.list


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    code = (
        "import matplotlib, sys; now = lambda: [matplotlib.rcParams[key] for key in ('font.size', 'axes.grid')]\n"
        "before = now()\n"
        "from polyfed.report import Record; from polyfed.report.drawing import draw; "
        "from polyfed.report.figures import losses\n"
        "line = {'round': 1, 'losses': {'f': 1.0}, 'failures': [], 'seconds': 1, 'bytes_up': 1, 'bytes_down': 1}\n"
        "draw(losses([Record.of([line], 'one')]))\n"
        "print(now() == before, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_figure_is_drawn_against_the_axis_that_is_asked_for() -> None:
    axes = draw(loss_figure(), x="bytes_up").axes[0]
    assert axes.get_xlabel().startswith("bytes")
    assert axes.lines[0].get_xdata().tolist() == [1000.0 * t for t in range(1, 6)]
    with pytest.raises(BadInput, match="simulated"):
        draw(loss_figure(), x="simulated")


def test_rounds_are_whole_numbers_along_an_axis() -> None:
    figure = losses([run(lines=falling(4))])
    assert figure is not None
    ticks = draw(figure).axes[0].get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)


def test_colours_are_never_alone() -> None:
    figure = losses([run(f"m{i}") for i in range(12)])
    assert figure is not None
    looks = {(one.name, one.colour, one.dash, one.marker) for one in figure.series}
    assert len(looks) == 12 == len({look[1:] for look in looks})
    first = sorted(looks, key=lambda look: int(look[0][1:]))[:8]
    assert len({look[3] for look in first}) == 8  # markers differ where dashes do not


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="choose another folder"):
        save([loss_figure()], tmp_path / "file" / "in", "png")
    with pytest.raises(BadInput, match="choose another folder"):
        write_csv([loss_figure()], tmp_path / "file" / "in")


def rows_of(figure: Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(figure))))


def test_a_table_has_every_point_as_the_lines_have_it(tmp_path: Path) -> None:
    lines = [made_line(t, {"left": 1 / 3 / t}) for t in range(1, 2001)]
    figure = losses([run(lines=lines)])
    assert figure is not None
    (path,) = write_csv([figure], tmp_path)
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [float(row["loss"]) for row in rows] == [line["losses"]["left"] for line in lines]
    assert [int(row["round"]) for row in rows] == list(range(1, 2001))
    assert rows[-1]["bytes_up"] == "2000000"
    assert rows[0]["run"] == "fedavg"
    assert rows[0]["series"] == "left"


def test_tables_of_other_kinds(tmp_path: Path) -> None:
    assert rows_of(KINDS["heatmap"])[1] == {"row": "a", "column": "b", "y": "0"}
    assert rows_of(KINDS["dots"])[0] == {
        "panel": "", "series": "one", "run": "", "category": "a", "y": "1", "low": "0", "high": "2", "label": "",
    }  # fmt: skip
    records = [
        run("a", [made_line(1, {"f": 1.0, "g": 2.0, "h": 1.0})]),
        run("b", [made_line(1, {"f": 2.0, "g": 1.0, "h": 1.0})]),
    ]
    figure, polygon = front(records), radar(records)
    assert figure is not None
    assert polygon is not None
    assert {row["run"] for row in rows_of(figure)} == {"a", "b"}
    assert rows_of(polygon)[0]["category"] == "f"
    assert rows_of(polygon)[0]["label"] == "f: 0.75"


def test_a_gap_is_an_empty_cell_and_a_name_no_formula() -> None:
    nan = Figure("a", "A", "About.", "lines", Axis("y", "y"), {"x": Axis("x", "x")},
                 (Series("=cmd()", np.array([1.0, np.nan]), {"x": np.array([-1.0, 2.0])}),))  # fmt: skip
    rows = rows_of(nan)
    assert rows[1]["y"] == ""
    assert rows[0]["series"] == "'=cmd()"
    assert rows[0]["x"] == "-1"


def test_missing_matplotlib_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'polyfed\[report\]'"):
        save([loss_figure()], tmp_path / "new", "png")
    assert not (tmp_path / "new").exists()


def test_figures_travel_as_json_with_gaps_as_null() -> None:
    one = Series("one", np.array([1.0, np.nan, 1 / 3]), {"x": np.arange(3.0)}, run="r")
    figure = Figure("a", "A", "About.", "lines", Axis("y", "y"), {"x": Axis("x", "x")}, (one, one))
    told = figure.to_json(digits=3)
    assert told["series"][0]["y"] == [1, None, 0.333]
    assert told["columns"] == [[0, 1, 2]]
    assert told["series"][1]["x"] == {"x": 0}
    assert told["series"][0]["run"] == "r"
    assert figure.to_json()["series"][0]["y"][2] == 1 / 3
