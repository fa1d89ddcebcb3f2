"""Clients' rows, cut, shuffled and kept aside: for data by name and for people's own alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.federation import Index, Rows

Rng = np.random.Generator


def cut(order: Index, length: Index) -> Rows:
    """An order of rows cut into consecutive stretches."""
    return Rows(order, np.cumsum(length) - length, length)


def group(rows: Index, owner: Index, clients: int) -> Rows:
    """Row rows[j] goes to client owner[j]; a client's rows stay in their order."""
    return cut(rows[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=clients))


def places(rows: Rows) -> Index:
    """Where in the order each client's rows stand, client after client."""
    offset = rows.start - (np.cumsum(rows.length) - rows.length)
    return (np.repeat(offset, rows.length) + np.arange(rows.length.sum())) % len(rows.order)


def parted(rows: Rows, aside: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Each client's rows without those that a mask over all rows sets aside, and with them only."""
    order, owner = rows.order[places(rows)], np.repeat(np.arange(len(rows)), rows.length)
    chosen = aside[order]
    kept, kept_aside = (group(order[some], owner[some], len(rows)) for some in (~chosen, chosen))
    return kept, kept_aside


def split(rows: Rows, valid: float, test: float, rng: Rng) -> tuple[Rows, Rows, Rows]:
    """Each client's train, validation and test rows; of n rows floor(n (1 - valid - test)), at least one, to train."""
    if valid + test >= 1:
        raise BadInput(f"valid and test should leave rows to train on. Found {valid} and {test}.")
    if valid + test > 0:
        rows = shuffled(rows, rng)
    n_train = np.maximum(np.floor(rows.length * (1 - valid - test) + 1e-6).astype(np.int64), 1)
    n_train = np.minimum(n_train, rows.length)
    n_test = np.round((rows.length - n_train) * test / ((valid + test) or 1)).astype(np.int64)
    n_valid = rows.length - n_train - n_test
    starts = rows.start, rows.start + n_train, rows.start + n_train + n_valid
    lengths: tuple[Index, Index, Index] = n_train, n_valid, n_test
    train, for_valid, for_test = (Rows(rows.order, s, n) for s, n in zip(starts, lengths, strict=True))
    return train, for_valid, for_test


def shuffled(rows: Rows, rng: Rng) -> Rows:
    """The same clients, each one's rows in random order.

    Stretches that share places are left as they are: clients that share an order by reference have a random one.
    """
    first = np.argsort(rows.start, kind="stable")
    if (np.diff(rows.start[first]) < rows.length[first][:-1]).any():
        return rows
    owner, chance = np.repeat(np.arange(len(rows)), rows.length), rng.permutation(rows.length.sum())
    return cut(rows.order[places(rows)][chance[np.argsort(owner[chance], kind="stable")]], rows.length)
