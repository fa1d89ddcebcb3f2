"""The cells of an item's grid: rows times seeds, each an experiment's settings."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from polyfed.core.settings import Settings
from polyfed.data.store import needs
from polyfed.experiment.reading import override, read
from polyfed.reproduce.item import Grid, Item, Row
from polyfed.study.cells import make_cell
from polyfed.study.grid import Grid as Cells
from polyfed.study.grid import as_text


def rows_of(grid: Grid, quick: bool) -> list[Row]:
    """The rows that are run."""
    if quick and grid.quick.skip:
        return []
    return [row for row in grid.rows if not quick or not grid.quick.rows or row.label in grid.quick.rows]


def seeds_of(item: Item, grid: Grid, quick: bool) -> list[int]:
    """The seeds that each row is run with."""
    every = list(range(grid.seeds)) if isinstance(grid.seeds, int) else list(grid.seeds)
    few = grid.quick.seeds or item.quick.seeds
    return every[:few] if quick and few else every


def cells_of(item: Item, grid: Grid, quick: bool, changes: Sequence[str] = ()) -> Cells:
    """All runs of a grid.

    Args:
        item: whose.
        grid: which.
        quick: whether it is the smaller version.
        changes: KEY=VALUE texts of a person, which count most.
    """
    found = Cells()
    for row in rows_of(grid, quick):
        made = settings_of(item, grid, row, quick, changes, found.notes)
        found.cells += [make_cell(row.label, seed, made, flat(row.set)) for seed in seeds_of(item, grid, quick)]
    return found


def settings_of(
    item: Item, grid: Grid, row: Row, quick: bool, changes: Sequence[str], notes: list[str] | None = None
) -> Settings:
    """The experiment of a row: base, grid, row, quick and a person's changes, each over those before.

    Args:
        item, grid, row: which.
        quick: whether it is the smaller version.
        changes: KEY=VALUE texts.
        notes: gets what of the base another method does not have.
    """
    settings = read(item.experiment)[1] if item.experiment else {}
    _merge(settings, item.base)
    tables = [grid.set, row.set, *([item.quick.set, grid.quick.set, row.quick] if quick else [])]
    texts = [f"{key}={as_text(value)}" for table in tables for key, value in flat(table).items()]
    said = notes if notes is not None else []
    made = override(copy.deepcopy(settings), [*texts, *changes], told=lambda text: _once(said, text))
    made.setdefault("engine", {"name": "auto" if torch.cuda.is_available() else "local"})
    return made


def driven(item: Item, grid: Grid, row: Row, quick: bool) -> Settings:
    """What a driver gets for a row: the same tables, merged and not looked at."""
    settings: Settings = {}
    for table in (item.base, grid.set, row.set, *([item.quick.set, grid.quick.set, row.quick] if quick else [])):
        _merge(settings, table)
    return settings


def missing_data(item: Item) -> list[str]:
    """The data sets that the item needs and whose files are not here."""
    return list(dict.fromkeys(name for grid in item.grids for name in missing_of(item, grid, quick=False)))


def missing_of(item: Item, grid: Grid, quick: bool) -> list[str]:
    """The same of one grid, or of its smaller version."""
    import polyfed.data as data

    list(data.datasets)  # registers what needs files
    some = rows_of(grid, quick)
    names = dict.fromkeys(_data_names(item, grid, some, quick)) or (item.data if some else [])
    return [name for name in names if any(None in source.found() for source in needs.get(name, ()))]


def _data_names(item: Item, grid: Grid, rows: Sequence[Row], quick: bool) -> Iterator[str]:
    for row in rows:
        if grid.driver:  # whose settings are its own, but for what [data] means
            tables = [driven(item, grid, row, quick).get("data")]
        else:
            settings = settings_of(item, grid, row, quick, ())
            tables = [settings.get("data"), *(m.get("data") for m in (settings.get("models") or {}).values())]
        for table in tables:
            if isinstance(table, str) or (isinstance(table, Mapping) and "name" in table):
                yield table if isinstance(table, str) else table["name"]


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A table's values by their dotted keys: {'algorithm.lr': 0.1}; an empty table is a value."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        word = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
        inner = isinstance(value, Mapping) and bool(value)
        found |= flat(value, f"{before}{word}.") if inner else {f"{before}{word}": value}
    return found


def _merge(settings: Settings, more: Mapping[str, Any]) -> None:
    """Put tables over others, key by key."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(settings.get(key), dict):
            _merge(settings[key], value)
        else:
            settings[key] = copy.deepcopy(value)


def _once(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
