"""An item from its file to its page: run, stopped in time, packed, merged elsewhere and gone on with."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_papers import use_made_papers
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, Interrupted
from polyfed.reproduce.claims import judge_all
from polyfed.reproduce.item import Item, chosen
from polyfed.reproduce.packing import merge_packs, write_pack
from polyfed.reproduce.record import Record, read_record
from polyfed.reproduce.running import How, collect, folder_of, run_item, run_items
from polyfed.reproduce.showing import write_item


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_made_papers(tmp_path / "papers", monkeypatch)


def figures(record: Record) -> list[object]:
    """What must not depend on where and when cells were run."""
    return [(cell.grid, cell.row, cell.seed, dict(cell.values), cell.bytes_up) for cell in record.cells]


@pytest.mark.usefixtures("toy")
def test_from_the_file_to_the_page() -> None:
    (item,) = chosen("toy-paper/table1")
    record = run_item(item, How(jobs=1))
    assert (len(record.cells), record.wanted, record.whole) == (18, 18, True)
    assert [one.verdict for one in judge_all(item, record)] == ["seen"]
    folder = folder_of(item, How())
    assert folder == Path("runs/reproduce/toy-paper/table1")
    assert read_record(folder / "record.json").to_json() == record.to_json()
    page, drawing = write_item(item, record, folder)
    text = page.read_text()
    assert "| large | 0.5 ± 0.1 |" in text
    assert "- **seen**: Large steps end lower." in text
    assert "Ours ends at -" in text
    assert "{loss" not in text
    assert "polyfed reproduce toy-paper/table1" in text
    assert drawing.read_text().startswith("<?xml")


@pytest.mark.usefixtures("toy")
def test_quick_is_smaller_and_apart() -> None:
    (item,) = chosen("toy-paper/table1")
    record = run_item(item, How(quick=True, jobs=1))
    assert {cell.seed for cell in record.cells} == {0, 1}
    assert {cell.rounds for cell in record.cells} == {3}
    assert not folder_of(item, How()).exists()
    assert judge_all(item, record)[0].verdict == "in part"  # two seeds allow no test


@pytest.mark.usefixtures("toy")
def test_a_run_without_what_is_measured_leaves_the_others_alone() -> None:
    (item,) = chosen("toy-paper/table1")
    whole = run_item(item, How(quick=True, jobs=1))
    some = sorted(folder_of(item, How(quick=True)).glob("*/*/metrics.jsonl"))[0]
    lines = [json.loads(line) | {"losses": {}} for line in some.read_text().splitlines()]
    some.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = collect(item, How(quick=True))
    assert len(found.cells) == len(whole.cells) - 1
    assert (found.wanted, found.whole) == (whole.wanted, False)
    (failed,) = found.failed
    assert failed.why.startswith("No evaluation has 'mean.loss'.")
    assert (failed.grid, failed.row, failed.seed) in {(one.grid, one.row, one.seed) for one in whole.cells}


@pytest.mark.usefixtures("toy")
def test_a_function_computes_cells(capsys: pytest.CaptureFixture[str]) -> None:
    (item,) = chosen("toy-paper/fig1")
    record = run_item(item, How(jobs=1))
    assert record.values("value", "powers", "n = 3") == {0: 8.0, 1: 8.1, 2: 8.2}
    assert judge_all(item, record)[0].verdict == "seen"
    assert "n = 3, seed 2" in capsys.readouterr().err
    assert figures(run_item(item, How(jobs=1))) == figures(record)
    assert not capsys.readouterr().err  # nothing is computed twice


@pytest.mark.usefixtures("toy")
def test_several_processes_compute_the_same() -> None:
    (item,) = chosen("toy-paper/fig1")
    one, two = (run_item(item, How(jobs=jobs, out=Path(f"out{jobs}"))) for jobs in (1, 2))
    assert figures(one) == figures(two)


def test_a_function_that_fails_is_a_sentence(toy: Path) -> None:
    (toy / "fig1.py").write_text(
        "def power(settings, seed):\n    return {'values': {'value': 1 / (settings['n'] - 2)}}\n"
    )
    (item,) = chosen("toy-paper/fig1")
    record = run_item(item, How(jobs=1))
    assert {(one.row, one.why.partition(":")[0]) for one in record.failed} == {("n = 2", "ZeroDivisionError")}
    assert len(record.cells) == 6
    (toy / "fig1.py").write_text("")
    with pytest.raises(BadInput, match="has no function 'power'"):
        run_item(item, How(jobs=1, out=Path("other")))


@pytest.mark.usefixtures("toy")
def test_what_a_person_sets_does_not_reach_functions_and_is_not_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    (item,) = chosen("toy-paper/fig1")
    assert run_item(item, How(jobs=1, changes=["rounds=1"])).changes == []
    assert "toy-paper/fig1: --set does not change what functions compute: powers." in capsys.readouterr().err


class Rounds:
    """Notes each round that begins here, and makes it last."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.begun, self._seconds, self._begin = 0, seconds, Door.begin
        patch.setattr(Door, "begin", lambda door, t, *more: self.begin(door, t, *more))

    def begin(self, door: Door, t: int, *more: Any) -> None:
        self.begun += t > 0  # 0: an evaluation before the first
        time.sleep(self._seconds)
        self._begin(door, t, *more)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.forks)])
def test_stopped_in_time_packed_merged_elsewhere_and_gone_on_with(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    some = chosen("toy-paper")
    whole, said, late = run_items(some, How(jobs=1, out=Path("whole")))
    assert (said, late) == ([], False)
    with monkeypatch.context() as patch:
        Rounds(patch, 0.05)
        records, _, late = run_items(some, How(jobs=jobs, out=Path("first"), until=time.monotonic() + 1.0))
    assert late
    assert 0 < sum(len(record.cells) for record in records) < sum(record.wanted for record in whole)
    pack = write_pack(Path("first"), Path("pack.zip"))
    shutil.rmtree("first")  # another machine
    assert merge_packs([pack], Path("second"))[0].endswith("cells taken over, 0 known already.")
    assert " 0 cells taken over" in merge_packs([pack], Path("second"))[0]
    kept = {path: path.read_bytes() for path in Path("second").glob("*/*/*/*/result.json")}
    before = sum(path.read_bytes().count(b"\n") for path in Path("second").glob("*/*/*/*/metrics.jsonl"))
    with monkeypatch.context() as patch:
        rounds = Rounds(patch, 0.0)
        records, _, late = run_items(some, How(jobs=1, out=Path("second")))
    assert not late
    assert rounds.begun + before == 18 * 6  # runs that were under way go on, none begins anew
    assert [figures(record) for record in records] == [figures(record) for record in whole]
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.usefixtures("toy")
def test_packs_have_no_path_of_the_machine_and_are_the_same_bytes(tmp_path: Path) -> None:
    run_items(chosen("toy-paper"), How(quick=True, jobs=1, out=tmp_path / "out"))
    first = write_pack(tmp_path / "out", Path("a.zip")).read_bytes()
    assert write_pack(tmp_path / "out", Path("b.zip")).read_bytes() == first
    with zipfile.ZipFile("a.zip") as pack:
        assert len(pack.namelist()) == 12 * 5 + 9 * 2
        assert not any(str(tmp_path).encode() in pack.read(name) for name in pack.namelist())
    assert len(first) < 40_000


@pytest.fixture
def diverging(toy: Path) -> Item:
    """The made-up table with steps that are far too long in one row."""
    text = (toy / "table1.toml").read_text()
    text = text.replace("rounds = 6", 'rounds = 6\nguard = "off"', 1)
    (toy / "table1.toml").write_text(text.replace("algorithm.lr = 0.5", "algorithm.lr = 1e9", 1))
    return chosen("toy-paper/table1")[0]


def test_packs_have_the_runs_that_failed(diverging: Item, tmp_path: Path) -> None:
    how = How(jobs=1, out=tmp_path / "first")
    record = run_item(diverging, how)
    assert record.failed
    assert all(one.diverged for one in record.failed)
    pack = write_pack(how.out, Path("a.zip"))
    with zipfile.ZipFile(pack) as entries:
        assert sum(name.endswith(".failed.json") for name in entries.namelist()) == len(record.failed)
        assert not any(str(tmp_path).encode() in entries.read(name) for name in entries.namelist())
    for _ in range(2):
        merge_packs([pack], Path("second"))
        assert collect(diverging, replace(how, out=Path("second"))).failed == record.failed
    with pytest.raises(Interrupted):  # time is over before anything is done
        run_item(diverging, replace(how, out=Path("second"), until=time.monotonic() - 1))
    assert collect(diverging, replace(how, out=Path("second"))).failed == record.failed
    other = replace(how, out=Path("second"), changes=("rounds=2",))
    assert collect(diverging, other).failed == []  # a failure is of its settings


WAITS = """
from pathlib import Path


def power(settings, seed):
    return {"values": {"value": float(Path("number").read_text())}}
"""


def test_a_run_that_failed_and_is_finished_later_has_not_failed(toy: Path) -> None:
    (toy / "fig1.py").write_text(WAITS)
    (item,) = chosen("toy-paper/fig1")
    assert len(run_item(item, How(jobs=2)).failed) == 9
    Path("number").write_text("2")
    assert run_item(item, How(jobs=1)).failed == []
    with zipfile.ZipFile(write_pack(Path("runs/reproduce"), Path("a.zip"))) as pack:
        assert len(pack.namelist()) == 9 * 2


@pytest.mark.parametrize("text", ["[]", "{}", "no JSON"])
def test_a_pack_with_a_failure_that_cannot_be_read_changes_nothing(text: str) -> None:
    with zipfile.ZipFile("bad.zip", "w") as made:
        made.writestr("a/b/c/cell-seed0-1a2b3c4d.failed.json", text)
    with pytest.raises(BadInput, match="no pack that can be read"):
        merge_packs([Path("bad.zip")], Path("out"))
    assert not Path("out").exists()


@pytest.mark.usefixtures("toy")
def test_cells_of_another_version_are_said_to_be() -> None:
    run_items(chosen("toy-paper/fig1"), How(jobs=1, out=Path("out")))
    for path in Path("out").glob("*/*/*/*.made.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.0.9"}))
    (said,) = merge_packs([write_pack(Path("out"), Path("a.zip"))], Path("second"))
    assert "9 cells taken over, 0 known already. Some are of polyfed 0.0.9, this is " in said


@pytest.mark.parametrize(
    "name", ["../a/b/c/result.json", "a/b/c/d/evil.sh", "/a/b/c/result.json", "a/b/.../d/result.json"]
)
def test_a_pack_that_leads_elsewhere_is_refused(name: str) -> None:
    with zipfile.ZipFile("bad.zip", "w") as pack:
        pack.writestr(name, "x")
    with pytest.raises(BadInput, match="no cell's"):
        merge_packs([Path("bad.zip")], Path("out"))
    assert not Path("out").exists()
    Path("bad.zip").write_bytes(b"no zip")
    with pytest.raises(BadInput, match="no pack that can be read"):
        merge_packs([Path("bad.zip")], Path("out"))


@pytest.mark.usefixtures("toy")
def test_runs_of_another_item_with_the_same_settings_are_taken(toy: Path) -> None:
    shutil.copy(toy / "table1.toml", toy / "table2.toml")
    first, second = chosen("toy-paper/table1") + chosen("toy-paper/table2")
    run_item(first, How(quick=True, jobs=1))
    record = run_item(second, How(quick=True, jobs=1, until=0.0))  # no time for a round
    assert record.whole


@pytest.mark.usefixtures("toy")
def test_no_time_is_interrupted_and_leaves_a_record() -> None:
    (item,) = chosen("toy-paper/table1")
    with pytest.raises(Interrupted):
        run_item(item, How(jobs=1, until=0.0))
    assert collect(item, How()).cells == []
    assert json.loads(Path("runs/reproduce/toy-paper/table1/record.json").read_text())["wanted"] == 18


def test_data_that_are_not_here_are_a_sentence(toy: Path, place: Path) -> None:
    text = (
        (toy / "table1.toml").read_text().replace('"quadratic", clients = 4, examples = 8', '"multimnist", clients = 4')
    )
    (toy / "table1.toml").write_text(text)
    with pytest.raises(BadInput, match="needs the data set 'multimnist', which is not here"):
        run_item(chosen("toy-paper/table1")[0], How(jobs=1))
    assert not place.exists()
    assert not Path("runs").exists()


def test_a_grid_whose_data_are_not_here_is_left_out(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are run; a quick version that skips it does not ask for its data."""
    text = (toy / "table1.toml").read_text().replace('name = "prox"\n', 'name = "prox"\nquick.skip = true\n')
    mu = "mu = 0.1 }"
    (toy / "table1.toml").write_text(text.replace(mu, f'{mu}, data.name = "multimnist", data.examples = ""'))
    (item,) = chosen("toy-paper/table1")
    record = run_item(item, How(jobs=1))
    assert {cell.grid for cell in record.cells} == {"plain"}
    assert not record.whole
    assert "is left out, as it needs the data set 'multimnist', which is not here" in capsys.readouterr().err
    assert run_item(item, How(quick=True, jobs=1)).whole
    assert "is left out" not in capsys.readouterr().err
