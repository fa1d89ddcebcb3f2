"""Who gets which rows. A partition is a function of (dataset, rng, its own options) to `Rows`.

A partition decides how many clients there are: most take `clients`. It may list a client's rows in any order, since
keeping some aside shuffles them first (`build.py`). Each row goes to exactly one client unless the docstring of the
partition says otherwise. Those that go by labels are in `label_skew.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput, nearest
from polyfed.core.federation import Index, Rows
from polyfed.core.split import Rng, cut
from polyfed.data import Dataset, partitions

Whole = Annotated[int, Field(ge=1)]
Sizes = Literal["equal", "lognormal"]
Sigma = Annotated[float, Field(gt=0, le=10)]  # at 10 one client has nearly everything


@partitions("iid")
def iid(
    dataset: Dataset,
    *,
    rng: Rng,
    clients: Whole = 100,
    sizes: Sizes = "equal",
    sigma: Sigma = 1.0,
    rows_per_client: Whole | None = None,
) -> Rows:
    """Rows at random; sizes equal, or lognormal with spread sigma.

    Args:
        clients: how many there are.
        sizes: as many rows for every client, up to one ('equal'), or sizes drawn from a 'lognormal' law.
        sigma: the standard deviation of the logarithm of 'lognormal' sizes.
        rows_per_client: rows of a client (a mean, if sizes differ), the rest being nobody's: a fixed n for every
            client, as FMGDA (256 in its Figure 1) and the multi-model paper suppose; all rows if not given.
    """
    total = dealt(dataset.rows, clients, rows_per_client)
    return cut(rng.permutation(dataset.rows)[:total], shares(total, weights(clients, sizes, sigma, rng)))


@partitions("windows")
def windows(dataset: Dataset, *, rng: Rng, clients: Whole = 100, rows_per_client: Whole = 1000) -> Rows:
    """Each client a random stretch of one shuffled order: rows are shared, a million clients cost 16 MB.

    Stretches overlap, so a row has many owners or none.

    Args:
        clients: how many there are.
        rows_per_client: the length of a stretch.
    """
    if rows_per_client > dataset.rows:
        raise BadInput(f"data.rows_per_client should be at most the {dataset.rows} rows. Found {rows_per_client}.")
    start = rng.integers(0, dataset.rows, clients)
    return Rows(rng.permutation(dataset.rows), start, np.full(clients, rows_per_client))


@partitions("natural")
def natural(
    dataset: Dataset, *, rng: Rng, key: str | None = None, clients: Whole | None = None, min_rows: Whole = 1
) -> Rows:
    """One client per owner of rows (user, field, sensor, ...); `clients`, if given, draws that many of them.

    Rows are nobody's when their owner was not drawn or has fewer than min_rows.

    Args:
        key: what owns rows, by its name ('user'); needed only where the data set has more than one kind of owner.
        clients: how many owners are drawn at random; all if not given.
        min_rows: owners with fewer rows are left out; 1 for none.
    """
    owner = codes(_chosen(dataset.keys, key), dataset.rows)
    length = np.bincount(owner)
    kept = np.flatnonzero(length >= min_rows)
    if not 1 <= (clients or 1) <= len(kept):
        raise BadInput(
            f"data.clients should be at most the number of owners with {min_rows} rows or more, {len(kept)}; leave it "
            f"out to have them all. Found {clients or 'none'}."
        )
    if clients is not None:
        kept = np.sort(rng.choice(kept, clients, replace=False))
    return Rows(np.argsort(owner, kind="stable"), (np.cumsum(length) - length)[kept], length[kept])


def _chosen(keys: Mapping[str, NDArray[Any]], key: str | None) -> NDArray[Any]:
    if not keys:
        raise BadInput("This data set has no natural owners of rows; choose another data.partition.")
    if key is None and len(keys) == 1:
        return next(iter(keys.values()))
    if key is None:
        raise BadInput(f"data.key is needed: rows have more than one kind of owner.{nearest('', keys)}")
    if key not in keys:
        raise BadInput(f"data.key should name what owns the rows. Found {key!r}.{nearest(key, keys)}")
    return keys[key]


def dealt(rows: int, clients: int, rows_per_client: int | None, remedy: str = "use fewer of either") -> int:
    """How many rows clients have together: so many each, or all of them."""
    total = clients * rows_per_client if rows_per_client else rows
    if total > rows:
        raise BadInput(f"clients x data.rows_per_client should be at most the {rows} rows. Found {total}; {remedy}.")
    return total


def weights(clients: int, sizes: Sizes, sigma: float, rng: Rng) -> NDArray[np.float64]:
    """The clients' sizes relative to each other."""
    return np.ones(clients) if sizes == "equal" else rng.lognormal(0.0, sigma, clients)


def shares(total: int, weight: NDArray[np.float64]) -> Index:
    """How many of `total` rows each client gets: at least one, the rest in proportion to the weights."""
    clients = len(weight)
    if clients > total:
        raise BadInput(f"data.clients should be at most the number of rows, {total}. Found {clients}.")
    exact = weight / weight.sum() * (total - clients)
    size: Index = 1 + np.floor(exact).astype(np.int64)
    size[np.argsort(np.floor(exact) - exact, kind="stable")[: total - size.sum()]] += 1  # the largest remainders
    return size


def deal(order: Index, clients: int) -> Rows:
    """An order of rows cut into shares whose sizes differ by at most one."""
    return cut(order, shares(len(order), np.ones(clients)))


def codes(values: NDArray[Any], rows: int) -> Index:
    """The distinct values of the clients' rows, numbered 0, 1, ..."""
    return np.unique(values[:rows], return_inverse=True)[1].astype(np.int64)
