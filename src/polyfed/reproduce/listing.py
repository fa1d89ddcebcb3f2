"""Every item with its claim, its state, its expected time and its command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polyfed.reproduce.claims import Judged, judge_known
from polyfed.reproduce.grids import missing_data
from polyfed.reproduce.item import Item, items, papers
from polyfed.reproduce.page import state_of
from polyfed.reproduce.record import FILE, Record, known, read_record
from polyfed.reproduce.running import How, folder_of
from polyfed.study.live import span

HEADS = ("item", "claim", "state", "quick", "whole, 2 cores", "GPU", "command")


def entries(out: Path) -> list[dict[str, Any]]:
    """All items of all papers.

    Args:
        out: the folder of local runs.
    """
    found = []
    for paper in papers():
        for item in items(paper):
            records = sorted([*local(item, out), *known(item)], key=lambda record: record.mode == "quick")
            why = "data not here" if missing_data(item) else "not run"  # what has no verdict
            state: str = state_of(item, records)
            found.append({
                "item": item.key, "title": f"{item.where}: {item.title}", "state": why if state == "not run" else state,
                "claims": [_claim(one, why) for one in judge_known(item, records)],
                "minutes": item.minutes.model_dump(), "command": item.command(False),
            })  # fmt: skip
    return found


def _claim(one: Judged, why: str) -> dict[str, str]:
    """A claim, its state, and whether a quick or a full run told it."""
    if one.record is None or one.verdict == "not run":
        return {"text": one.claim.text, "state": why, "mode": ""}
    return {"text": one.claim.text, "state": one.verdict, "mode": one.record.mode}


def local(item: Item, out: Path) -> list[Record]:
    """The records of local runs: the whole item's, then the quick one's."""
    paths = [folder_of(item, How(quick=quick, out=out)) / FILE for quick in (False, True)]
    found = [read_record(path) for path in paths if path.is_file()]
    return [record for record in found if record.cells and not record.changes]  # with --set, it is another item


def texts(found: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of a table: a line for each claim, the item's own on its first."""
    for one in found:
        times = [span(60 * one["minutes"][key]) for key in ("quick", "full", "gpu")]
        for i, claim in enumerate(one["claims"]):
            mode = " (quick)" if claim["mode"] == "quick" else ""
            first = i == 0
            yield (
                one["item"] if first else "", claim["text"], claim["state"] + mode, *(times if first else ["", "", ""]),
                one["command"] if first else "",
            )  # fmt: skip
