"""Triton kernels of `convolution`: weights (out, k) times patches (k, positions), which are gathered on the fly."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rounded(x, EXACT: tl.constexpr):
    """To the nearest TF32 number: the tensor cores would cut the last 13 bits off, always towards zero."""
    if EXACT == "tf32":
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _patches(
    x, k, position, K: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """The window entries k (rows) around positions (columns) of a client's images; ones in row K."""
    image, place = position // (OH * OW), position % (OH * OW)
    y, v = place // OW, place % OW
    channel, window = k // (KH * KW), k % (KH * KW)
    row, column = y[None, :] + (window // KW)[:, None] - PH, v[None, :] + (window % KW)[:, None] - PW
    offset = image[None, :] * (C * H * W) + channel[:, None] * (H * W) + row * W + column
    offset = tl.max_contiguous(offset, [1, 4])  # neighbouring lanes should read neighbouring positions
    inside = (k < K)[:, None] & (position < POSITIONS)[None, :]
    if PH > 0:
        inside = inside & (row >= 0) & (row < H)
    if PW > 0:
        inside = inside & (column >= 0) & (column < W)
    return tl.load(x + offset, mask=inside, other=0.0)


@triton.jit
def _forward(
    x, w, b, out, N: tl.constexpr, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    TILES: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = C * KH * KW
    POSITIONS: tl.constexpr = N * OH * OW
    client, tile = (tl.program_id(0) // TILES).to(tl.int64), tl.program_id(0) % TILES
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    position = tile * BP + tl.arange(0, BP)
    x += client * (N * C * H * W)
    acc = tl.zeros((BO, BP), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        weights = tl.load(
            w + client * (O * K) + o[:, None] * K + k[None, :], mask=(o < O)[:, None] & (k < K)[None, :], other=0.0
        )
        patches = _patches(x, k, position, K, C, H, W, OH, OW, KH, KW, PH, PW, POSITIONS)
        acc = tl.dot(_rounded(weights, EXACT), _rounded(patches, EXACT), acc, input_precision=EXACT)
    acc += tl.load(b + client * O + o, mask=o < O, other=0.0)[:, None]
    image, place = position // (OH * OW), position % (OH * OW)
    offset = client * (POSITIONS * O) + image[None, :] * (O * OH * OW) + o[:, None] * (OH * OW) + place[None, :]
    tl.store(out + offset, acc, mask=(o < O)[:, None] & (position < POSITIONS)[None, :])


@triton.jit
def _weight_grad(
    x, d, out, N: tl.constexpr, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    parts, TILES: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = C * KH * KW
    POSITIONS: tl.constexpr = N * OH * OW
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    o, k = tl.program_id(1) * BO + tl.arange(0, BO), tl.program_id(2) * BK + tl.arange(0, BK)
    x += client * (N * C * H * W)
    d += client * (POSITIONS * O)
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    for step in range(TILES):
        position = (part * TILES + step) * BP + tl.arange(0, BP)
        image, place = position // (OH * OW), position % (OH * OW)
        offset = image[None, :] * (O * OH * OW) + o[:, None] * (OH * OW) + place[None, :]
        there = tl.load(d + offset, mask=(o < O)[:, None] & (position < POSITIONS)[None, :], other=0.0)
        patches = _patches(x, k, position, K, C, H, W, OH, OW, KH, KW, PH, PW, POSITIONS)
        patches = tl.where((k == K)[:, None], 1.0, patches)  # the bias
        acc = tl.dot(_rounded(there, EXACT), tl.trans(_rounded(patches, EXACT)), acc, input_precision=EXACT)
    offset = (client * parts + part) * (O * (K + 1)) + o[:, None] * (K + 1) + k[None, :]
    tl.store(out + offset, acc, mask=(o < O)[:, None] & (k <= K)[None, :])


def convolve(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Tensor:
    shape = _shape(x, w.shape[1], list(w.shape[3:]), pad)
    out = x.new_empty(len(x), shape["N"], shape["O"], shape["OH"], shape["OW"])
    positions, k = shape["N"] * shape["OH"] * shape["OW"], w[0, 0].numel()
    bo, bk, bp = _block(shape["O"], 64), _block(k, 32), 128  # the best of 202 tried on an H200, see benchmarks/NOTES.md
    tiles = -(-positions // bp)
    _forward[(len(x) * tiles, -(-shape["O"] // bo))](
        x, w, b, out, **shape, TILES=tiles, BO=bo, BK=bk, BP=bp, EXACT=_exact(), num_warps=2, num_stages=1
    )
    return out


def weight_grad(x: Tensor, d: Tensor, kernel: list[int], pad: list[int]) -> tuple[Tensor, Tensor]:
    shape = _shape(x, d.shape[2], kernel, pad)
    g, k = len(x), shape["C"] * kernel[0] * kernel[1]
    bo, bk, bp = _block(shape["O"], 64), _block(k + 1, 32), 64
    blocks = -(-shape["O"] // bo), -(-(k + 1) // bk)
    tiles = -(-shape["N"] * shape["OH"] * shape["OW"] // bp)
    wanted = max(1, 8192 // (g * blocks[0] * blocks[1]))  # parts of a client's positions: enough to fill a chip
    each = triton.next_power_of_2(-(-tiles // wanted))  # a power: no new kernel for every number of clients
    parts = -(-tiles // each)
    sums = x.new_empty(g, parts, shape["O"], k + 1)
    _weight_grad[(g * parts, *blocks)](
        x, d, sums, parts=parts, **shape, TILES=each, BO=bo, BK=bk, BP=bp, EXACT=_exact(), num_warps=1, num_stages=1
    )
    both = sums.sum(1)  # in a fixed order, unlike atomic additions
    return both[:, :, :k].contiguous().view(g, shape["O"], shape["C"], *kernel), both[:, :, k].contiguous()


def _shape(x: Tensor, out: int, kernel: list[int], pad: list[int]) -> dict[str, int]:
    _, n, c, h, w = x.shape
    oh, ow = h + 2 * pad[0] - kernel[0] + 1, w + 2 * pad[1] - kernel[1] + 1
    named = {"N": n, "O": out, "C": c, "H": h, "W": w, "OH": oh, "OW": ow}
    return {**named, "KH": kernel[0], "KW": kernel[1], "PH": pad[0], "PW": pad[1]}


def _block(size: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(size)))


def _exact() -> str:
    """Products in TF32 where that is allowed, else of float32's accuracy by three of them."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
