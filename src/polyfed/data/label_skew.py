"""Partitions that give clients different labels: Dirichlet, shards, and so many labels each."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Index, Rows
from polyfed.core.split import Rng, cut, group, places
from polyfed.data import Dataset, partitions
from polyfed.data.partition import Sigma, Sizes, Whole, codes, deal, dealt, shares, weights

Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@partitions("dirichlet")
def dirichlet(
    dataset: Dataset,
    *,
    rng: Rng,
    clients: Whole = 100,
    alpha: Alpha = 0.3,
    by: str | None = None,
    sizes: Sizes = "equal",
    sigma: Sigma = 1.0,
    rows_per_client: Whole | None = None,
    reuse: bool = False,
) -> Rows:
    """Each client's labels follow its own draw from Dirichlet(alpha) over all labels (Acar et al. 2021).

    A label that has run out leaves its share to the others.

    Args:
        clients: how many there are.
        alpha: the concentration; a small one leaves a client few labels, a large one (100) nearly the mix of all.
        by: the label to go by, a target or key of the data set; its own label if not given.
        sizes: as many rows for every client, up to one ('equal'), or sizes drawn from a 'lognormal' law.
        sigma: the standard deviation of the logarithm of 'lognormal' sizes.
        rows_per_client: rows of a client (a mean, if sizes differ), the rest being nobody's; all rows if not given.
        reuse: rows may have several owners, as in FedCMOO's own code.
    """
    label = labels_of(dataset, by)
    n = np.bincount(label)
    if reuse and rows_per_client:
        total = clients * rows_per_client
    else:
        total = dealt(dataset.rows, clients, rows_per_client, "data.reuse = true lets clients share rows")
    size = shares(total, weights(clients, sizes, sigma, rng))
    mix = rng.dirichlet(np.full(len(n), alpha), clients)
    if reuse:
        return _from_decks(by_label(label, rng), n, mix, size, rng)
    counts = _counts(mix, size, n, rng)
    owner = np.repeat(np.tile(np.arange(clients), len(n)), counts.T.ravel())
    return group(_first(by_label(label, rng), n, counts.sum(0)), owner, clients)


def _counts(mix: NDArray[np.float64], size: Index, n: Index, rng: Rng) -> Index:
    """Clients x labels: how many rows of each label; row sums are size, column sums at most n.

    Everybody draws labels for what it still needs from its own mix of those left; where more is wanted than is left,
    lots decide. Each pass uses up a label or satisfies everyone.
    """
    counts, left = np.zeros(mix.shape, dtype=np.int64), n.copy()
    while (need := size - counts.sum(1)).any():
        who = np.flatnonzero(need)
        want = rng.multinomial(need[who], _mix_of(mix[who], left))
        for c in np.flatnonzero(want.sum(0) > left):
            want[:, c] = rng.multivariate_hypergeometric(want[:, c], left[c], method="marginals")
        counts[who] += want
        left -= want.sum(0)
    return counts


def _mix_of(mix: NDArray[np.float64], left: Index) -> NDArray[np.float64]:
    """The mixes restricted to the labels that are left; where nothing remains of one, the labels as they are left."""
    p = np.where(left > 0, mix, 0.0)
    p = np.where(p.sum(1, keepdims=True) > 0, p, left.astype(np.float64))
    normal: NDArray[np.float64] = p / p.sum(1, keepdims=True)
    return normal


def _first(order: Index, n: Index, used: Index) -> Index:
    """Of each label the first rows that are used, from an order sorted by label."""
    return order[places(Rows(order, np.cumsum(n) - n, used))]


def _from_decks(order: Index, n: Index, mix: NDArray[np.float64], size: Index, rng: Rng) -> Rows:
    """FedCMOO's code: floor(p_c size) rows from the top of each label's deck, shuffled anew when it is too thin, then
    whatever is missing uniformly from what is left in all decks. So nobody has a row twice, but two may share one.
    """
    decks, at = np.split(order, np.cumsum(n)[:-1]), np.zeros(len(n), dtype=np.int64)
    lists: list[Index] = []
    for p, rows in zip(mix, np.minimum(size, len(order)), strict=True):
        want = np.minimum(np.floor(p * rows).astype(np.int64), n)
        for c in np.flatnonzero(at + want > n):
            decks[c], at[c] = rng.permutation(decks[c]), 0
        short = rows - want.sum()
        if (n - at - want).sum() < short:
            decks, at = [rng.permutation(deck) for deck in decks], np.zeros_like(at)
        want += rng.multivariate_hypergeometric(n - at - want, short, method="marginals")
        lists.append(np.concatenate([decks[c][at[c] : at[c] + want[c]] for c in np.flatnonzero(want)]))
        at += want
    return Rows.of(lists)


@partitions("shards")
def shards(
    dataset: Dataset, *, rng: Rng, clients: Whole = 100, shards_per_client: Whole = 5, by: str | None = None
) -> Rows:
    """Rows sorted by label, cut into clients x shards_per_client equal shards, dealt at random (FedAvg, FedMGDA+).

    Args:
        clients: how many there are.
        shards_per_client: shards of each client, and so about the most labels that it has.
        by: the label to go by, a target or key of the data set; its own label if not given.
    """
    total = clients * shards_per_client
    if total > dataset.rows:
        raise BadInput(f"clients x data.shards_per_client should be at most the {dataset.rows} rows. Found {total}.")
    sorted_ = deal(by_label(labels_of(dataset, by), rng), total)
    dealt = rng.permutation(total)
    pieces = Rows(sorted_.order, sorted_.start[dealt], sorted_.length[dealt])
    return cut(pieces.order[places(pieces)], pieces.length.reshape(clients, -1).sum(1))


@partitions("labels")
def labels(
    dataset: Dataset,
    *,
    rng: Rng,
    clients: Whole = 100,
    labels_per_client: Whole = 2,
    by: str | None = None,
    rows_per_client: Whole | None = None,
) -> Rows:
    """So many labels a client, every label equally often up to one and shared equally by those who have it.

    Args:
        clients: how many there are.
        labels_per_client: different labels of each client; clients together must have them all.
        by: the label to go by, a target or key of the data set; its own label if not given.
        rows_per_client: rows of every client, as many of each of its labels up to one, the rest being nobody's: FMGDA
            has 256 of at most two labels in its Figure 1; all rows if not given.
    """
    label = labels_of(dataset, by)
    n = np.bincount(label)
    if not len(n) <= labels_per_client * clients or labels_per_client > len(n):
        raise BadInput(
            f"data.labels_per_client should lie between {-(-len(n) // clients)}, so that {clients} clients have all "
            f"{len(n)} labels, and {len(n)}. Found {labels_per_client}; data.by goes by another label."
        )
    hands = _hands(clients, labels_per_client, len(n), rng)
    if rows_per_client:
        counts = _fixed(hands, n, rows_per_client)
        owner = np.repeat(np.tile(np.arange(clients), len(n)), counts.T.ravel())
        return group(_first(by_label(label, rng), n, counts.sum(0)), owner, clients)
    hands = hands.ravel()
    holders, held = np.argsort(hands, kind="stable") // labels_per_client, np.bincount(hands)
    rank = np.arange(len(label)) - np.repeat(np.cumsum(n) - n, n)  # a row's place among those of its label
    owner = holders[np.repeat(np.cumsum(held) - held, n) + rank % np.repeat(held, n)]
    return group(by_label(label, rng), owner, clients)


def _hands(clients: int, k: int, labels: int, rng: Rng) -> Index:
    """k distinct labels for each client, always those that fewest have so far; lots decide between equals."""
    held, hands = np.zeros(labels, dtype=np.int64), np.empty((clients, k), dtype=np.int64)
    for i in range(clients):
        hands[i] = np.lexsort((rng.random(labels), held))[:k]
        held[hands[i]] += 1
    return hands


def _fixed(hands: Index, n: Index, rows: int) -> Index:
    """Clients x labels: how many rows of each label, as many of every label in a client's hand up to one."""
    clients, k = hands.shape
    if rows < k:
        raise BadInput(f"data.rows_per_client should be at least data.labels_per_client, {k}. Found {rows}.")
    counts = np.zeros((clients, len(n)), dtype=np.int64)
    counts[np.arange(clients)[:, None], hands] = rows // k + (np.arange(k) < rows % k)
    if (counts.sum(0) > n).any():
        most = k * int((n // np.bincount(hands.ravel())).min())
        raise BadInput(f"data.rows_per_client should be so small that no label runs out: {most} will do. Found {rows}.")
    return counts


def by_label(label: Index, rng: Rng) -> Index:
    """Row numbers sorted by label, at random within one."""
    order = rng.permutation(len(label))
    return order[np.argsort(label[order], kind="stable")]


def labels_of(dataset: Dataset, by: str | None = None) -> Index:
    """The label of each row as 0, 1, ...: the data set's own, or that of the target or key `by` names."""
    if by is None and dataset.labels is not None:
        return codes(dataset.labels, dataset.rows)
    choices = {**dataset.keys, **{name: t for name, t in dataset.targets.items() if discrete(t)}}
    if by is None:
        raise BadInput(
            "This data set has no label of its own to partition by; use data.partition = 'iid', or name a label in "
            f"data.by: {', '.join(sorted(choices)) or 'it has none'}."
        )
    if by not in choices:
        raise BadInput(f"data.by should name a label of this data set. Found {shown(by)}.{nearest(by, choices)}")
    return codes(choices[by], dataset.rows)


def discrete(target: NDArray[Any]) -> bool:
    """Whether a target is a label: one whole number a row."""
    return target.ndim == 1 and bool((target == np.floor(target)).all())
