"""Where the points of a front are tried, and with which neighbour's model each begins.

The first point is in the middle, and is trained from the start. Every other begins with the model of a neighbour that
is there already, so that it has a short way to go.

*Preferences of two objectives* go where the gap is largest. After the middle, r = (1/2, 1/2), and the ends, (1, 0) and
(0, 1), take the two neighbours a and b whose rectangle |F_1(a) - F_1(b)| |F_2(a) - F_2(b)| is the largest: so much
hypervolume a point between them could win. The next preference is the one whose ray r_1 F_1 = r_2 F_2 goes through the
middle of a and b. A ray that was tried already is not tried again: there is no front where it goes. Where no gap is
left, the next preference is that of equally spaced ones which is farthest from all before it.

*Preferences of more objectives* aim at points of the simplex between the corners' loss vectors A_1, ..., A_M, where A_k
is what training for objective k alone gives: for shares s, the ray through sum_k s_k A_k, so r_k = 1 / that. Shares
fill the simplex evenly (`shares`).

*Scalarisations* have the shares as weights.

At an end, where one objective alone is asked for, the others have a share of 2 % of the weights among them all: of the
models that are best for one objective, that is one which is also good for the others.

With given shares, the next point is always the one that is nearest to one that is there (the minimum spanning tree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SAME_RAY = 0.05  # logarithm of the ratio of two rays that are one
AT_AN_END = 0.02  # of the weights is spread evenly where an objective would have none
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


def next_of_two(tried: Sequence[Tried], points: int) -> Step | None:
    """The next preference of two objectives; None where too many failed.

    Args:
        tried: those that were.
        points: how many there will be.
    """
    begin = [np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    if len(tried) < len(begin):
        start = next((i for i, one in enumerate(tried) if one.losses is not None), None)
        return Step(begin[len(tried)], start)
    there = [i for i, one in enumerate(tried) if one.losses is not None]
    if len(there) < 2:
        return None
    r = _in_largest_gap(tried)
    if r is None:
        known = np.array([one.preference for one in tried])
        spaced = shares(2, points)
        r = spaced[int(np.abs(spaced[:, None] - known[None]).sum(2).min(1).argmax())]
    return Step(r, min(there, key=lambda i: abs(_ray(tried[i].preference) - _ray(r))))


def _in_largest_gap(tried: Sequence[Tried]) -> Floats | None:
    """r of the ray through the middle of the largest gap between neighbours; None where all were tried."""
    rays = [_ray(one.preference) for one in tried]
    there = sorted((one.losses for one in tried if one.losses is not None), key=tuple)
    gaps = []
    for a, b in pairwise(there):
        r = 1 / np.maximum((a + b) / 2, np.finfo(float).tiny)
        area = abs(float(np.prod(a - b)))
        if area > 0 and all(abs(_ray(r) - other) > SAME_RAY for other in rays):
            gaps.append((area, _ray(r), r / r.sum()))
    return max(gaps, key=lambda gap: gap[:2])[2] if gaps else None


def _ray(r: Floats) -> float:
    """The logarithm of r_1 / r_2: infinite at the ends."""
    with np.errstate(divide="ignore"):
        return float(np.log(r[0]) - np.log(r[1]))


def next_of_shares(tried: Sequence[Tried], all_shares: Floats, aimed: bool) -> Step | None:
    """The next of given shares; None after the last.

    Args:
        tried: those that were, in the order of `in_order`.
        all_shares: the middle first, then the corners, then the others.
        aimed: whether shares stand for rays through the corners' losses, and not for weights.
    """
    order = in_order(all_shares, corners_first=aimed)
    done = len(tried)
    if done == len(order):
        return None
    there = [i for i, one in enumerate(tried) if one.losses is not None]
    if done and not there:
        return None
    share = all_shares[order[done]]
    far = [float(np.linalg.norm(all_shares[order[i]] - share)) for i in there]
    start = there[int(np.argmin(far))] if there else None
    weights = (1 - AT_AN_END) * share + AT_AN_END / len(share) if 0.0 in share else share
    return Step(_aimed(share, tried, all_shares[order]) if aimed else weights, start)


def _aimed(share: Floats, tried: Sequence[Tried], before: Floats) -> Floats:
    """r of the ray through sum_k s_k A_k; the share itself at corners, and while a corner is not known."""
    corners: dict[int, Floats] = {}
    for one, own in zip(tried, before, strict=False):
        if own.max() == 1.0 and one.losses is not None:
            corners[int(own.argmax())] = one.losses
    if share.max() == 1.0 or len(corners) < len(share):
        return share
    r = 1 / np.maximum(sum(s * corners[k] for k, s in enumerate(share)), np.finfo(float).tiny)
    return np.asarray(r / r.sum())


def in_order(all_shares: Floats, *, corners_first: bool) -> list[int]:
    """The first, then always the one that is nearest to any before it.

    Args:
        all_shares: points of the simplex.
        corners_first: whether the corners come before what lies between them.
    """
    corners = [i for i in range(1, len(all_shares)) if corners_first and all_shares[i].max() == 1.0]
    order = [0, *corners]
    rest = [i for i in range(1, len(all_shares)) if i not in corners]
    if not rest:
        return order
    near = np.linalg.norm(all_shares[rest][:, None] - all_shares[order][None], axis=2).min(1)
    while rest:
        place = int(near.argmin())
        order.append(rest.pop(place))
        near = np.delete(near, place)
        if rest:
            near = np.minimum(near, np.linalg.norm(all_shares[rest] - all_shares[order[-1]], axis=1))
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
