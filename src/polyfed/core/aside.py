"""Rows kept aside for validation and tests: a fraction of each client's, those that a mask names, or more rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import SPLITS, Rows
from polyfed.core.keys import generator
from polyfed.core.owners import Names
from polyfed.core.split import parted, split
from polyfed.core.tables import Table, Texts, read


@dataclass(frozen=True)
class More:
    """Rows beside those of training, and whose they are: each client's own, or the server's where nobody's.

    clients: of each table, where each is one client's.
    """

    tables: Sequence[Table]
    rows: Rows | None
    clients: Sequence[int] = ()


Aside = float | NDArray[np.bool_] | More | None


def read_aside(valid: Any, test: Any, clients: int, names: Names, *, whole: bool) -> dict[str, Aside]:
    """What valid= and test= are given as.

    Args:
        valid, test: a fraction, a mask of rows, more rows of the clients, or the server's.
        clients: how many there are.
        names: theirs.
        whole: whether x may not lack a value.
    """
    found = {"valid": valid, "test": test}
    columns = {what: column for what in found if isinstance(column := _words(found[what]), Texts)}
    for what, words in columns.items():  # a column of texts speaks of both
        other = "test" if what == "valid" else "valid"
        if other not in words.values:
            continue
        if found[other] is None:
            found[other] = words
        elif other not in columns or not np.array_equal(words.values, columns[other].values):
            raise BadInput(
                f"{what}, a column that says 'train', 'valid' and 'test', speaks for both splits: leave {other}= out. "
                f"Found {other}= as well; of rows that the column calls {other!r} some would be trained on."
            )
    return {what: _aside(given, what, clients, names, whole) for what, given in found.items()}


def _aside(given: Any, what: str, clients: int, names: Names, whole: bool) -> Aside:
    """A fraction, a mask, or more rows."""
    if given is None or isinstance(given, More):
        made: Aside = given
    elif isinstance(given, float | int | np.number) and not isinstance(given, bool):
        if not 0 <= given < 1:
            raise BadInput(f"{what}, as a fraction of each client's rows, should be from 0 to below 1. Found {given}.")
        made = float(given)
    elif isinstance(given, Mapping):
        made = _each(_ordered(given, what, clients, names), what, whole)
    elif isinstance(given, tuple) and is_pair(given):
        made = More([Table.of(*given, whole=whole)], None)
    elif isinstance(given, list) and any(is_pair(some) for some in given):
        if len(given) != clients:
            raise BadInput(f"{what} should have one pair, or None, for each of {clients} clients. Found {len(given)}.")
        made = _each(given, what, whole)
    else:
        made = _mask(given, what)
    if what == "valid" and isinstance(made, More) and made.rows is None:
        raise BadInput(
            "valid rows are the clients' own: give a fraction, a mask, or a list of (x, targets) with one for each "
            "client. Found rows without owners."
        )
    return made


def _ordered(given: Mapping[Any, Any], what: str, clients: int, names: Names) -> list[Any]:
    """One pair for each client, from a dict by name or number."""
    known = dict.fromkeys(names or range(clients))
    for name in given:
        if name not in known:
            close = nearest(str(name), map(str, known))
            raise BadInput(f"{what} names a client that there is not, {shown(name)}.{close}")
    return [given.get(name) for name in known]


def _each(listed: Sequence[Any], what: str, whole: bool) -> More:
    """Rows of each client's own, from its pair, or none."""
    for client, some in enumerate(listed):
        if some is not None and not is_pair(some):
            raise BadInput(f"{what} should be (x, targets) for each client. Found {shown(some)} for client {client}.")
    tables = [None if some is None else Table.of(*some, whole=whole) for some in listed]
    rows = stretches([0 if table is None else len(table) for table in tables])
    there = {client: table for client, table in enumerate(tables) if table is not None}
    return More(list(there.values()), rows, list(there))


def is_pair(some: Any) -> bool:
    """(x, targets) or (x, targets, columns)."""
    return isinstance(some, tuple | list) and len(some) in (2, 3) and not any(_is_scalar(value) for value in some)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | np.generic)


def _words(given: Any) -> Any:
    """A column of texts, if it is one."""
    other = _is_scalar(given) or isinstance(given, Mapping | More | tuple)
    pairs = isinstance(given, list) and any(map(is_pair, given))
    return None if other or pairs else read(given, "A column of splits")


def _mask(given: Any, what: str) -> NDArray[np.bool_]:
    """Which rows are kept aside: true, or the split's name in a column of them."""
    values = read(given, what) if not _is_scalar(given) else None
    if isinstance(values, Texts):
        words = {value for value in values.values if value not in SPLITS}
        if None in words:
            raise _unsaid(what, sum(value is None for value in values.values))
        if words:
            raise BadInput(
                f"{what}, as a column of texts, should say 'train', 'valid' or 'test' of every row. Found "
                f"{shown(sorted(map(str, words))[0])}; or give a mask: {what}=column == ..."
            )
        return np.asarray(values.values == what, dtype=bool)
    if values is not None and values.is_floating_point() and (gone := int(values.isnan().sum())):
        raise _unsaid(what, gone)
    if values is None or values.dtype != torch.bool or values.dim() != 1:
        found = given if values is None else f"{values.dtype} of shape {tuple(values.shape)}"
        raise BadInput(
            f"{what} should be a fraction, a mask of rows (true or false), (x, targets) for the server, or a list of "
            f"(x, targets) with one for each client. Found {shown(found)}."
        )
    return values.numpy()


def _unsaid(what: str, gone: int) -> BadInput:
    return BadInput(
        f"{what}, as a column, should say of every row whether it is kept aside. Found {gone} missing values; fill "
        f"them first: column.fillna(False), or column.fillna('train') of texts."
    )


def kept_aside(rows: Rows, aside: Mapping[str, Aside], size: int, seed: int) -> dict[str, Rows]:
    """Each client's rows by split: masks first, fractions of what they leave."""
    masks = {what: given for what, given in aside.items() if isinstance(given, np.ndarray)}
    for what, mask in masks.items():
        if len(mask) != size:
            raise BadInput(f"{what}, as a mask, should be true or false for each of {size} rows. Found {len(mask)}.")
    if len(masks) > 1 and (twice := int((masks["valid"] & masks["test"]).sum())):
        raise BadInput(f"A row is a valid row or a test row. Found {twice} that both masks name.")
    found: dict[str, Rows] = {}
    for what, mask in masks.items():
        rows, found[what] = parted(rows, mask)
    part = {what: given for what, given in aside.items() if isinstance(given, float) and given}
    if part:
        rows, *both = split(rows, part.get("valid", 0.0), part.get("test", 0.0), generator(seed, "split"))
        found |= {what: some for what, some in zip(("valid", "test"), both, strict=True) if what in part}
    return {"train": rows, **found}


def stretches(lengths: Sequence[int]) -> Rows:
    """Clients whose rows follow one another."""
    size = np.array(lengths, dtype=np.int64)
    return Rows(np.arange(size.sum()), np.cumsum(size) - size, size)
