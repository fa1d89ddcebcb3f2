"""The pages of docs/results are what the script makes of the records, to the letter; records fit their items."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from made_papers import use_made_papers
from polyfed.reproduce.claims import telling
from polyfed.reproduce.drawing import figures_of
from polyfed.reproduce.item import chosen, items, papers
from polyfed.reproduce.page import state_of
from polyfed.reproduce.record import (
    Curve,
    Failed,
    Figures,
    Made,
    Record,
    joined,
    known,
    mean_curve,
    read_record,
    record_path,
    shipped,
)
from polyfed.reproduce.running import How, run_item

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"a_script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def linked() -> Iterator[str]:
    for path in sorted(PAGES.glob("*.md")):
        yield from re.findall(r"\((figures/[^)]+)\)", path.read_text(encoding="utf-8"))


def test_pages_are_made_from_records_alone(tmp_path: Path) -> None:
    script(ROOT / "tools" / "results.py").write(tmp_path / "results")
    made = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "results").iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert made == kept, "python tools/results.py writes the pages again"
    assert {f"{name}.md" for name in papers() if items(name)} | {"index.md"} == kept.keys()


def test_records_and_pages_are_small() -> None:
    files = [*shipped().glob("*/*.json"), *PAGES.glob("*.md")]
    assert sum(path.stat().st_size for path in files) <= 2_000_000


def test_every_record_is_of_an_item() -> None:
    every = {record_path(shipped(), item, mode): item for item in chosen("") for mode in ("full", "quick")}
    found = sorted(shipped().glob("*/*.json"))
    assert set(found) <= every.keys()
    for path in found:
        item, record = every[path], read_record(path)
        assert (record.paper, record.item, record.changes) == (item.paper, item.name, [])
        assert state_of(item, [record]) in ("seen", "in part", "not seen", "not run")
        labels = {(grid.name, row.label) for grid in item.grids for row in grid.rows}
        assert {(cell.grid, cell.row) for cell in record.cells} <= labels
        assert all(re.fullmatch(r"\d+ cores?|(one|\d+) [\w .-]+(, TF32)?", made.machine) for made in record.made)


def test_the_site_draws_what_pages_link() -> None:
    drawn = {
        f"figures/{item.paper}/{figure.key}.svg"
        for item in chosen("")
        for record in telling(item, known(item))[:1]
        for figure in figures_of(item, record)
    }
    assert {*linked()} == drawn


def test_what_failed_stays_known_when_records_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = use_made_papers(tmp_path / "papers", monkeypatch)
    whole = (place / "fig1.py").read_text()
    fails = "def power(settings, seed):\n    return {'values': {'value': 1 / (settings['n'] - 2)}}\n"
    (place / "fig1.py").write_text(fails)
    (item,) = chosen("toy-paper/fig1")
    run_item(item, How(jobs=1))
    tool, records = script(ROOT / "tools" / "results.py"), tmp_path / "records"
    tool.take(Path("runs/reproduce"), records)
    assert {one.row for one in read_record(record_path(records, item, "full")).failed} == {"n = 2"}
    (place / "fig1.py").write_text(whole)
    run_item(item, How(jobs=1))
    tool.take(Path("runs/reproduce"), records)
    assert read_record(record_path(records, item, "full")).failed == []


def record_of(seeds: range, date: str, value: float = 0.0, x: int = 4) -> Record:
    """A record of one row, with a curve."""
    runs = [([0.0, 1.0, 2.0, float(x)], [seed + value, 2.0 * seed, seed**2, 1.0]) for seed in seeds]
    mean = mean_curve(runs, 60)
    assert mean is not None
    cells = [Figures("g", "a", seed, {"m": seed + value}) for seed in seeds]
    failed = [Failed("g", "a", 9, "why")]
    made = [Made("2 cores", date, "1.0", len(seeds))]
    return Record("p", "i", "full", 9, made, cells, [Curve("g", "a", "loss", "test", "round", *mean)], failed)


def test_two_records_together_are_that_of_all_cells() -> None:
    found, whole = joined(record_of(range(3, 5), "a"), record_of(range(3), "b")), record_of(range(5), "c")
    assert found.cells == whole.cells
    assert found.failed == whole.failed
    assert [(one.date, one.cells) for one in found.made] == [("a", 2), ("b", 3)]
    for one, other in zip(found.curves, whole.curves, strict=True):
        np.testing.assert_allclose(np.array([one.mean, one.std], float), np.array([other.mean, other.std], float))
        assert (one.x, one.row, one.runs) == (other.x, other.row, 5)


def test_what_was_run_again_counts_once_and_other_curves_are_not_mixed() -> None:
    again = joined(record_of(range(3), "a"), record_of(range(2, 4), "b", 0.5))
    assert {cell.seed: cell.values["m"] for cell in again.cells} == {0: 0, 1: 1, 2: 2.5, 3: 3.5}
    assert [(one.date, one.cells) for one in again.made] == [("a", 2), ("b", 2)]
    assert again.curves == [replace(record_of(range(3), "a").curves[0], runs=3)]
    few, many = record_of(range(2), "a"), record_of(range(2, 5), "b", x=5)
    assert joined(few, many).curves == joined(many, few).curves == [replace(many.curves[0], runs=3)]
    done = joined(record_of(range(2), "a"), record_of(range(9, 10), "b"))
    assert done.failed == []


def test_records_taken_twice_are_as_taken_once() -> None:
    """Numbers of a file are rounded, those of a run are not; a row that nobody ran again keeps its curve."""
    old, new = record_of(range(2), "a", x=1234567), record_of(range(2, 4), "b", x=1234567)
    old.cells.append(Figures("g", "other", 0, {"m": 1.0}))
    old.curves.append(Curve("g", "other", "loss", "test", "round", [0.0], [1.0], [0.0]))
    once = joined(old, new)
    twice = joined(once, new)
    assert once.curves == twice.curves
    assert once.made == twice.made
    day = joined(record_of(range(4), "b"), record_of(range(4, 6), "b"))  # others of the same day
    assert [one.cells for one in day.made] == [4, 2]
    assert [(curve.row, curve.runs) for curve in twice.curves] == [("a", 4), ("other", 1)]
    old.curves[0] = replace(old.curves[0], x=[0, 1, 2, 1234600])
    assert joined(old, new).curves[0].runs == 4
    assert joined(once, record_of(range(4), "c", 1.0, x=1234567)).curves[0].mean[0] == 2.5


def test_times_of_two_machines_make_no_record_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = use_made_papers(tmp_path / "papers", monkeypatch)
    tool, records = script(ROOT / "tools" / "results.py"), tmp_path / "records"
    text = (place / "fig1.toml").read_text()
    (place / "fig1.toml").write_text("timed = true\n" + text)
    (item,) = chosen("toy-paper/fig1")
    run_item(item, How(jobs=1))
    tool.take(Path("runs/reproduce"), records)
    path = record_path(records, item, "full")
    whole = path.read_text()
    made = sorted(Path("runs/reproduce/toy-paper/fig1").glob("*/*.json"))
    made[0].unlink()
    tool.take(Path("runs/reproduce"), records)
    assert path.read_text() == whole  # fewer are not taken
    run_item(item, How(jobs=1))
    past = read_record(path)
    past.made = [Made("another machine", "1999-01-01", "0.1", len(past.cells))]
    past.write(path)
    tool.take(Path("runs/reproduce"), records)
    assert [one.cells for one in read_record(path).made] == [past.wanted]
    assert "another machine" not in path.read_text()


def test_records_are_taken_pages_written_and_figures_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_papers(tmp_path / "papers", monkeypatch)
    tool, extension = script(ROOT / "tools" / "results.py"), script(ROOT / "docs" / "_ext" / "polyfed_results.py")
    records = tmp_path / "records"
    monkeypatch.setattr("polyfed.reproduce.record.shipped", lambda: records)
    for name in ("table1", "fig1"):
        run_item(chosen(f"toy-paper/{name}")[0], How(quick=name == "table1", jobs=1))
    tool.take(Path("runs/reproduce"), records)
    assert sorted(path.name for path in records.glob("*/*.json")) == ["fig1.json", "table1-quick.json"]
    tool.write(tmp_path / "docs" / "results")
    page = (tmp_path / "docs" / "results" / "toy-paper.md").read_text()
    index = (tmp_path / "docs" / "results" / "index.md").read_text()
    assert "(figures/toy-paper/table1.svg)" in page
    assert "| [Figure 1](toy-paper.md) | Powers rise with n. | seen | 3 |" in index
    assert "| [Table 1](toy-paper.md) | Large steps end lower. | in part | 2, quick |" in index
    assert "Of 2 claims: 1 seen, 1 seen in part, 0 not seen, 0 not run. 1 of these verdicts are of quick" in index
    assert "1 of those seen in part have rows with fewer than 3 seeds" in index
    assert "0 are seen in all that was run;" in index
    assert "Measured figures are of the quick version" in page
    extension.draw_figures(SimpleNamespace(srcdir=tmp_path / "docs"))
    assert {path.name for path in (tmp_path / "docs").glob("results/figures/toy-paper/*")} == {"fig1.svg", "table1.svg"}
