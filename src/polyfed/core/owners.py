"""Who has which rows, from a column with the owner of each: any names, numbers or other things that can be compared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.aligning import index_of, label_at
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import Index, Rows
from polyfed.core.split import group

Names = tuple[Hashable, ...]


def rows_of(owner: Any, rows: int) -> tuple[Rows, Names]:
    """Each owner's rows, and their names: sorted where they can be, else in the order in which they appear first.

    Args:
        owner: of each row: an array, a Series or a list.
        rows: how many there are.
    """
    values = _column(owner)
    if len(values) != rows:
        raise BadInput(f"owner should name the owner of each of the {rows} rows. Found {len(values)}.")
    codes, names = _numbered(values)
    if gone := [i for i, name in enumerate(names) if absent(name)]:
        lost = np.flatnonzero(np.isin(codes, gone))
        row = shown(label_at(index_of(owner), int(lost[0])))
        raise BadInput(
            f"Every row needs an owner. Found {names[gone[0]]!r} in row {row}; leave out such rows, or name their "
            f"owner ({len(lost)} of them)."
        )
    return group(np.arange(rows), codes, len(names)), names


def known_owners(owner: Any, names: Names, what: str) -> Index:
    """The numbers of the clients that own some more rows; they have been named before."""
    number = {name: i for i, name in enumerate(names)}
    codes, found = _numbered(_column(owner))
    for name in found:
        if name not in number:
            raise BadInput(
                f"The {what} rows are of clients that have rows to train on. Found the owner {shown(name)}, who has "
                f"none; leave such rows out, or give rows without owners, on which the server evaluates."
            )
    return np.array([number[name] for name in found], dtype=np.int64)[codes]


def absent(value: Any) -> bool:
    """None, NaN, NaT or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # whether pandas is there or not
        return True
    return isinstance(value, float | np.generic) and bool(value != value)


def _column(owner: Any) -> NDArray[Any]:
    """One entry a row, and no change of types: [1, 'a'] is not ['1', 'a']."""
    if isinstance(owner, str | bytes | Mapping) or not hasattr(owner, "__len__"):
        raise BadInput(f"owner should be a column with the owner of each row. Found {shown(owner)}.")
    if not isinstance(owner, list | tuple):
        values = np.asarray(owner)
        if values.ndim != 1:
            raise BadInput(f"owner should be one column. Found an array of shape {values.shape}.")
        return values
    kinds = set(map(type, owner))
    if len(kinds) == 1 and kinds <= {int, str, float, bool, bytes, np.int64, np.int32, np.str_}:
        return np.asarray(owner)
    values = np.empty(len(owner), dtype=object)
    values[:] = owner
    return values


def _numbered(values: NDArray[Any]) -> tuple[Index, Names]:
    """Each value's number, and the values by number."""
    if values.dtype != object:
        found, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64).reshape(-1), tuple(found.tolist())
    seen: dict[Any, int] = {}
    try:
        numbers = np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)
    except TypeError as error:
        raise BadInput(
            f"Owners should be names, numbers or other hashable values. Found {shown(values[0])}."
        ) from error
    try:
        names = sorted(seen)
    except TypeError:  # of several kinds
        return numbers, tuple(seen)
    place = np.empty(len(names), dtype=np.int64)
    place[[seen[name] for name in names]] = np.arange(len(names))
    return place[numbers], tuple(names)
