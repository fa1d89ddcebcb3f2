"""Every item that is shipped reads, its experiments build, and what it says has no figure typed by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from made_papers import use_made_papers
from polyfed.algorithms.models.schedules import schedules
from polyfed.core.errors import BadInput
from polyfed.core.settings import Settings
from polyfed.data import datasets, partitions
from polyfed.experiment.building import build_algorithm
from polyfed.experiment.schema import Evaluate, Top
from polyfed.models import models
from polyfed.reproduce.claims import judge
from polyfed.reproduce.driving import driven_cells, driver_of
from polyfed.reproduce.grids import cells_of, missing_data, missing_of
from polyfed.reproduce.item import Item, Measure, chosen, items, papers, read_item
from polyfed.reproduce.packing import DROPPED
from polyfed.reproduce.page import item_text
from polyfed.reproduce.record import known
from polyfed.reproduce.running import How, run_item

EVERY = chosen("")


def test_every_paper_has_its_folder() -> None:
    assert list(papers()) == ["fsmgda", "fedmgda", "many-models", "fedcmoo", "mocha", "beyond", "yardsticks"]
    assert {item.key for item in EVERY} >= {"fsmgda/table2", "many-models/fig3", "many-models/fig5"}


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.key)
def test_a_pack_keeps_all_that_is_measured_and_drawn(item: Item) -> None:
    wanted = {of.split(".")[0] for of in [m.of for m in item.measures] + [of for d in item.draw for of in d.of]}
    assert not wanted & set(DROPPED)


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.key)
def test_its_experiments_name_what_there_is(item: Item) -> None:
    for grid in item.grids:
        for quick in (False, True):
            if grid.driver:
                assert callable(driver_of(item, grid))
                assert driven_cells(item, grid, quick) or (quick and grid.quick.skip)
                continue
            for cell in cells_of(item, grid, quick).cells:
                check_experiment(cell.settings)


def check_experiment(settings: Settings) -> None:
    """Tables have keys that are known, and name methods, models and data that are there; no data are loaded."""
    Top(**settings)
    Evaluate(**settings.get("evaluate", {}))
    for table in (settings.get("models") or {"": {}}).values():
        build_algorithm({**settings.get("algorithm", {}), **table.get("algorithm", {})})
        data = {**settings.get("data", {}), **table.get("data", {})}
        assert data["name"] in datasets
        assert data.get("partition", "iid") in partitions
        assert {**settings.get("model", {}), **table.get("model", {})}["name"] in models
    assert settings.get("schedule", {}).get("name", "mfa-rr") in schedules


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.key)
def test_texts_have_no_measured_figure(item: Item) -> None:
    for text in (*item.differs, *item.tried, item.title):
        assert not re.search(r"\d\s?%|±", re.sub(r"\{[^{}]*\}", "", text)), text
    item_text(item, known(item))  # every {measure @ row} names something


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.key)
def test_quick_has_rows_and_claims_of_its_own(item: Item) -> None:
    assert any(claim.quick for claim in item.claims), "a quick run should be able to show something"
    assert 0 < item.minutes.quick <= item.minutes.full


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.key)
def test_quick_is_asked_about_all_that_it_has_rows_for(item: Item) -> None:
    """But for published values, which need the whole size."""
    (quick,) = (record for record in known(item) if record.mode == "quick")
    assert quick.whole
    for claim in item.claims:
        has = judge(item, claim.model_copy(update={"quick": True}), quick).verdict != "not run"
        assert has if claim.quick else not has or claim.kind in ("near", "within"), claim.text


def test_numbers_keep_their_digits_until_they_have_diverged() -> None:
    plain = Measure(name="n", title="parameters", better="lower", digits=0)
    assert [plain.text(value) for value in (1206590.0, 8e8, 1.8e9, -7.75e9)] == [
        "1206590", "800000000", "1.8e+09", "-7.8e+09",
    ]  # fmt: skip


def test_data_that_are_absent_are_named(place: Path) -> None:
    (item,) = chosen("fsmgda/table2")
    assert missing_data(item) == ["multimnist"]
    assert missing_data(chosen("many-models/fig3")[0]) == []
    (item,) = chosen("fedcmoo/table4")  # a driver's grids say which data are theirs, too
    assert {grid.name: missing_of(item, grid, False) for grid in item.grids} == {
        name: [name] for name in ("mnist-fmnist", "multimnist", "cifar10-mnist")
    }
    assert not place.exists()


def test_a_quick_run_may_leave_a_grid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = use_made_papers(tmp_path / "papers", monkeypatch) / "table1.toml"
    path.write_text(path.read_text().replace('name = "prox"\n', 'name = "prox"\nquick.skip = true\n'))
    item = read_item(path)
    assert cells_of(item, item.grid("prox"), quick=True).cells == []
    record = run_item(item, How(quick=True, jobs=1, out=tmp_path))
    assert {cell.grid for cell in record.cells} == {"plain"}
    assert record.whole


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('kind = "order"', 'kind = "greater"', "should have row, than and no more; found rows"),
        ('kind = "order"', 'kind = "larger"', "kind should be"),
        ('measures = ["loss"]', 'measures = ["los"]', "no measure 'los'. Did you mean 'loss'?"),
        ('rows = ["large", "middle",', 'rows = ["large", "tiny",', "no row 'tiny'"),
        ('grid = "plain"', 'grid = "plane"', "no grid 'plane'. Did you mean 'plain'?"),
        ('label = "small"', 'label = "large"', "each row of plain should have a name of its own"),
        ('of = "mean.loss"\nbetter', "better", "the measure 'loss' should say what it is `of`"),
        ('of = ["mean.loss"]', 'measures = ["loss"]', "should have `of` if it is of kind 'curves'"),
        ("digits = 3", 'digits = 3\ntake = "reach"', "should have a target if and only if"),
        (
            "digits = 3",
            'digits = 3\ntake = "reach"\ntarget = 1.0\ncost = "simulated_seconds"',
            "cost should be 'rounds', 'bytes_up' or 'seconds'",
        ),
        ("differs = ", "difers = ", "Unknown key 'difers'. Did you mean 'differs'?"),
        ("seeds = 2", 'seeds = 2\nrows = ["large"]', "should stand in a grid"),
    ],
)
def test_a_wrong_file_is_a_sentence(
    old: str, new: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = use_made_papers(tmp_path / "papers", monkeypatch) / "table1.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BadInput) as error:
        read_item(path)
    assert str(error.value).startswith("toy_paper/table1.toml: ")
    assert why in str(error.value)
    assert len(str(error.value)) <= 400


@pytest.mark.parametrize(
    ("asked", "why"),
    [("toy-papr", "no paper 'toy-papr'. Did you mean 'toy-paper'?"), ("toy-paper/table9", "has no item 'table9'")],
)
def test_a_name_that_is_nobodys_is_a_sentence(
    asked: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_papers(tmp_path / "papers", monkeypatch)
    with pytest.raises(BadInput, match=re.escape(why)):
        chosen(asked)
    assert [item.name for item in items("toy-paper")] == ["fig1", "table1"]
