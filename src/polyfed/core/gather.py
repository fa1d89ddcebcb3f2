"""From arrays, tables and clients' own pairs to a federation: what `Federation.from_arrays` and its kin do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Federation, Index, Rows
from polyfed.core.keys import generator
from polyfed.core.owners import Names, known_owners, rows_of
from polyfed.core.split import group, parted, split
from polyfed.core.structure import Nested, joined, leaves, length
from polyfed.core.tables import Classes, Column, chosen, column_of, columns_of, encoded, inputs, is_frame, read

CLIENTS = "a number from 1 on, or one list of row numbers for each client"


@dataclass(frozen=True)
class Table:
    """Some rows: x, the targets by objective, and more columns by name."""

    x: Nested
    targets: Mapping[str, Column]
    columns: Mapping[str, Column]

    @classmethod
    def of(cls, x: Any, targets: Any, columns: Any = None, *, whole: bool = True) -> Table:
        """From what people have; whole: whether x may not lack a value."""
        return cls(inputs(x, whole=whole), _by_name(targets, "targets"), _by_name(columns, "columns"))

    def __len__(self) -> int:
        return length(self.x)


@dataclass(frozen=True)
class More:
    """Rows beside those of training, and whose they are: each client's own, or the server's where nobody's."""

    table: Table
    rows: Rows | None


@dataclass(frozen=True)
class Way:
    """What the constructors share: the seed, who holds what, and what is done with a batch of x."""

    seed: int
    holds: Mapping[str, Any]
    prepare: Callable[[Any], Any] | None
    augment: Callable[[Any, Any], Any] | None


def from_arrays(
    x: Any, targets: Any, clients: Any, owner: Any, columns: Any, valid: Any, test: Any, way: Way
) -> Federation:
    """As `Federation.from_arrays` says."""
    table = Table.of(x, targets, columns, whole=way.prepare is None)
    if (clients is None) == (owner is None):
        found = "neither" if owner is None else "both"
        raise BadInput(
            f"Say who has which rows: owner=, the owner of each row, or clients=, {CLIENTS}. Found {found} of them."
        )
    rows, names = (_dealt(clients, len(table), way.seed), ()) if owner is None else rows_of(owner, len(table))
    return _federation([table], rows, names, _read_aside(valid, test, len(rows), names, way), way)


def from_clients(clients: Any, valid: Any, test: Any, way: Way) -> Federation:
    """As `Federation.from_clients` says."""
    names: Names = tuple(clients) if isinstance(clients, Mapping) else ()
    listed = list(clients.values()) if isinstance(clients, Mapping) else clients
    if not isinstance(listed, Sequence) or not listed or not all(map(_is_pair, listed)):
        raise BadInput(
            f"Clients should be given as (x, targets), or (x, targets, columns), one each. Found {shown(clients)}."
        )
    tables = [Table.of(*some, whole=way.prepare is None) for some in listed]
    rows = _stretches([len(table) for table in tables])
    return _federation(tables, rows, names, _read_aside(valid, test, len(rows), names, way), way)


def from_frame(
    frame: Any, owner: str, x: Any, targets: Any, columns: Any, valid: Any, test: Any, way: Way
) -> Federation:
    """As `Federation.from_frame` says."""
    if not is_frame(frame):
        raise BadInput(f"from_frame takes a table with named columns. Found {shown(type(frame).__name__)}.")
    wanted = {"targets": _wanted(targets, "targets"), "columns": _wanted(columns or {}, "columns")}

    def table(some: Any, of: Callable[[int], str]) -> Table:
        named = {what: {n: read(_some(some, c), repr(n)) for n, c in names.items()} for what, names in wanted.items()}
        return Table(chosen(some, x, of, whole=way.prepare is None), **named)

    ids = column_of(frame, owner)
    rows, names = rows_of(ids, len(frame))

    def more(given: Any, what: str) -> Any:
        """What valid= or test= names, as from_arrays has it."""
        if isinstance(given, str):
            return column_of(frame, given)
        if not is_frame(given):
            return given
        if owner not in columns_of(given):
            return More(table(given, lambda row: f"the {what} rows"), None)
        whose = known_owners(given[owner], names, what)
        return More(table(given, lambda row: shown(names[whose[row]])), group(np.arange(len(given)), whose, len(names)))

    both = more(valid, "valid"), more(test, "test")
    whole = table(frame, lambda row: shown(_at(ids, row)))
    return _federation([whole], rows, names, _read_aside(*both, len(rows), names, way), way)


# who has which rows


def _dealt(clients: Any, rows: int, seed: int) -> Rows:
    """Row numbers of each client: given, or at random."""
    if isinstance(clients, int | np.integer) and not isinstance(clients, bool) and clients > 0:
        return Rows.dealt(generator(seed, "partition").permutation(rows), int(clients))
    if isinstance(clients, Rows):
        given = clients
    elif _is_column(clients):
        raise BadInput(
            f"clients should be {CLIENTS}. Found a column, {shown(type(clients).__name__)} of {len(clients)}; if it "
            f"names the owner of each row, give it as owner=."
        )
    elif isinstance(clients, Sequence | np.ndarray) and not isinstance(clients, str | bytes) and np.ndim(clients):
        given = Rows.of(clients)
    else:
        raise BadInput(f"clients should be {CLIENTS}; a column of owners is given as owner=. Found {shown(clients)}.")
    if len(given.order) and not 0 <= given.order.min() <= given.order.max() < rows:
        raise BadInput(f"Clients' row numbers should lie between 0 and {rows - 1}. Found {given.order.max()}.")
    return given


def _is_column(values: Any) -> bool:
    """One number or text a row, where lists of row numbers are meant."""
    if isinstance(values, list | tuple):
        return bool(values) and all(isinstance(value, str | int | float | np.generic) for value in values)
    return getattr(values, "ndim", 0) == 1 and getattr(values, "dtype", None) != object or hasattr(values, "to_numpy")


def _stretches(lengths: Sequence[int]) -> Rows:
    size = np.array(lengths, dtype=np.int64)
    return Rows(np.arange(size.sum()), np.cumsum(size) - size, size)


# rows kept aside


Aside = float | NDArray[np.bool_] | More | None


def _read_aside(valid: Any, test: Any, clients: int, names: Names, way: Way) -> dict[str, Aside]:
    whole = way.prepare is None
    return {
        split: _aside(given, split, clients, names, whole) for split, given in (("valid", valid), ("test", test))
    }


def _aside(given: Any, what: str, clients: int, names: Names, whole: bool) -> Aside:
    """A fraction, a mask, or more rows."""
    if given is None or isinstance(given, More):
        made: Aside = given
    elif isinstance(given, float | int) and not isinstance(given, bool):
        if not 0 <= given < 1:
            raise BadInput(f"{what}, as a fraction of each client's rows, should be from 0 to below 1. Found {given}.")
        made = float(given)
    elif isinstance(given, Mapping):
        made = _each(_ordered(given, what, clients, names), what, whole)
    elif isinstance(given, tuple) and _is_pair(given):
        made = More(Table.of(*given, whole=whole), None)
    elif isinstance(given, list) and any(_is_pair(some) for some in given):
        if len(given) != clients:
            raise BadInput(f"{what} should have one pair, or None, for each of {clients} clients. Found {len(given)}.")
        made = _each(given, what, whole)
    else:
        made = _mask(given, what)
    if what == "valid" and isinstance(made, More) and made.rows is None:
        raise BadInput(
            "valid rows are the clients' own: give a fraction, a mask, or a list with one (x, targets) for each client. "
            "Found rows without owners."
        )
    return made


def _ordered(given: Mapping[Any, Any], what: str, clients: int, names: Names) -> list[Any]:
    """One pair for each client, from a dict by name or number."""
    known: Sequence[Any] = names or range(clients)
    for name in given:
        if name not in known:
            close = nearest(str(name), map(str, known))
            raise BadInput(f"{what} names a client that there is not, {shown(name)}.{close}")
    return [given.get(name) for name in known]


def _each(listed: Sequence[Any], what: str, whole: bool) -> More:
    for client, some in enumerate(listed):
        if some is not None and not _is_pair(some):
            raise BadInput(f"{what} should be (x, targets) for each client. Found {shown(some)} for client {client}.")
    tables = [None if some is None else Table.of(*some, whole=whole) for some in listed]
    there = [table for table in tables if table is not None]
    if not there:
        raise BadInput(f"{what} should have rows for some client. Found none.")
    x, targets, columns = _stacked([t.x for t in there], what), _names(there, "targets"), _names(there, "columns")
    for kind, names in (("targets", targets), ("columns", columns)):
        for table in there:
            if set(getattr(table, kind)) != set(names):
                raise BadInput(f"{what} should have the same {kind} for each client. Found {sorted(names)} in all.")
    both = ({n: _one([getattr(t, kind)[n] for t in there], n) for n in names} for kind, names in ())
    raise NotImplementedError


def _mask(given: Any, what: str) -> NDArray[np.bool_]:
    raise NotImplementedError
