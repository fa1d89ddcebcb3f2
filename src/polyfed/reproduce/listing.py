"""Every item with its claim, its state, its expected time and its command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polyfed.reproduce.claims import judge_all
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
            record = local(item, out) or known(item)
            why = "data not here" if missing_data(item) else "not run"  # what has no verdict
            claims = [(one.claim.text, str(one.verdict)) for one in judge_all(item, record)]
            state: str = state_of(item, record)
            found.append({
                "item": item.key, "title": f"{item.where}: {item.title}", "state": why if state == "not run" else state,
                "mode": "" if record is None else record.mode,
                "claims": [{"text": text, "state": why if of == "not run" else of} for text, of in claims],
                "minutes": item.minutes.model_dump(), "command": item.command(False),
            })  # fmt: skip
    return found


def local(item: Item, out: Path) -> Record | None:
    """The record of local runs: the whole item's, else the quick one's."""
    for quick in (False, True):
        path = folder_of(item, How(quick=quick, out=out)) / FILE
        if path.is_file() and (record := read_record(path)).cells and not record.changes:  # with --set, it is another
            return record
    return None


def texts(found: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of a table: a line for each claim, the item's own on its first."""
    for one in found:
        times = [span(60 * one["minutes"][key]) for key in ("quick", "full", "gpu")]
        for i, claim in enumerate(one["claims"]):
            mode = " (quick)" if one["mode"] == "quick" and claim["state"] in ("seen", "in part", "not seen") else ""
            first = i == 0
            yield (
                one["item"] if first else "", claim["text"], claim["state"] + mode, *(times if first else ["", "", ""]),
                one["command"] if first else "",
            )  # fmt: skip
