"""Triton kernels of `wide`: windows of padded images times weights, and the weights' gradients.

An image lies channel last, and is padded before, so that the entry k = (row, column, channel) of a position's window
is at an offset of the position plus one of k: a product of matrices of which one is gathered. Sums are of float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 512  # enough to fill a chip


@triton.jit
def _rows(
    position, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, S: tl.constexpr
):
    """Where the windows of positions begin."""
    image, place = position // (OH * OW), position % (OH * OW)
    return image * (H * W * C) + (place // OW) * (S * W * C) + (place % OW) * (S * C)


@triton.jit
def _columns(k, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr):
    """Where entries of a window lie in it."""
    row, rest = k // (KW * C), k % (KW * C)
    return row * (W * C) + rest


@triton.jit
def _forward(
    x, w, out, positions, tiles, size, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, S: tl.constexpr, BP: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = KH * KW * C
    client, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    x += client * size
    w += client * (O * K)
    out += client * positions * O
    position = tile * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    rows = _rows(tl.minimum(position, positions - 1), H, W, OH, OW, C, S)
    weights = w + tl.minimum(o, O - 1)[:, None] * K
    acc = tl.zeros((BP, BO), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        if K % BK == 0:
            a = tl.load(x + rows[:, None] + _columns(k, W, C, KW)[None, :])
            b = tl.load(weights + k[None, :])
        else:
            a = tl.load(x + rows[:, None] + _columns(k, W, C, KW)[None, :], mask=(k < K)[None, :], other=0.0)
            b = tl.load(weights + k[None, :], mask=(k < K)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=EXACT)
    there = (position < positions)[:, None] & (o < O)[None, :]
    tl.store(out + position[:, None] * O + o[None, :], acc.to(out.dtype.element_ty), mask=there)


@triton.jit
def _weight_grad(
    x, x_low, d, d_low, out, positions, parts, size, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, S: tl.constexpr, TILES: tl.constexpr,
    BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """SPLIT: x and d are sums of two numbers of bfloat16 each; the product of the two low ones is left out."""
    K: tl.constexpr = KH * KW * C
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    x += client * size
    x_low += client * size
    d += client * positions * O
    d_low += client * positions * O
    o, k = tl.program_id(1) * BO + tl.arange(0, BO), tl.program_id(2) * BK + tl.arange(0, BK)
    columns, some, own = _columns(k, W, C, KW)[None, :], (k < K)[None, :], (o < O)[None, :]
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    for step in range(TILES):
        position = (part * TILES + step) * BP + tl.arange(0, BP)
        there = (position < positions)[:, None]
        rows = _rows(position, H, W, OH, OW, C, S)[:, None]
        window, place = rows + columns, position[:, None] * O + o[None, :]
        a = tl.load(x + window, mask=there & some, other=0.0)
        b = tl.load(d + place, mask=there & own, other=0.0)
        if SPLIT:
            a_low = tl.load(x_low + window, mask=there & some, other=0.0)
            b_low = tl.load(d_low + place, mask=there & own, other=0.0)
            acc = tl.dot(tl.trans(b), a_low, acc)
            acc = tl.dot(tl.trans(b_low), a, acc)
        acc = tl.dot(tl.trans(b), a, acc, input_precision=EXACT)
    at = (client * parts + part) * (O * K) + o[:, None] * K + k[None, :]
    tl.store(out + at, acc, mask=(o < O)[:, None] & (k < K)[None, :])


def windows_times(x: Tensor, w: Tensor, stride: int) -> Tensor:
    (g, n), shape = x.shape[:2], _shape(x, w.shape[1], w.shape[2:4], stride)
    out = x.new_empty(g, n, shape["OH"], shape["OW"], shape["O"])
    positions = n * shape["OH"] * shape["OW"]
    bp, bo, bk, warps, stages = _forward_tile(shape["O"], x.dtype)
    tiles = -(-positions // bp)
    _forward[(g * tiles, -(-shape["O"] // bo))](
        x, w, out, positions, tiles, x[0].numel(), **shape, BP=bp, BO=bo, BK=bk, EXACT=_exact(),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def windows_grad(x: Tensor, d: Tensor, kernel: list[int], stride: int) -> Tensor:
    (g, n), shape = x.shape[:2], _shape(x, d.shape[-1], kernel, stride)
    positions, entries = n * shape["OH"] * shape["OW"], shape["C"] * kernel[0] * kernel[1]
    (x, x_low), (d, d_low), exact = _split(x), _split(d), _exact()  # positions are no inner dimension, as TF32 wants
    bp, bo, bk, warps, stages = 32, _block(shape["O"], 128), 64 if entries % 128 else 128, 4, 3
    blocks = -(-shape["O"] // bo), -(-entries // bk)
    tiles = -(-positions // bp)
    wanted = max(1, PROGRAMS // (g * blocks[0] * blocks[1]))  # parts of a client's positions
    each = -(-tiles // wanted)
    parts = -(-tiles // each)
    sums = torch.empty(g, parts, shape["O"], entries, device=x.device)
    _weight_grad[(g * parts, *blocks)](
        x, x_low, d, d_low, sums, positions, parts, x[0].numel(), **shape, TILES=each, BP=bp, BO=bo, BK=bk, EXACT=exact,
        SPLIT=x_low is not x, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    total = sums.sum(1) if parts > 1 else sums  # in a fixed order, unlike atomic additions
    return total.view(g, shape["O"], *kernel, shape["C"])


def _forward_tile(out: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Positions, outputs and window entries of a block; warps and stages."""
    return (128, _block(out, 128), 32 if dtype == torch.float32 else 64, 4, 3)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """TF32 numbers as sums of two of bfloat16; others as they are."""
    if x.dtype != torch.float32 or _exact() != "tf32":
        return x, x
    high = x.bfloat16()
    return high, (x - high).bfloat16()


def _shape(x: Tensor, out: int, kernel: list[int] | torch.Size, stride: int) -> dict[str, int]:
    h, w, c = x.shape[2:]
    named = {"O": out, "C": c, "H": h, "W": w, "OH": (h - kernel[0]) // stride + 1, "OW": (w - kernel[1]) // stride + 1}
    return {**named, "KH": kernel[0], "KW": kernel[1], "S": stride}


def _block(size: int, most: int) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _exact() -> str:
    """Products in TF32 where that is allowed, else of float32's accuracy by three of them."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
