"""Cells of a driver's code are not mixed with those of other code; cells from before that have none are taken."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from made_papers import use_made_papers
from polyfed.reproduce.item import chosen
from polyfed.reproduce.packing import merge_packs, write_pack
from polyfed.reproduce.record import Record, read_record, record_path
from polyfed.reproduce.running import How, collect, run_item
from polyfed.reproduce.sources import code_of, sources

ROOT = Path(__file__).parents[2]
GRID = Path("runs/reproduce/toy-paper/fig1/powers")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_made_papers(tmp_path / "papers", monkeypatch)


def run() -> Record:
    return run_item(chosen("toy-paper/fig1")[0], How(jobs=1))


def largest(record: Record) -> float | None:
    return record.values("value", "powers", "n = 3")[0]


def without_code(folder: Path) -> None:
    """Give cells the names that they had before: LABEL-seedN-SETTINGS."""
    for path in folder.glob("*.json"):
        path.rename(path.with_name(re.sub(r"-[0-9a-f]{8}((\.made)?\.json)$", r"\1", path.name)))


def test_other_code_computes_anew(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert largest(run()) == 8
    capsys.readouterr()
    (toy / "fig1.py").write_text((toy / "fig1.py").read_text().replace("seed / 10", "seed / 10 + 1"))
    (item,) = chosen("toy-paper/fig1")
    assert collect(item, How()).cells == []
    assert largest(run()) == 9
    assert f"{GRID}: 9 cells of other code than the driver has now: they do not count." in capsys.readouterr().err
    assert len(list(GRID.glob("*.made.json"))) == 18  # the others are still there
    run()
    assert not capsys.readouterr().err


def test_what_is_shared_counts_and_other_items_do_not(toy: Path) -> None:
    (item,) = chosen("toy-paper/fig1")
    alone = code_of(item)
    (toy / "table1.py").write_text("# the driver of another item\n")
    assert (code_of(item), [path.name for path in sources(item)]) == (alone, ["fig1.py"])
    (toy / "shared.py").write_text("one = 1\n")
    first = code_of(item)
    (toy / "shared.py").write_bytes(b"one = 1\r\n")
    assert first == code_of(item) != alone
    (toy / "shared.py").write_text("one = 2\n")
    assert code_of(item) not in (first, alone)


def test_modules_of_the_papers_are_found() -> None:
    names = {item.key: {path.name for path in sources(item)} for item in chosen("")}
    assert names["mocha/table1"] == {"__init__.py", "errors.py", "rounds.py", "table1.py", "tasks.py"}
    assert names["yardsticks/mnist"] == {"__init__.py", "contestants.py", "mnist.py", "race.py"}


@pytest.mark.usefixtures("toy")
def test_cells_from_before_are_taken_also_from_a_pack(capsys: pytest.CaptureFixture[str]) -> None:
    (item,) = chosen("toy-paper/fig1")
    whole = run()
    without_code(GRID)
    assert all(re.search(r"-seed\d-[0-9a-f]{8}(\.made)?\.json$", path.name) for path in GRID.iterdir())
    pack = write_pack(Path("runs/reproduce"), Path("before.zip"))
    assert "9 cells taken over" in merge_packs([pack], Path("second"))[0]
    capsys.readouterr()
    for out in (Path("runs/reproduce"), Path("second")):
        record = run_item(item, How(jobs=1, out=out))
        assert (record.cells, record.made) == (whole.cells, whole.made)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1  # nothing is computed
        assert "9 cells from before names had the driver code's checksum: taken as they are." in said[0]


@pytest.mark.usefixtures("toy")
def test_cells_from_before_come_into_the_records_and_the_script_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("the_results_script", ROOT / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    whole = run()
    without_code(GRID)
    tool.take(Path("runs/reproduce"), tmp_path / "records")
    assert read_record(record_path(tmp_path / "records", chosen("toy-paper/fig1")[0], "full")) == read_record(
        GRID.parent / "record.json"
    )
    assert len(whole.cells) == 9
    assert "9 cells from before" in capsys.readouterr().out
