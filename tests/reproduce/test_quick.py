"""`polyfed reproduce all --quick`: in half an hour on two cores, and what a quick run can show is not reversed."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polyfed.reproduce.claims import judge_all
from polyfed.reproduce.grids import missing_data
from polyfed.reproduce.item import Item, chosen
from polyfed.reproduce.record import Record, known
from polyfed.reproduce.running import How, run_item

HALF_AN_HOUR = 30.0  # minutes, on two cores


def test_quick_versions_take_half_an_hour_by_what_items_say() -> None:
    assert sum(item.minutes.quick for item in chosen("")) <= HALF_AN_HOUR


@pytest.mark.soak
def test_quick_versions_of_everything(tmp_path: Path) -> None:
    run = [item for item in chosen("") if not missing_data(item)]
    start, wrong = time.monotonic(), []
    for item in run:
        record = run_item(item, How(quick=True, jobs=2, out=tmp_path))
        wrong += [f"{item.key}: {text}" for text in strange(item, record)]
    assert not wrong, "\n".join(wrong)
    minutes = (time.monotonic() - start) / 60
    assert minutes <= HALF_AN_HOUR or (os.cpu_count() or 1) < 2, f"{minutes:.0f} minutes"


def strange(item: Item, record: Record) -> list[str]:
    """What is wrong with a quick run: cells that failed, figures that are none, claims that are seen no longer."""
    found = [f"{one.row}, seed {one.seed}: {one.why}" for one in record.failed]
    found += [] if record.whole else [f"{len(record.cells)} of {record.wanted} cells"]
    for cell in record.cells:
        there = [value for value in cell.values.values() if value is not None]
        found += [] if there and all(map(math.isfinite, there)) else [f"{cell.row}: {dict(cell.values)}"]
    expected = [one.verdict for quick in known(item) if quick.mode == "quick" for one in judge_all(item, quick)]
    for one, before in zip(judge_all(item, record), expected, strict=True):
        found += [f"not seen: {one.claim.text}"] if one.verdict == "not seen" != before else []
    return found


def test_a_strange_run_is_found() -> None:
    (item,) = chosen("many-models/fig5")
    assert strange(item, Record(item.paper, item.name, "quick", 3)) == ["0 of 3 cells"]


def test_a_claim_that_was_seen_and_is_not_is_found() -> None:
    (item,) = chosen("many-models/fig5")
    (quick,) = (record for record in known(item) if record.mode == "quick")
    assert strange(item, quick) == []
    quick.cells = [replace(cell, values=dict.fromkeys(cell.values, 1.0)) for cell in quick.cells]  # no gain rises
    assert "not seen: Gain increases with M for MFA-RR, E = 5." in strange(item, quick)


def test_a_claim_that_is_known_not_to_be_seen_is_no_news() -> None:
    (item,) = chosen("fsmgda/fig5")
    (quick,) = (record for record in known(item) if record.mode == "quick")
    assert judge_all(item, quick)[0].verdict == "not seen"
    assert strange(item, quick) == []
