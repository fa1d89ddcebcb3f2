"""Who gets which rows. A partition is a function of (dataset, clients, rng, its own options) to `Rows`."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.data import Dataset, partitions
from polyfed.errors import BadInput
from polyfed.federation import Index, Rows

Rng = np.random.Generator


@partitions("iid")
def iid(dataset: Dataset, *, clients: int, rng: Rng) -> Rows:
    """Every client an equal share of the rows, at random."""
    return deal(rng.permutation(dataset.rows), clients)


@partitions("dirichlet")
def dirichlet(
    dataset: Dataset, *, clients: int, rng: Rng, alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
) -> Rows:
    """Equal shares, disjoint; each client's labels follow its own draw from Dirichlet(alpha) over all labels."""
    labels = _labels(dataset)
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in np.unique(labels)]
    sizes = deal(np.arange(dataset.rows), clients).length
    mix = rng.dirichlet(np.full(len(pools), alpha), size=clients)
    return Rows.of([_draw(pools, mix[i], int(sizes[i]), rng) for i in range(clients)])


def _draw(pools: list[list[int]], p: NDArray[np.float64], size: int, rng: Rng) -> list[int]:
    """`size` rows with labels drawn from p; labels that have run out leave their share to the others."""
    rows: list[int] = []
    while len(rows) < size:
        left = np.array([len(pool) for pool in pools])
        share = np.where(left > 0, p, 0.0)
        share = share if share.sum() > 0 else left.astype(float)  # all it wanted is gone: whatever is left
        for label, count in enumerate(rng.multinomial(size - len(rows), share / share.sum())):
            rows += [pools[label].pop() for _ in range(min(count, left[label]))]
    return rows


def deal(order: Index, clients: int) -> Rows:
    """An order of rows cut into shares whose sizes differ by at most one."""
    if clients > len(order):
        raise BadInput(f"data.clients should be at most the number of rows, {len(order)}. Found {clients}.")
    length = np.full(clients, len(order) // clients)
    length[: len(order) % clients] += 1
    return Rows(order, np.cumsum(length) - length, length)


def _labels(dataset: Dataset) -> NDArray[np.int64]:
    if dataset.labels is None:
        raise BadInput("This data set has no labels to partition by; use data.partition = 'iid'.")
    return dataset.labels[: dataset.rows]
