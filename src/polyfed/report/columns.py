"""The numbers of a run's rounds by column, so that thousands of rounds of many objectives fit into memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfed.report.figure import NONE, Numbers

Path = tuple[str, ...]  # of keys: ('losses', 'left'), ('gap',)
NAN = float("nan")
DEEPEST = 8  # tables in tables of a line
LARGEST = 1 << 1000  # of whole numbers, which would not fit else
ASIDE = ("cohort", "failures", "groups", "idle", "client_weights")  # by client: kept in another form, or not at all


@dataclass(frozen=True, eq=False)
class Curve:
    """One figure over the rounds that have it.

    Args:
        rows: the place of each value's round among the lines.
        values: as the lines say; NaN for null.
    """

    rows: np.ndarray[Any, np.dtype[np.intp]]
    values: Numbers

    def __len__(self) -> int:
        return len(self.values)


class _Block:
    """Rows of one table of figures that have the same keys, one after another."""

    def __init__(self, keys: tuple[Path, ...]) -> None:
        self.place = {key: i for i, key in enumerate(keys)}
        self.rows = array("q")
        self.data = array("d")

    def column(self, key: Path) -> Numbers:
        whole = np.frombuffer(self.data, dtype=np.float64).reshape(-1, len(self.place))
        return whole[:, self.place[key]].copy()


class Columns:
    """Every number of the lines, by its path of keys; lists and texts are left out, but for the failures."""

    def __init__(self) -> None:
        self.failures: list[dict[str, Any]] = []  # each with its 'round'
        self.asked: dict[int, int] = {}  # how often each client was asked
        self.split: Any = None
        self._blocks: dict[str, dict[tuple[Path, ...], _Block]] = {}  # by a line's table, '' for its own numbers
        self._rounds = array("q")

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, line: Mapping[str, Any]) -> None:
        """One round's line."""
        row = len(self._rounds)
        self._rounds.append(int(line["round"]))
        for client in _list(line.get("cohort")):
            if isinstance(client, int):
                self.asked[client] = self.asked.get(client, 0) + 1
        failures = [one for one in _list(line.get("failures")) if isinstance(one, dict)]
        self.failures.extend({"round": line["round"], **one} for one in failures)
        self.split = line.get("split", self.split)
        self._table("", row, {key: value for key, value in line.items() if not isinstance(value, dict)})
        for key, value in line.items():
            if isinstance(value, dict) and key not in ASIDE:
                self._table(key, row, value)

    def _table(self, name: str, row: int, table: Mapping[str, Any]) -> None:
        keys: list[Path] = []
        values: list[float] = []
        _flatten(table, (), keys, values)
        if not keys:
            return
        blocks = self._blocks.setdefault(name, {})
        same = tuple(keys)
        block = blocks.get(same)
        if block is None:
            block = blocks[same] = _Block(same)
        block.rows.append(row)
        block.data.extend(values)

    @property
    def rounds(self) -> Numbers:
        """The number of each line's round."""
        return np.array(self._rounds, dtype=np.float64)

    def keys(self, *path: str) -> list[str]:
        """The names below a path, numbers and tables alike, in the order in which they came."""
        inner, depth = path[1:], len(path) - 1
        every = (key for block in self._blocks.get(path[0], {}).values() for key in block.place)
        return list(dict.fromkeys(key[depth] for key in every if len(key) > depth and key[:depth] == inner))

    def curve(self, *path: str) -> Curve | None:
        """One number over the rounds that have it, in their order; None where none has."""
        name, key = ("", path) if len(path) == 1 else (path[0], path[1:])
        some = [block for block in self._blocks.get(name, {}).values() if key in block.place]
        if not some:
            return None
        rows = np.concatenate([np.array(block.rows, dtype=np.intp) for block in some])
        values = np.concatenate([block.column(key) for block in some])
        if len(some) == 1:
            return Curve(rows, values)
        order = np.argsort(rows, kind="stable")
        return Curve(rows[order], values[order])

    def total(self, key: str) -> Numbers:
        """A number of each line, added up over the rounds up to it; empty where no line has it, 0 where one has not."""
        curve = self.curve(key)
        if curve is None:
            return NONE
        every = np.zeros(len(self))
        every[curve.rows] = np.nan_to_num(curve.values)
        return np.cumsum(every)

    def paths(self) -> Iterator[Path]:
        """The paths of all numbers."""
        for name, blocks in self._blocks.items():
            for key in {key: None for block in blocks.values() for key in block.place}:
                yield (name, *key) if name else key


def _flatten(table: Mapping[str, Any], above: Path, keys: list[Path], values: list[float]) -> None:
    """The numbers of a table and of those in it, by their paths; null is NaN."""
    for key, value in table.items():
        kind = type(value)
        if kind is float or (kind is int and -LARGEST < value < LARGEST):
            keys.append((*above, key))
            values.append(value)
        elif kind is dict and len(above) < DEEPEST:
            _flatten(value, (*above, key), keys, values)
        elif value is None:
            keys.append((*above, key))
            values.append(NAN)


def as_number(value: Any) -> float:
    """A number as a float; NaN for whatever is none, or is too large to be one."""
    fits = type(value) is float or (type(value) is int and -LARGEST < value < LARGEST)
    return float(value) if fits else NAN


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
