"""A whole item that is only partly run hides nothing that its quick version has shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_papers import use_made_papers
from polyfed.reproduce.claims import judge_known, telling
from polyfed.reproduce.item import Item, chosen, papers
from polyfed.reproduce.listing import entries, texts
from polyfed.reproduce.page import index_page, item_text, state_of
from polyfed.reproduce.record import FILE, Figures, Record
from polyfed.reproduce.running import How, folder_of

SECOND = """
[[claims]]
text = "Large steps end below middle ones."
kind = "smaller"
measures = ["loss"]
grids = ["plain"]
row = "large"
than = ["middle"]

[[claims]]
text = "Large steps end near the paper's."
kind = "near"
measures = ["loss"]
grids = ["plain"]
rows = ["large"]
margin = 0.1
quick = false
"""
LOSSES = {"large": 0.5, "middle": 0.6, "small": 0.7}


@pytest.fixture
def item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Item:
    path = use_made_papers(tmp_path / "papers", monkeypatch) / "table1.toml"
    path.write_text(path.read_text().replace("[[draw]]", f"{SECOND}\n[[draw]]"))
    monkeypatch.setattr("polyfed.reproduce.record.shipped", lambda: tmp_path / "records")
    return chosen("toy-paper/table1")[0]


def record_of(mode: str, rows: list[str], seeds: int, wanted: int) -> Record:
    places = [(grid, row, seed) for grid in ("plain", "prox") for row in rows for seed in range(seeds)]
    cells = [Figures(grid, row, seed, {"loss": LOSSES[row] + seed / 100}, rounds=6) for grid, row, seed in places]
    return Record("toy-paper", "table1", mode, wanted, cells=cells)


QUICK = record_of("quick", ["large", "middle", "small"], 2, 12)
BEGUN = record_of("full", ["large"], 1, 18)
HALF = record_of("full", ["large", "middle"], 5, 30)
WHOLE = record_of("full", ["large", "middle", "small"], 5, 30)


def test_each_claim_is_told_by_the_first_record_that_has_a_verdict(item: Item) -> None:
    found = judge_known(item, [HALF, QUICK])
    assert [(one.verdict, one.record and one.record.mode) for one in found] == [
        ("in part", "quick"), ("seen", "full"), ("seen", "full"),
    ]  # fmt: skip
    assert telling(item, [HALF, QUICK]) == [HALF, QUICK]
    assert telling(item, [WHOLE, QUICK]) == [WHOLE]
    assert telling(item, [QUICK]) == [QUICK]
    assert telling(item, []) == []
    assert [one.verdict for one in judge_known(item, [])] == ["not run"] * 3


def test_a_page_has_both_side_by_side_and_its_text_once(item: Item) -> None:
    text = item_text(item, [HALF, QUICK])
    assert "|  | mean loss, published | measured | quick |" in text
    assert "| large | 0.5 ± 0.1 | 0.520 ± 0.016 | 0.505 ± 0.007 |" in text
    assert "| small | - | - | 0.705 ± 0.007 |" in text
    assert "- **in part (quick)**: Large steps end lower." in text
    assert "- **seen**: Large steps end below middle ones." in text
    assert "Figures under 'quick' are of the quick version" in text
    assert "20 of 30 runs so far" in text
    assert text.count("the quick version.") == 1
    for once in ("Where we differ", "Ours ends at 0.520 ± 0.016.", "Large steps end lower.\n\n"):
        assert text.count(once) == 1


def test_a_whole_item_that_says_nothing_yet_leaves_the_page_to_the_quick_one(item: Item) -> None:
    item.claims = item.claims[:2]
    assert item_text(item, [BEGUN, QUICK]) == item_text(item, [QUICK])
    assert item_text(item, [WHOLE, QUICK]) == item_text(item, [WHOLE])
    assert "the whole item, 2 of 18 runs so far" in item_text(item, [BEGUN])  # there is no other


def test_a_text_says_which_of_its_figures_are_quick(item: Item) -> None:
    item.differs = ["Ours ends at {loss @ plain / large}, then at {loss @ plain / small}."]
    assert "Ours ends at 0.520 ± 0.016, then at 0.705 ± 0.007 (quick)." in item_text(item, [HALF, QUICK])


def test_the_summary_says_of_each_verdict_what_it_is_of(item: Item) -> None:
    text = index_page({"toy-paper": (papers()["toy-paper"], [item])}, {item.key: [HALF, QUICK]})
    assert "| Large steps end lower. | in part | 2, quick |" in text
    assert "| Large steps end below middle ones. | seen | 5 |" in text
    assert "1 of these verdicts are of quick versions" in text
    text = index_page({"toy-paper": (papers()["toy-paper"], [item])}, {item.key: [QUICK]})
    assert "| Large steps end near the paper's. | not run |  |" in text


def listed(out: Path) -> tuple[dict[str, str], str]:
    """The states of table1's claims as a person reads them, and the item's own."""
    mine = [one for one in entries(out) if one["item"] == "toy-paper/table1"]
    return {line[1]: line[2] for line in texts(mine)}, mine[0]["state"]


def test_the_listing_takes_local_and_shipped_records_claim_by_claim(item: Item, tmp_path: Path) -> None:
    QUICK.write(tmp_path / "records" / "toy-paper" / "table1-quick.json")
    HALF.write(folder_of(item, How(out=tmp_path)) / FILE)
    assert listed(tmp_path) == (
        {
            "Large steps end lower.": "in part (quick)",
            "Large steps end below middle ones.": "seen",
            "Large steps end near the paper's.": "seen",
        },
        "in part",
    )


@pytest.mark.parametrize(("data", "why"), [("quadratic", "not run"), ("multimnist", "data not here")])
def test_what_only_the_whole_item_has_does_not_hide_quick_verdicts(
    data: str, why: str, item: Item, tmp_path: Path, place: Path
) -> None:
    path = tmp_path / "papers" / "toy_paper" / "table1.toml"
    path.write_text(path.read_text().replace('"quadratic", clients = 4, examples = 8', f'"{data}", clients = 4'))
    QUICK.write(tmp_path / "records" / item.paper / "table1-quick.json")
    states, state = listed(tmp_path / "nothing")
    assert states["Large steps end lower."] == "in part (quick)"
    assert states["Large steps end near the paper's."] == why
    assert state == "in part"
    assert not place.exists()


def test_an_item_with_a_claim_that_is_not_run_is_seen_in_part_at_most(item: Item) -> None:
    item.claims = item.claims[1:]
    assert state_of(item, [WHOLE]) == "seen"
    quick = record_of("quick", ["large", "middle", "small"], 5, 30)
    assert [one.verdict for one in judge_known(item, [quick])] == ["seen", "not run"]
    assert state_of(item, [quick]) == "in part"
    assert state_of(item, []) == "not run"
