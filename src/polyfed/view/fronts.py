"""A front to explore: its points, and where each of them was after every evaluated round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.core.errors import BadInput, cut
from polyfed.report.columns import Curve
from polyfed.report.figure import Numbers, plain
from polyfed.report.records import Record
from polyfed.view.commands import quoted
from polyfed.view.reading import TEXT, read
from polyfed.view.rows import number
from polyfed.view.shelf import TOGETHER, Shelf

STEPS = 400  # rounds of a point that the slider has at most
TEXTS = 400  # characters of a sentence


def front(shelf: Shelf, id: str, shown: Path) -> dict[str, Any]:
    """What the explorer draws of a front.

    Args:
        shelf: where its runs are taken from.
        id: the front's folder, as the list calls it.
        shown: the folder that is viewed, as a person types it.
    """
    told = _told(shelf.folder.path(id) / "front.json")
    objectives = [name for name in _list(told.get("objectives")) if isinstance(name, str)]
    points = [_point(point, objectives) for point in _list(told.get("points")) if isinstance(point, Mapping)]
    runs = {name: name if id == "." else f"{id}/{name}" for point in points if (name := point["run"])}
    known = [run for run in runs.values() if run in shelf.folder.rows]
    tracks: dict[str, Any] = {}
    for start in range(0, len(known), TOGETHER):
        with shelf.records(known[start : start + TOGETHER]) as (found, _):
            tracks |= {run: _track(record, objectives) for run, record in found}
    for point in points:
        point["id"] = run if (run := runs.get(point["run"], "")) in tracks else ""
        if point["id"]:
            point |= _files(shown / point["id"], shelf.folder.path(point["id"]))
    totals = {key: number(told.get(key)) for key in ("hypervolume", "spacing")}
    pick = quoted("polyfed", "front", shown / id, "--pick")
    return {"id": id, "state": str(told.get("state", ""))[:20], "split": str(told.get("split", ""))[:40],
            "objectives": objectives, "points": points, "tracks": tracks, "pick": pick, **totals}  # fmt: skip


def clients(shelf: Shelf, id: str) -> dict[str, Any]:
    """Who took part in a run: how often each was asked, and its own losses at the last evaluation, where kept.

    Args:
        shelf: where the run is taken from.
        id: as the list calls it.
    """
    with shelf.records([id]) as (found, skipped):
        if not found:
            raise BadInput(skipped[id])
        asked, lines = found[0][1].columns.asked, found[0][1].clients
    last = lines[-1] if lines else {}
    table = last.get("clients")
    rows = {name: row["loss"] for name, row in table.items() if _losses(row)} if isinstance(table, dict) else {}
    many = max((len(values) for values in rows.values()), default=0)
    names = [str(name) for name in _list(last.get("names"))]
    return {
        "asked": len(asked),
        "least": min(asked.values(), default=0),
        "most": max(asked.values(), default=0),
        "round": last.get("round", 0) if isinstance(last.get("round"), int) else 0,
        "names": [names[i] if i < len(names) else str(i) for i in range(many)] if rows else [],
        "losses": {name: [number(value) for value in values] for name, values in rows.items()},
    }


def _told(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(read(path, TEXT))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"front.json cannot be read: {cut(str(error), 120)}.") from error
    if not isinstance(told, dict):
        raise BadInput("front.json is no table; 'polyfed front' writes another.")
    return told


def _point(point: Mapping[str, Any], objectives: list[str]) -> dict[str, Any]:
    run, start, state = point.get("run"), point.get("start"), point.get("state")
    return {
        "run": run if isinstance(run, str) else "",
        "start": start if isinstance(start, str) else "",
        "kind": str(point.get("kind", ""))[:40],
        "preference": {n: v for n, v in _numbers(point.get("preference"), objectives).items() if v is not None},
        "losses": _numbers(point.get("losses"), objectives),
        "metrics": {name: _numbers(table) for name, table in _table(point.get("metrics")).items()},
        "state": str(state)[:20] if state else "missing",
        "why": str(point.get("why") or "")[:TEXTS],
        "best": bool(point.get("non_dominated")),
    }


def _track(record: Record, objectives: list[str]) -> dict[str, Any]:
    """The losses of a run after the rounds that were evaluated, and the weights of those rounds."""
    rounds = record.columns.rounds
    curves = _curves(record, "losses", objectives)
    at = sorted({int(row) for curve in curves.values() for row in curve.rows})
    if len(at) > STEPS:
        at = [at[int(place)] for place in np.unique(np.linspace(0, len(at) - 1, STEPS).astype(int))]
    return {
        "rounds": plain(rounds[at]) if at else [],
        "losses": {name: plain(_at(curve, at), 6) for name, curve in curves.items()},
        "weights": {name: plain(_at(curve, at), 6) for name, curve in _curves(record, "weights", objectives).items()},
    }


def _curves(record: Record, table: str, objectives: list[str]) -> dict[str, Curve]:
    found = {name: record.columns.curve(table, name) for name in objectives}
    return {name: curve for name, curve in found.items() if curve is not None}


def _at(curve: Curve, at: list[int]) -> Numbers:
    """The newest value at each of some rows; NaN before the first."""
    places = np.searchsorted(curve.rows, at, side="right") - 1
    return np.where(places < 0, np.nan, curve.values[np.maximum(places, 0)])


def _files(shown: Path, path: Path) -> dict[str, Any]:
    """Where a point's model is, and what uses it."""
    if not (path / "model.safetensors").is_file():
        return {"model": "", "use": []}
    use = [quoted("polyfed", "predict", shown, "rows.csv"), f"polyfed.load({str(shown)!r})"]
    return {"model": str(shown / "model.safetensors"), "use": use}


def _losses(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("loss"), list)


def _numbers(table: Any, names: list[str] | None = None) -> dict[str, float | None]:
    return {name: number(value) for name, value in _table(table).items() if names is None or name in names}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
