"""Sums of rows by the place that each belongs to, in the same order in every run.

torch's own (`index_add`, `scatter_add`, an embedding's gradient) add atomically on a GPU, in whatever order: the last
bits are others in every run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LONG = 64  # rows that one thread adds one after another, on average


def segment_sums(rows: Tensor, places: Tensor, many: int) -> Tensor:
    """Row i of (n, width) added to row places[i] of (many, width); places from `many` on are left out."""
    pieces = max(1, len(rows) // (LONG * many))  # of the rows, so that there is work for many threads
    if pieces > 1:
        piece = torch.arange(len(rows), device=places.device) % pieces  # rows beside each other may have one place
        places = torch.where(places < many, piece * many + places, pieces * many)
    ordered, order = torch.sort(places, stable=True)
    begins = torch.searchsorted(ordered, torch.arange(pieces * many + 1, device=places.device))
    # unsafe: without a look at the numbers, which the host would wait for
    sums = torch.segment_reduce(rows[order], "sum", offsets=begins, axis=0, unsafe=True, initial=0)
    return sums if pieces == 1 else sums.view(pieces, many, -1).sum(0)


def column_sums(H: Tensor, places: Tensor, many: int) -> Tensor:
    """Column j of H (rows, d) added to column places[j] of (rows, many); all places are below `many`."""
    if H.device.type == "cpu":  # whose own sums are in order
        return torch.index_add(H.new_zeros(len(H), many), 1, places, H)
    found: Tensor = in_order(H, places, many)
    return found


# an operator, as vmap has no rule for segments


@torch.library.custom_op("polyfed::column_sums", mutates_args=())
def in_order(H: Tensor, places: Tensor, many: int) -> Tensor:
    """`column_sums` of a GPU."""
    return segment_sums(H.T, places, many).T.contiguous()


@in_order.register_fake
def _(H: Tensor, places: Tensor, many: int) -> Tensor:
    return H.new_empty(len(H), many)


def _rule(info: Any, dims: Any, H: Tensor, places: Tensor, many: int) -> tuple[Tensor, int]:
    """Rows of all clients are rows of one, where the places are the same for all."""
    H = H.movedim(dims[0], 0) if dims[0] is not None else H.expand(info.batch_size, *H.shape)
    if dims[1] is None:
        return in_order(H.flatten(0, 1), places, many).view(info.batch_size, -1, many), 0
    one_by_one = zip(H, places.movedim(dims[1], 0), strict=True)
    return torch.stack([in_order(own, its, many) for own, its in one_by_one]), 0


in_order.register_vmap(_rule)
