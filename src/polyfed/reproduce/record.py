"""What an item has come to, as a small file: figures of every cell, curves in few points, where and when.

    {"format": 1, "paper": "fsmgda", "item": "table2", "mode": "full" | "quick",
     "wanted": 40,                                             cells of the whole item
     "changes": ["engine.name=batched"],                       what a person changed with --set
     "made": [{"machine": "2 cores", "date": "2026-11-16", "version": "1.0", "cells": 12}, ...],
     "cells": [{"grid", "row", "seed", "rounds", "bytes_up", "seconds", "values": {measure: number | null}}, ...],
     "curves": [{"grid", "row", "of", "split", "clock": "round", "x": [...], "mean": [...], "std": [...]}, ...],
     "failed": [{"grid", "row", "seed", "why"}]}

Verdicts are not in it: they follow from the figures and the item's claims.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.core.errors import BadInput, cut
from polyfed.reproduce.item import Item, Measure
from polyfed.run.directory import write

FORMAT = 1
FILE = "record.json"
FAILED = ".failed.json"  # of a cell's name
POINTS = {"full": 60, "quick": 24}  # of a curve, at most
DIGITS = 5
OVERFLOWED = re.compile(  # sentences of this package
    "would be infinite, not a number or beyond|the model has left what they can train on|"
    "A Gram matrix should hold finite numbers"
)


@dataclass(frozen=True)
class Made:
    """Where and when some cells were run."""

    machine: str
    date: str
    version: str
    cells: int = 1


@dataclass(frozen=True)
class Figures:
    """A finished cell: its place in the item, what it took, and its measures."""

    grid: str
    row: str
    seed: int
    values: Mapping[str, float | None]
    rounds: int | None = None
    bytes_up: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Curve:
    """A row's curve: the mean over seeds at the evaluations that all of them have, and the spread."""

    grid: str
    row: str
    of: str
    split: str
    clock: str
    x: Sequence[float]
    mean: Sequence[float | None]
    std: Sequence[float | None]
    runs: int = 0  # that the mean is of; 0 in older records: all of the row


@dataclass(frozen=True)
class Failed:
    """A cell that did not come to its end, and why."""

    grid: str
    row: str
    seed: int
    why: str

    @property
    def diverged(self) -> bool:
        """Whether its numbers have overflowed, by what the run said."""
        return bool(OVERFLOWED.search(self.why))


@dataclass
class Record:
    """What an item has come to."""

    paper: str
    item: str
    mode: str
    wanted: int
    made: list[Made] = field(default_factory=list)
    cells: list[Figures] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether every cell is there."""
        return len(self.cells) == self.wanted

    def values(self, measure: str, grid: str, row: str) -> dict[int, float | None]:
        """A measure of a row, by seed."""
        mine = [cell for cell in self.cells if cell.grid == grid and cell.row == row and measure in cell.values]
        return {cell.seed: cell.values[measure] for cell in sorted(mine, key=lambda cell: cell.seed)}

    def diverged(self, grid: str, row: str) -> list[int]:
        """The seeds of a row whose numbers have overflowed."""
        return [one.seed for one in self.failed if (one.grid, one.row) == (grid, row) and one.diverged]

    def counted(self, measure: Measure, grid: str, row: str) -> dict[int, float | None]:
        """The same, with what the measure says of runs whose numbers have overflowed, where it does."""
        lost = {} if measure.diverged is None else dict.fromkeys(self.diverged(grid, row), measure.diverged)
        return self.values(measure.name, grid, row) | lost

    def to_json(self) -> dict[str, Any]:
        """As plain values, numbers rounded."""
        return {"format": FORMAT, **_rounded(asdict(self))}

    def write(self, path: Path) -> None:
        """Replace a file whole; a line for each cell, so that versions can be compared."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, as_text(self.to_json()).encode())


def as_text(table: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of a list."""
    lines = []
    for key, value in table.items():
        if isinstance(value, list) and value:
            inner = ",\n  ".join(json.dumps(one, separators=(",", ":"), allow_nan=False) for one in value)
            lines.append(f" {json.dumps(key)}: [\n  {inner}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(path: Path) -> Record:
    """A record's file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise BadInput(f"{path} is of format {found['format']}; this version reads {FORMAT}: run the item again.")
        named = {"made": Made, "cells": Figures, "curves": Curve, "failed": Failed}
        lists: dict[str, Any] = {key: [kind(**one) for one in found[key]] for key, kind in named.items()}
        return Record(**lists, **{key: found[key] for key in ("paper", "item", "mode", "wanted", "changes")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no record of an item that can be read: {cut(str(error), 80)}.") from error


def failure_of(path: Path) -> Path:
    """The file that says why there is no cell: beside a run's directory, or a driver's file."""
    return path.with_name(f"{path.name.removesuffix('.json')}{FAILED}")


def note_failure(path: Path, why: str) -> None:
    """Keep why there is no cell, without the folder it is in, which is the machine's.

    Args:
        path: where the cell would be.
        why: a sentence.
    """
    for folder in (path.parent.resolve(), path.parent):
        why = why.replace(f"{folder}{os.sep}", "")
    write(failure_of(path), json.dumps({"why": why}).encode() + b"\n")


def failure(path: Path) -> str | None:
    """Why there is no cell, where that is known."""
    try:
        return str(json.loads(failure_of(path).read_text(encoding="utf-8"))["why"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{failure_of(path)} does not say why a run failed; delete it.") from error


def shipped() -> Path:
    """The folder of the records that come with polyfed."""
    return Path(str(importlib.resources.files("polyfed.reproduce") / "records"))


def record_path(folder: Path, item: Item, mode: str) -> Path:
    """Where a folder of records has an item's."""
    return folder / item.paper / f"{item.name}{'-quick' if mode == 'quick' else ''}.json"


def known(item: Item, folder: Path | None = None) -> list[Record]:
    """The records that there are of an item: the whole one, then the quick one.

    Args:
        item: which.
        folder: of records; those that come with polyfed if left out.
    """
    paths = [record_path(folder or shipped(), item, mode) for mode in ("full", "quick")]
    return [read_record(path) for path in paths if path.is_file()]


def joined(old: Record, new: Record) -> Record:
    """What two records have together; of a cell that both have, the new one's.

    Curves, which are means, are pooled where the two share no run of a row; else that of more runs stays. Whether both
    are of the same settings and the same code is for the caller to know.

    Args:
        old: a record.
        new: a later one of the same item.
    """
    again = {place_of(cell) for cell in new.cells}
    kept = [cell for cell in old.cells if place_of(cell) not in again]
    made = [*_fewer(_without(old.made, new.made, len(old.cells) - len(kept)), len(kept)), *new.made]
    found = replace(new, cells=sorted([*kept, *new.cells], key=place_of), made=made)
    found.curves = _together(old, new)
    done, failed = {*map(place_of, found.cells)}, {place_of(one): one for one in (*old.failed, *new.failed)}
    found.failed = [one for place, one in failed.items() if place not in done]
    return found


def place_of(one: Figures | Failed) -> tuple[str, str, int]:
    """Its grid, row and seed."""
    return one.grid, one.row, one.seed


def _without(made: Sequence[Made], again: Sequence[Made], cells: int) -> list[Made]:
    """Where and when cells were made, less so many that are taken again: those of the same machine and day."""
    taken, left = {(one.machine, one.date, one.version): one.cells for one in again}, []
    for one in made:
        less = min(one.cells, taken.get((one.machine, one.date, one.version), 0), cells)
        left.append(replace(one, cells=one.cells - less))
        cells -= less
    return [one for one in left if one.cells]


def _fewer(made: Sequence[Made], cells: int) -> list[Made]:
    """Where and when, of so many of the cells: the latest ones."""
    found = []
    for one in sorted(made, key=lambda one: one.date, reverse=True):
        if taken := min(one.cells, cells):
            found.append(replace(one, cells=taken))
            cells -= taken
    return found[::-1]


def _together(old: Record, new: Record) -> list[Curve]:
    """The curves of two records."""
    found = {_key(curve): _counted(curve, old) for curve in old.curves}
    for curve in (_counted(curve, new) for curve in new.curves):
        past = found.get(_key(curve))
        mine, others = ({c.seed for c in of.cells if (c.grid, c.row) == (curve.grid, curve.row)} for of in (new, old))
        if past is not None and not mine & others and _rounded(past.x) == _rounded(curve.x):
            found[_key(curve)] = _mean(past, curve, past.runs, curve.runs)
        elif past is None or others <= mine or curve.runs > past.runs:
            found[_key(curve)] = curve
    return list(found.values())


def _counted(curve: Curve, record: Record) -> Curve:
    """A curve that says how many runs it is of."""
    row = sum((cell.grid, cell.row) == (curve.grid, curve.row) for cell in record.cells)
    return curve if curve.runs else replace(curve, runs=row)


def _key(curve: Curve) -> tuple[str, ...]:
    return curve.grid, curve.row, curve.of, curve.split, curve.clock


def _mean(one: Curve, other: Curve, n: int, m: int) -> Curve:
    """The mean and the standard deviation of n and m runs together."""
    means, stds = (np.array([[np.nan if y is None else y for y in ys] for ys in pair], dtype=float) for pair in
                   ((one.mean, other.mean), (one.std, other.std)))  # fmt: skip
    mean = (n * means[0] + m * means[1]) / (n + m)
    squares = (n - 1) * stds[0] ** 2 + (m - 1) * stds[1] ** 2 + n * m / (n + m) * (means[0] - means[1]) ** 2
    return replace(one, mean=mean.tolist(), std=np.sqrt(squares / max(n + m - 1, 1)).tolist(), runs=n + m)


def mean_curve(runs: Iterable[tuple[Sequence[float], Sequence[float]]], most: int) -> tuple[Any, Any, Any] | None:
    """The mean and the standard deviation of curves at the places that all of them have, thinned.

    Args:
        runs: x and y of each seed.
        most: points that are kept; the first and the last are.
    """
    tables = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in runs]
    few = min((len(x) for x, _ in tables), default=0)
    if not few:
        return None
    x = np.mean([x[:few] for x, _ in tables], axis=0)  # bytes and seconds differ a little by seed
    y = np.stack([y[:few] for _, y in tables])
    keep = np.unique(np.linspace(0, few - 1, min(few, most)).round().astype(int))
    std = y.std(0, ddof=1) if len(y) > 1 else np.zeros(few)
    return x[keep].tolist(), y.mean(0)[keep].tolist(), std[keep].tolist()


def _rounded(value: Any) -> Any:
    """Plain values with few digits; what is not finite is None."""
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value
