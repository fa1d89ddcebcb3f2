"""From arrays, tables and clients' own pairs to a federation: what `Federation.from_arrays` and its kin do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.aligning import aligned, index_of, labels_of
from polyfed.core.aside import Aside, More, is_pair, kept_aside, read_aside, stretches
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import MISSING, Federation, Rows
from polyfed.core.inputs import Features, features_of
from polyfed.core.keys import generator
from polyfed.core.owners import Names, known_owners, rows_of
from polyfed.core.split import group
from polyfed.core.structure import Nested, joined, leaves
from polyfed.core.tables import Classes, Table, chosen, column_of, columns_of, encoded, is_frame, read

CLIENTS = "a number from 1 on, or one list of row numbers for each client"


@dataclass(frozen=True)
class Way:
    """What the constructors share: the seed, who holds what, and what is done with a batch of x."""

    seed: int
    holds: Mapping[str, Any]
    prepare: Callable[[Any], Any] | None
    augment: Callable[[Any, Any], Any] | None
    features: Features = field(default_factory=dict)


def from_arrays(
    x: Any, targets: Any, clients: Any, owner: Any, columns: Any, valid: Any, test: Any, way: Way
) -> Federation:
    """As `Federation.from_arrays` says."""
    table = Table.of(x, targets, columns, whole=way.prepare is None)
    way = replace(way, features=features_of(x))
    if (clients is None) == (owner is None):
        found = "neither" if owner is None else "both"
        raise BadInput(
            f"Say who has which rows: owner=, the owner of each row, or clients=, {CLIENTS}. Found {found} of them."
        )
    index = index_of(x)
    owner, valid, test = (_by_label(*one, index) for one in ((owner, "owner"), (valid, "valid"), (test, "test")))
    rows, names = (_dealt(clients, len(table), way.seed), ()) if owner is None else rows_of(owner, len(table))
    return _federation([table], rows, names, read_aside(valid, test, len(rows), names, whole=way.prepare is None), way)


def from_clients(clients: Any, valid: Any, test: Any, way: Way) -> Federation:
    """As `Federation.from_clients` says."""
    names: Names = tuple(clients) if isinstance(clients, Mapping) else ()
    listed = list(clients.values()) if isinstance(clients, Mapping) else clients
    if not isinstance(listed, Sequence) or not listed or not all(map(is_pair, listed)):
        raise BadInput(
            f"Clients should be given as (x, targets), or (x, targets, columns), one each. Found {shown(clients)}."
        )
    tables = [Table.of(*some, whole=way.prepare is None) for some in listed]
    tables = [replace(table, held=table.targets.keys()) for table in tables]
    way = replace(way, features=features_of(listed[0][0]))
    rows = stretches([len(table) for table in tables])
    return _federation(tables, rows, names, read_aside(valid, test, len(rows), names, whole=way.prepare is None), way)


def from_frame(
    frame: Any, owner: str, x: Any, targets: Any, columns: Any, valid: Any, test: Any, way: Way
) -> Federation:
    """As `Federation.from_frame` says."""
    if not is_frame(frame):
        raise BadInput(f"from_frame takes a table with named columns. Found {shown(type(frame).__name__)}.")
    wanted = {"targets": _wanted(targets, "targets"), "columns": _wanted(columns or {}, "columns")}

    def table(some: Any, of: Callable[[int], str]) -> Table:
        named = {what: {n: read(_some(some, c), repr(n)) for n, c in names.items()} for what, names in wanted.items()}
        return Table(chosen(some, x, of, whole=way.prepare is None), **named, index=index_of(some))

    ids = column_of(frame, owner)
    rows, names = rows_of(ids, len(frame))

    def more(given: Any, what: str) -> Any:
        """What valid= or test= names, as from_arrays has it."""
        if isinstance(given, str):
            return column_of(frame, given)
        if not is_frame(given):
            return _by_label(given, what, index_of(frame))
        if owner not in columns_of(given):
            return More([table(given, lambda row: f"the {what} rows")], None)
        whose = known_owners(given[owner], names, what)
        theirs = group(np.arange(len(given)), whose, len(names))
        return More([table(given, lambda row: shown(names[whose[row]]))], theirs)

    both = more(valid, "valid"), more(test, "test")
    whole = table(frame, lambda row: shown(_at(ids, row)))
    way = replace(way, features=features_of(x))
    return _federation([whole], rows, names, read_aside(*both, len(rows), names, whole=way.prepare is None), way)


# who has which rows


def _by_label(given: Any, what: str, index: Any) -> Any:
    """A column with its rows as those of x; pairs of (x, targets) have rows of their own."""
    return given if isinstance(given, Mapping | tuple) else aligned(given, index, what)


def _dealt(clients: Any, rows: int, seed: int) -> Rows:
    """Row numbers of each client: given, or at random."""
    if isinstance(clients, int | np.integer) and not isinstance(clients, bool) and clients > 0:
        return Rows.dealt(generator(seed, "partition").permutation(rows), int(clients))
    if isinstance(clients, Rows):
        given = clients
    elif isinstance(clients, str | bytes) or not hasattr(clients, "__len__") or getattr(clients, "shape", None) == ():
        raise BadInput(f"clients should be {CLIENTS}; a column of owners is given as owner=. Found {shown(clients)}.")
    elif _is_column(clients):
        raise BadInput(
            f"clients should be {CLIENTS}. Found a column, {shown(type(clients).__name__)} of {len(clients)}; if it "
            f"names the owner of each row, give it as owner=."
        )
    else:
        given = Rows.of(clients)
    if len(given.order) and not 0 <= given.order.min() <= given.order.max() < rows:
        raise BadInput(f"Clients' row numbers should lie between 0 and {rows - 1}. Found {given.order.max()}.")
    return given


def _is_column(values: Any) -> bool:
    """One number or text a row, where lists of row numbers are meant."""
    if not isinstance(values, list | tuple | np.ndarray | Tensor):
        return hasattr(values, "to_numpy") and not is_frame(values)  # a Series
    if len(values) == 0:
        return False
    first = values[0]  # a list may be ragged, of which numpy could not tell how many dimensions it has
    return not isinstance(first, list | tuple) and np.ndim(first) == 0


# one table of all rows


def _federation(tables: Sequence[Table], rows: Rows, names: Names, aside: Mapping[str, Aside], way: Way) -> Federation:
    size = sum(len(table) for table in tables)
    splits = kept_aside(rows, aside, size, way.seed)
    pieces, server = list(tables), None
    whose = _called(names, len(tables)) if len(tables) == len(rows) else ["training"]
    for what, more in aside.items():
        if isinstance(more, More):
            first = sum(len(table) for table in pieces)
            _check_names(tables, more, what)
            pieces += _of_clients(more, tables)
            whose += [f"the {what} rows"] * len(more.tables)
            if more.rows is None:
                server = np.arange(first, sum(len(table) for table in pieces))
            else:
                splits[what] = Rows(more.rows.order + first, more.rows.start, more.rows.length)
    known = _every(tables, "targets")
    targets, classes = _columns(pieces, known, "targets", whose)
    columns, more_classes = _columns(pieces, _every(tables, "columns"), "columns", whose)
    kept = [table.held for table in tables if table.held is not None]
    holds = {name: [name in held for held in kept] for name in known if name} if kept else {}
    return Federation(
        x=_stacked([piece.x for piece in pieces], "rows", whose), targets=targets, train=splits["train"],
        valid=splits.get("valid"), test=splits.get("test"), server=server,
        holds={name: _truths(name, column) for name, column in {**holds, **way.holds}.items()},
        prepare=way.prepare, augment=way.augment, columns=columns, names=names, classes={**classes, **more_classes},
        features=way.features, row_labels=_row_labels(pieces),
    )  # fmt: skip


def _called(names: Names, clients: int) -> list[str]:
    return [f"client {shown(name)}" for name in names or range(clients)]


def _row_labels(pieces: Sequence[Table]) -> NDArray[Any] | None:
    """What rows are called: by a table's index, or by their number in their own array."""
    if len(pieces) == 1 and pieces[0].index is None:
        return None
    each = [np.arange(len(piece)) if piece.index is None else labels_of(piece.index) for piece in pieces]
    return np.concatenate(each if len({one.dtype for one in each}) == 1 else [one.astype(object) for one in each])


def _every(tables: Sequence[Table], kind: str) -> list[str]:
    """The names of all targets, or of all columns."""
    return list(dict.fromkeys(name for table in tables for name in getattr(table, kind)))


def _check_names(tables: Sequence[Table], more: More, what: str) -> None:
    """Rows kept aside have the targets and columns of training; of its targets a client may lack some."""
    for kind in ("targets", "columns"):
        known = set(_every(tables, kind))
        for table in more.tables:
            found = set(getattr(table, kind))
            if found - known or (found != known and (kind == "columns" or more.rows is None)):
                raise BadInput(
                    f"{what.capitalize()} {kind} should be those of training, {sorted(known)}. Found {sorted(found)}."
                )


def _of_clients(more: More, tables: Sequence[Table]) -> list[Table]:
    """Clients' further rows, with the objectives that their training rows have."""
    if len(tables) == 1 or not more.clients:
        return list(more.tables)
    return [replace(table, held=tables[client].held) for client, table in zip(more.clients, more.tables, strict=True)]


def _columns(
    pieces: Sequence[Table], names: Sequence[str], kind: str, whose: Sequence[str]
) -> tuple[dict[str, Tensor], Classes]:
    """Every named column of all rows, and what its numbers stand for where it was of texts."""
    made: dict[str, Tensor] = {}
    classes: Classes = {}
    for name in names:
        given = [getattr(piece, kind).get(name) for piece in pieces]
        there = [column for column in given if column is not None]
        if kind == "columns" and len(there) < len(given):
            raise BadInput(f"Every client should have the column {name!r}. Found {len(given) - len(there)} without it.")
        codes, order = encoded(there, f"The {kind} {name or 'given'!r}")
        if kind == "columns" and order and any(bool((some < 0).any()) for some in codes):
            raise BadInput(f"The column {name!r} should have a text in every row. Found rows without one; fill them.")
        left = iter(codes)
        parts = [
            _blank(codes[0], piece, name) if column is None else next(left)
            for piece, column in zip(pieces, given, strict=True)
        ]
        made[name] = _stacked(parts, f"{kind} {name!r}", whose)
        classes |= {name: order} if order else {}
    return made, classes


def _blank(like: Tensor, piece: Table, name: str) -> Tensor:
    """Targets of rows that have none: a label that occurs where their client does not hold them, since some engines
    compute its loss before they leave it out; else missing labels."""
    shape = (len(piece), *like.shape[1:])
    if piece.held is None or name in piece.held:
        return torch.full(shape, torch.nan)
    flat = like.reshape(len(like), math.prod(like.shape[1:]))
    present = like[~(flat.isnan() | (flat == MISSING)).any(1)][:1]
    return present.expand(shape) if len(present) else like.new_zeros(shape)


def _stacked(parts: Sequence[Nested], what: str, whose: Sequence[str]) -> Nested:
    """The rows of several structures of one kind, one after another."""
    if len(parts) == 1:
        return parts[0]
    try:
        return joined(parts)
    except (RuntimeError, TypeError, ValueError) as error:
        first, *rest = [[tuple(t.shape[1:]) for t in leaves(part)] for part in parts]
        other = next((i for i, shapes in enumerate(rest, 1) if shapes != first), 1)
        found = f"{shown(first)} of {whose[0]} and {shown(rest[other - 1])} of {whose[other]}"
        raise BadInput(f"The {what} should be of one shape and type. Found rows of shapes {found}.") from error


def _truths(name: str, column: Any) -> NDArray[np.bool_]:
    try:
        made = np.asarray(column, dtype=bool)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"'holds' of {name!r} should be true or false for each client. Found {shown(column)}."
        ) from error
    if made.ndim != 1:
        raise BadInput(f"'holds' of {name!r} should be true or false for each client. Found {shown(column)}.")
    return made


# names


def _wanted(given: Any, what: str) -> dict[str, Any]:
    """From the name of a target to its column in the table, or to several."""
    if isinstance(given, str):
        return {given: given}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list | tuple):
        raise BadInput(f"{what} should be a list of columns, or a dict from names to columns. Found {shown(given)}.")
    return {name: name for name in given}


def _some(frame: Any, columns: Any) -> Any:
    """One column, or a table of several."""
    if not isinstance(columns, list | tuple):
        return column_of(frame, columns)
    for name in columns:
        column_of(frame, name)
    return frame[list(columns)]


def _at(column: Any, row: int) -> Any:
    found = np.asarray(column)[row]
    return found.item() if isinstance(found, np.generic) else found
