"""A selection of runs: their figures, how their settings differ, what can be typed for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput, cut, visible
from polyfed.report.figures import figures_of
from polyfed.report.packing import packed
from polyfed.report.records import Record
from polyfed.report.settings import differences
from polyfed.report.writing import small
from polyfed.view.commands import commands, quoted
from polyfed.view.shelf import ODD, Shelf


def selection(shelf: Shelf, ids: Sequence[str], shown: Path) -> dict[str, Any]:
    """What the page shows of some runs.

    Args:
        shelf: where they are taken from.
        ids: as the list calls them.
        shown: the folder that is viewed, as a person types it.
    """
    if not ids:
        raise BadInput("Choose a run: none is named.")
    with shelf.records(ids) as (found, skipped):
        records = [record for _, record in found]
        settings = differences(records)
        report = ["polyfed", "report", *(shown / id for id, _ in found), "-o", "report.html"]
        figures, why = _figures(records)
        return {
            "runs": [_run(shelf, id, record, shown) for id, record in found],
            "skipped": [*_skipped(shelf, skipped, shown), *why],
            "figures": figures,
            "settings": {"runs": settings.runs, "rows": settings.rows, "differing": settings.differing},
            "report": quoted(*report) if records else "",
        }


def _figures(records: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    try:
        return [packed(figure) for figure in small(figures_of(records))], []
    except ODD as error:
        why = f"The figures cannot be drawn ({cut(str(error), 99)}): polyfed did not write all of these rounds."
        return [], [{"why": why, "commands": []}]


def _skipped(shelf: Shelf, skipped: Mapping[str, str], shown: Path) -> list[dict[str, Any]]:
    """Why some runs are not shown, and what mends those that are there."""
    mend = {id: commands(shown / id, "broken", {}) for id in skipped if id in shelf.folder.rows}
    return [{"why": f"{visible(id)}: {why}", "commands": mend.get(id, [])} for id, why in skipped.items()]


def _run(shelf: Shelf, id: str, record: Record, shown: Path) -> dict[str, Any]:
    state = record.state
    model = shown / id / "model.safetensors"
    there = (shelf.folder.path(id) / "model.safetensors").is_file()
    found = {"id": id, "name": record.name, "state": state, "rounds": record.rounds, "round": len(record.columns)}
    found["asked"] = len(record.columns.asked)
    return {**found, "model": str(model) if there else "", "commands": commands(shown / id, state, record.settings)}
