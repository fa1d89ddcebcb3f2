"""Triton kernels of `attention` for short sequences: all keys of a head are one block.

So a query's weights need no second look at the keys, and the gradient needs nothing but what the product was made of:
no sums of other kernels, nothing that is added atomically. A program has one head of one row; forward, some of its
queries, backward, all of them one block after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FEWEST = 16  # of anything in a product


class Tile(NamedTuple):
    """How a program is laid out: queries of a block, and warps."""

    queries: int
    warps: int


FORWARD, BACKWARD = Tile(64, 4), Tile(128, 8)  # of more than 64 words: the best of gpu.py --parts attention on an H200


@triton.jit
def _block(x, row, head, t, T, n: tl.constexpr, h: tl.constexpr, s: tl.constexpr, D: tl.constexpr):
    """Words t of a head: (words, D), zero beyond the last."""
    place = row * n + head * h + t[:, None].to(tl.int64) * s + tl.arange(0, D)[None, :]
    return tl.load(x + place, mask=(t < T)[:, None], other=0.0)


@triton.jit
def _weights(
    q, k, mask, i, j, T, S, scale, t: tl.constexpr, s: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr
):  # fmt: skip
    """What queries i make of all keys j: softmax(q k^T scale + mask); zero for who sees nobody."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (i < T)[:, None] & (j < S)[None, :]
    if MASK != "none":
        own = tl.load(mask + i[:, None].to(tl.int64) * t + j[None, :].to(tl.int64) * s, mask=seen, other=0)
        if MASK == "bool":
            seen = seen & (own != 0)
        else:
            scores += own.to(tl.float32)
    if CAUSAL:
        seen = seen & (j[None, :] <= i[:, None])
    scores = tl.where(seen, scores, float("-inf"))
    most = tl.max(scores, 1)
    raised = tl.exp(scores - tl.where(most == float("-inf"), 0.0, most)[:, None])
    total = tl.sum(raised, 1)
    return raised / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _forward(
    q, k, v, mask, out, H, T, S, scale, QN: tl.constexpr, QH: tl.constexpr, QT: tl.constexpr, KN: tl.constexpr,
    KH: tl.constexpr, KT: tl.constexpr, VN: tl.constexpr, VH: tl.constexpr, VT: tl.constexpr, MN: tl.constexpr,
    MH: tl.constexpr, MT: tl.constexpr, MS: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, D: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    i, j = tl.program_id(1) * BT + tl.arange(0, BT), tl.arange(0, BS)
    queries, keys = _block(q, row, head, i, T, QN, QH, QT, D), _block(k, row, head, j, S, KN, KH, KT, D)
    p = _weights(queries, keys, mask + row * MN + head * MH, i, j, T, S, scale, MT, MS, CAUSAL, MASK)
    values = _block(v, row, head, j, S, VN, VH, VT, D)
    found = tl.dot(p.to(values.dtype), values, input_precision="ieee")
    place = (row * T + i[:, None]) * (H * D) + head * D + tl.arange(0, D)[None, :]  # (row, word, head, D)
    tl.store(out + place, found.to(out.dtype.element_ty), mask=(i < T)[:, None])


@triton.jit
def _backward(
    q, k, v, mask, d, dq, dk, dv, H, T, S, scale, QN: tl.constexpr, QH: tl.constexpr, QT: tl.constexpr,
    KN: tl.constexpr, KH: tl.constexpr, KT: tl.constexpr, VN: tl.constexpr, VH: tl.constexpr, VT: tl.constexpr,
    MN: tl.constexpr, MH: tl.constexpr, MT: tl.constexpr, MS: tl.constexpr, DN: tl.constexpr, DH: tl.constexpr,
    DT: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    j, c = tl.arange(0, BS), tl.arange(0, D)[None, :]
    keys, values = _block(k, row, head, j, S, KN, KH, KT, D), _block(v, row, head, j, S, VN, VH, VT, D)
    sum_k, sum_v = tl.zeros((BS, D), dtype=tl.float32), tl.zeros((BS, D), dtype=tl.float32)
    for start in range(0, T, BT):
        i = start + tl.arange(0, BT)
        queries, above = _block(q, row, head, i, T, QN, QH, QT, D), _block(d, row, head, i, T, DN, DH, DT, D)
        p = _weights(queries, keys, mask + row * MN + head * MH, i, j, T, S, scale, MT, MS, CAUSAL, MASK)
        dp = tl.dot(above, tl.trans(values), input_precision="ieee")
        ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale
        ds, p = ds.to(keys.dtype), p.to(keys.dtype)
        found = tl.dot(ds, keys, input_precision="ieee")
        place = (row * T + i[:, None]) * (H * D) + head * D + c
        tl.store(dq + place, found.to(dq.dtype.element_ty), mask=(i < T)[:, None])
        sum_k = tl.dot(tl.trans(ds), queries, sum_k, input_precision="ieee")
        sum_v = tl.dot(tl.trans(p), above, sum_v, input_precision="ieee")
    place = (row * S + j[:, None]) * (H * D) + head * D + c
    tl.store(dk + place, sum_k.to(dk.dtype.element_ty), mask=(j < S)[:, None])
    tl.store(dv + place, sum_v.to(dv.dtype.element_ty), mask=(j < S)[:, None])


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    causal: bool,
    scale: float,
    tile: Tile = FORWARD,
) -> None:
    """All are (rows, heads, words, D); out is written, in memory word by word."""
    (n, h, t, _), s = q.shape, k.shape[2]
    how, (m, strides) = _how(q, s, causal, mask), _mask(mask, q, k)
    laid = _laid(tile, t)
    _forward[(n * h, -(-t // laid["BT"]))](q, k, v, m, out, h, t, s, scale, *_strides(q, k, v), *strides, **how, **laid)


def attend_grad(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    d: Tensor,
    found: tuple[Tensor, Tensor, Tensor],
    causal: bool,
    scale: float,
    tile: Tile = BACKWARD,
) -> None:
    """The gradients of q, k and v are written, in memory word by word; d is that of the output."""
    (n, h, t, _), s = q.shape, k.shape[2]
    how, (m, strides) = _how(q, s, causal, mask), _mask(mask, q, k)
    _backward[(n * h,)](
        q, k, v, m, d, *found, h, t, s, scale, *_strides(q, k, v), *strides, *_strides(d), **how, **_laid(tile, t)
    )


def _how(q: Tensor, s: int, causal: bool, mask: Tensor | None) -> dict[str, Any]:
    kind = "none" if mask is None else "bool" if mask.dtype == torch.bool else "float"
    return {"CAUSAL": causal, "MASK": kind, "D": q.shape[3], "BS": _size(s, 1 << 30)}


def _mask(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A mask as a tensor of all heads' scores, of which nothing is copied; something else where there is none."""
    if mask is None:
        return q, (0, 0, 0, 0)
    whole = mask.expand(*q.shape[:3], k.shape[2])
    return (whole.view(torch.int8) if mask.dtype == torch.bool else whole), whole.stride()


def _strides(*tensors: Tensor) -> list[int]:
    return [step for t in tensors for step in t.stride()[:3]]


def _size(words: int, most: int) -> int:
    return max(FEWEST, min(most, 1 << (words - 1).bit_length()))


def _laid(tile: Tile, words: int) -> dict[str, Any]:
    """What a launch is told; short heads want fewer warps."""
    warps = tile.warps if words > 64 else min(tile.warps, 4)
    return {"BT": _size(words, tile.queries), "num_warps": warps, "num_stages": 1}
