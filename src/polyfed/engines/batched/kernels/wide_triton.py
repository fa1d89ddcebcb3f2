"""Triton kernels of `wide`: windows of padded images times weights, and the weights' gradients.

An image lies channel last, and is padded before, so that the entry k = (row, column, channel) of a position's window
is at an offset of the position plus one of k: a product of matrices of which one is gathered. Sums are of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 512  # enough to fill a chip
LARGE = 2304  # entries of a window: 256 channels under 3 x 3


class Tile(NamedTuple):
    """What one program computes at once, and with what."""

    positions: int
    out: int
    entries: int  # of windows
    warps: int
    stages: int  # of loads under way


@triton.jit
def _rows(
    position, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, S: tl.constexpr
):
    """Where the windows of positions begin."""
    image, place = position // (OH * OW), position % (OH * OW)
    return image * (H * W * C) + (place // OW) * (S * W * C) + (place % OW) * (S * C)


@triton.jit
def _columns(tap, channel, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr):
    """Where entries of a window lie in it; a tap is one of its places."""
    return (tap // KW) * (W * C) + (tap % KW) * C + channel


@triton.jit
def _forward(
    x, w, out, positions, tiles, size, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, S: tl.constexpr, BP: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, MIRRORED: tl.constexpr,
):  # fmt: skip
    """MIRRORED: weights lie as (channels, kh, kw, out), and a window's last tap is their first."""
    K: tl.constexpr = KH * KW * C
    client, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    x += client * size
    w += client * (O * K)
    out += client * positions * O
    position = tile * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    rows = _rows(tl.minimum(position, positions - 1), H, W, OH, OW, C, S)
    acc = tl.zeros((BP, BO), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        tap = start // C if C % BK == 0 else k // C  # one for all entries, or one each
        channel = k - tap * C
        window = rows[:, None] + _columns(tap, channel, W, C, KW)[None, :]
        if MIRRORED:  # contiguous along outputs
            weights = o[:, None] + (channel * (KH * KW * O) + (KH * KW - 1 - tap) * O)[None, :]
        else:
            weights = o[:, None] * K + k[None, :]
        a = tl.load(x + window) if K % BK == 0 else tl.load(x + window, mask=(k < K)[None, :], other=0.0)
        if K % BK == 0 and O % BO == 0:
            b = tl.load(w + weights)
        else:
            b = tl.load(w + weights, mask=(o < O)[:, None] & (k < K)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=EXACT)
    there = (position < positions)[:, None] & (o < O)[None, :]
    tl.store(out + position[:, None] * O + o[None, :], acc.to(out.dtype.element_ty), mask=there)


@triton.jit
def _weight_grad(
    x, d, out, positions, parts, size, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, S: tl.constexpr, TILES: tl.constexpr,
    BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """SPLIT: factors are sums of two numbers of bfloat16 each; the product of the two low ones is left out."""
    K: tl.constexpr = KH * KW * C
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    x += client * size
    d += client * positions * O
    o, k = tl.program_id(1) * BO + tl.arange(0, BO), tl.program_id(2) * BK + tl.arange(0, BK)
    columns, some, own = _columns(k // C, k % C, W, C, KW)[None, :], (k < K)[None, :], (o < O)[:, None]
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    for step in range(TILES):
        position = (part * TILES + step) * BP + tl.arange(0, BP)
        there, rows = position < positions, _rows(position, H, W, OH, OW, C, S)
        a = tl.load(x + rows[:, None] + columns, mask=there[:, None] & some, other=0.0)
        b = tl.load(d + o[:, None] + position[None, :] * O, mask=own & there[None, :], other=0.0)
        if SPLIT:
            a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
            a_low, b_low = (a - a_high.to(tl.float32)).to(tl.bfloat16), (b - b_high.to(tl.float32)).to(tl.bfloat16)
            acc = tl.dot(b_high, a_low, acc)
            acc = tl.dot(b_low, a_high, acc)
            acc = tl.dot(b_high, a_high, acc)
        else:
            acc = tl.dot(b, a, acc, input_precision=EXACT)
    at = (client * parts + part) * (O * K) + o[:, None] * K + k[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(o < O)[:, None] & (k < K)[None, :])


@triton.jit
def _total(sums, out, size, parts, BLOCK: tl.constexpr):
    """The sum of a client's parts: in a fixed order, unlike atomic additions."""
    client, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums += client * parts * size
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(parts):
        acc += tl.load(sums + part * size + at, mask=at < size, other=0.0)
    tl.store(out + client * size + at, acc.to(out.dtype.element_ty), mask=at < size)


def windows_times(x: Tensor, w: Tensor, stride: int, mirrored: bool = False, tile: Tile | None = None) -> Tensor:
    (g, n), shape = x.shape[:2], _shape(x, w.shape[4 if mirrored else 1], w.shape[2:4], stride)
    out = x.new_empty(g, n, shape["OH"], shape["OW"], shape["O"])
    positions = n * shape["OH"] * shape["OW"]
    bp, bo, bk, warps, stages = tile or forward_tiles(shape["O"], x.dtype)[0]
    tiles = -(-positions // bp)
    _forward[(g * tiles, -(-shape["O"] // bo))](
        x, w, out, positions, tiles, x[0].numel(), **shape, BP=bp, BO=bo, BK=bk, EXACT=_exact(), MIRRORED=mirrored,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def windows_grad(x: Tensor, d: Tensor, kernel: list[int], stride: int, tile: Tile | None = None) -> Tensor:
    (g, n), shape = x.shape[:2], _shape(x, d.shape[-1], kernel, stride)
    positions, entries = n * shape["OH"] * shape["OW"], shape["C"] * kernel[0] * kernel[1]
    split = x.dtype == torch.float32 and _exact() == "tf32"  # TF32 wants the summed dimension last in memory
    bp, bo, bk, warps, stages = tile or grad_tiles(shape["O"], entries, split)[0]
    blocks = -(-shape["O"] // bo), -(-entries // bk)
    tiles = -(-positions // bp)
    wanted = max(1, PROGRAMS // (g * blocks[0] * blocks[1]))  # parts of a client's positions
    each = -(-tiles // wanted)
    parts = -(-tiles // each)
    total = x.new_empty(g, shape["O"], *kernel, shape["C"])
    sums = total if parts == 1 else x.new_empty(g, parts, shape["O"], entries, dtype=torch.float32)
    _weight_grad[(g * parts, *blocks)](
        x, d, sums, positions, parts, x[0].numel(), **shape, TILES=each, BP=bp, BO=bo, BK=bk, EXACT=_exact(),
        SPLIT=split, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if parts > 1:
        size = shape["O"] * entries
        _total[(g, -(-size // 1024))](sums, total, size, parts, BLOCK=1024)
    return total


def forward_tiles(out: int, dtype: torch.dtype) -> list[Tile]:
    """Those worth a try for a product, the default first."""
    entries = 32 if dtype == torch.float32 else 64
    sizes = (128, 128, 4, 3), (128, 128, 8, 3), (128, 128, 8, 4), (128, 256, 8, 3), (256, 128, 8, 3)
    return list(dict.fromkeys(Tile(bp, _block(out, bo), entries, *rest) for bp, bo, *rest in sizes))


def grad_tiles(out: int, entries: int, split: bool) -> list[Tile]:
    """Those worth a try for a weight gradient, the default first; split numbers of large windows want more warps."""
    first, second = (8, 4) if split and entries >= LARGE else (4, 8)
    sizes = (32, 128, first, 3), (32, 128, second, 3), (64, 128, 4, 3), (64, 128, 8, 3), (32, 256, 8, 3)
    return list(dict.fromkeys(Tile(bp, _block(out, 128), _share(entries, bk), *rest) for bp, bk, *rest in sizes))


def _shape(x: Tensor, out: int, kernel: list[int] | torch.Size, stride: int) -> dict[str, int]:
    h, w, c = x.shape[2:]
    named = {"O": out, "C": c, "H": h, "W": w, "OH": (h - kernel[0]) // stride + 1, "OW": (w - kernel[1]) // stride + 1}
    return {**named, "KH": kernel[0], "KW": kernel[1], "S": stride}


def _block(size: int, most: int) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _share(entries: int, most: int) -> int:
    """The largest block that entries are a multiple of, or the smallest one."""
    return next((b for b in (256, 128) if b <= most and entries % b == 0), 64)


def _exact() -> str:
    """Products in TF32 where that is allowed, else of float32's accuracy by three of them."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
