"""Where the points of a front are tried, and with which neighbour's model each begins.

The first point is in the middle, and is trained from the start. Every other begins with the model of a neighbour that
is there already, so that it has a short way to go.

*Preferences* go where the gap is largest. After the middle, r = (1, ..., 1) / M, and the ends, r = (1, 0, ..., 0), ...
take two neighbours a and b, among the points that are not dominated. The next preference is the one whose ray
r_1 F_1 = ... = r_M F_M goes through the middle of their losses. Of two objectives, neighbours are next to each other,
and the largest gap is the rectangle |F_1(a) - F_1(b)| |F_2(a) - F_2(b)|: so much hypervolume a point between them could
win. Of more, neighbours are those with no other point in the ball between them (Gabriel's graph, losses scaled to their
range), and the largest gap is the longest. A ray that was tried already is not tried again: there is no front where it
goes. Where no gap is left, the next preference is that of evenly spread ones which is farthest from all before it.

*Scalarisations* have weights that fill the simplex evenly (`shares`); the next is always the one that is nearest to one
that is there (the minimum spanning tree).

At an end, where one objective alone is asked for, a tenth of the weights is spread evenly: among the models that are
best for one objective, that is one which is also good for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from polyfed.study.pareto import non_dominated

Floats = NDArray[np.float64]
SAME_RAY = 0.05  # logarithm of the ratio of two rays that are one
AT_AN_END = 0.1  # of the weights is spread evenly where an objective would have none
LEAST = 1e-9  # of the largest r: what is less is an end
LATTICE = 4000  # points of the simplex to choose from, at most


@dataclass(frozen=True)
class Tried:
    """A point that was tried.

    Args:
        preference: r, or weights.
        losses: what it ended with; None of one that failed.
    """

    preference: Floats
    losses: Floats | None


@dataclass(frozen=True)
class Step:
    """The next point.

    Args:
        preference: r, or weights; their sum is 1.
        start: the place of the neighbour, among those tried, whose model it begins with; None for the first.
    """

    preference: Floats
    start: int | None


def next_preference(tried: Sequence[Tried], objectives: int, points: int) -> Step | None:
    """The next preference; None where too many failed.

    Args:
        tried: those that were.
        objectives: M.
        points: how many there will be.
    """
    begin = [np.full(objectives, 1 / objectives), *np.eye(objectives)]
    there = [i for i, one in enumerate(tried) if one.losses is not None]
    if len(tried) < len(begin):
        return Step(begin[len(tried)], there[0] if there else None)
    if len(there) < 2:
        return None
    r = _in_largest_gap(tried)
    if r is None:
        known = np.array([one.preference for one in tried])
        spread = shares(objectives, points)
        r = spread[int(np.abs(spread[:, None] - known[None]).sum(2).min(1).argmax())]
    return Step(r, min(there, key=lambda i: _apart(tried[i].preference, r)))


def _in_largest_gap(tried: Sequence[Tried]) -> Floats | None:
    """r of the ray through the middle of the largest gap between neighbours; None where all were tried."""
    losses = np.array([one.losses for one in tried if one.losses is not None])
    good = losses[non_dominated(losses)]
    gaps = []
    for size, i, j in _gaps(good):
        r = 1 / np.maximum((good[i] + good[j]) / 2, np.finfo(float).tiny)
        if size > 0 and all(_apart(r, one.preference) > SAME_RAY for one in tried):
            gaps.append((size, i, j, r / r.sum()))
    return max(gaps, key=lambda gap: gap[:3])[3] if gaps else None


def _gaps(good: Floats) -> list[tuple[float, int, int]]:
    """How large the gap between each two neighbours is, and which they are."""
    if good.shape[1] == 2:
        order = np.argsort(good[:, 0], kind="stable").tolist()
        return [(abs(float(np.prod(good[i] - good[j]))), i, j) for i, j in pairwise(order)]
    span = np.ptp(good, axis=0)
    places = good / np.where(span > 0, span, 1.0)
    far = np.linalg.norm(places[:, None] - places[None], axis=2)
    found = []
    for i, j in combinations(range(len(good)), 2):
        within = np.linalg.norm(places - (places[i] + places[j]) / 2, axis=1) < far[i, j] / 2 * (1 - 1e-9)
        if not within.any():
            found.append((float(far[i, j]), i, j))
    return found


def _apart(r: Floats, other: Floats) -> float:
    """How far two rays are from each other: the logarithm of the largest ratio of ratios; large from an end."""
    logs = [np.log(np.maximum(one / one.max(), LEAST)) for one in (r, other)]
    return float(np.ptp(logs[0] - logs[1]))


def next_weights(tried: Sequence[Tried], objectives: int, points: int) -> Step | None:
    """The next weights of a scalarisation; None after the last, or where all failed.

    Args:
        tried: those that were.
        objectives: M.
        points: how many there will be.
    """
    every = shares(objectives, points)
    every = every[in_order(every)]
    there = [i for i, one in enumerate(tried) if one.losses is not None]
    if len(tried) == len(every) or (tried and not there):
        return None
    share = every[len(tried)]
    start = min(there, key=lambda i: float(np.linalg.norm(every[i] - share)), default=None)
    return Step((1 - AT_AN_END) * share + AT_AN_END / len(share) if 0.0 in share else share, start)


def in_order(all_shares: Floats) -> list[int]:
    """The first, then always the one that is nearest to any before it.

    Args:
        all_shares: points of the simplex.
    """
    order, rest = [0], list(range(1, len(all_shares)))
    near = np.linalg.norm(all_shares[rest] - all_shares[0], axis=1)
    while rest:
        place = int(near.argmin())
        order.append(rest.pop(place))
        near = np.minimum(np.delete(near, place), np.linalg.norm(all_shares[rest] - all_shares[order[-1]], axis=1))
    return order


def shares(objectives: int, points: int) -> Floats:
    """So many points of a simplex, evenly: of two objectives equally spaced; else the middle, the corners, and then
    always the point of a fine lattice (Das and Dennis's) that is farthest from all before it.

    Args:
        objectives: M.
        points: at least M + 1.
    """
    if objectives == 2:
        first = np.linspace(1.0, 0.0, points)
        found = np.stack([first, 1 - first], axis=1)
        middle = int(np.abs(first - 0.5).argmin())
        return np.concatenate([found[[middle]], np.delete(found, middle, axis=0)])
    chosen = [np.full(objectives, 1 / objectives), *np.eye(objectives)]
    lattice = _lattice(objectives)
    near = np.linalg.norm(lattice[:, None] - np.array(chosen)[None], axis=2).min(1)
    while len(chosen) < points:
        chosen.append(lattice[int(near.argmax())])
        near = np.minimum(near, np.linalg.norm(lattice - chosen[-1], axis=1))
    return np.array(chosen)


def _lattice(objectives: int) -> Floats:
    """All points of the simplex whose coordinates are multiples of 1 / H, for the largest H that is not too many."""
    H = 2
    while comb(H + objectives, objectives - 1) <= LATTICE:
        H += 1
    rows = [np.bincount(places, minlength=objectives) for places in combinations_with_replacement(range(objectives), H)]
    return np.array(rows) / H
