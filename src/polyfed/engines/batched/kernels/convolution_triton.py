"""Triton kernels of `convolution`: weights (out, k) times patches (k, positions), which are gathered on the fly."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 8192  # of one warp: enough to fill a chip


@triton.jit
def _rounded(x, EXACT: tl.constexpr):
    """To the nearest TF32 number: the tensor cores would cut the last 13 bits off, always towards zero."""
    if EXACT == "tf32":
        nearest = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < float("inf"), nearest, x)  # what is no number stays none
    return x


@triton.jit
def _patches(
    x, k, image, y, v, there, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """The window entries k (rows) around positions (columns) of a client's images; zero outside."""
    channel, up, along = k // (KH * KW), k % (KH * KW) // KW - PH, k % KW - PW
    # a sum of what depends on k and what depends on the position: one addition an entry
    offset = (channel * (H * W) + up * W + along)[:, None] + (image * (C * H * W) + y * W + v)[None, :]
    # lanes beside each other should read positions beside each other; how many entries one load takes still
    # depends on what Triton knows of their alignment, and so never reaches over the end of a row
    offset = tl.max_contiguous(offset, [1, BESIDE])
    inside = (k < C * KH * KW)[:, None] & there[None, :]
    if PH > 0:
        row = y[None, :] + up[:, None]
        inside = inside & (row >= 0) & (row < H)
    if PW > 0:
        column = v[None, :] + along[:, None]
        inside = inside & (column >= 0) & (column < W)
    return tl.load(x + offset, mask=inside, other=0.0)


@triton.jit
def _products(
    acc, x, w, start, o, image, y, v, there, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
    BESIDE: tl.constexpr,
):  # fmt: skip
    """acc and the products of weights and patches from window entry `start` on."""
    K: tl.constexpr = C * KH * KW
    k = start + tl.arange(0, BK)
    weights = tl.load(w + o[:, None] * K + k[None, :], mask=(o < O)[:, None] & (k < K)[None, :], other=0.0)
    patches = _patches(x, k, image, y, v, there, C, H, W, KH, KW, PH, PW, BESIDE)
    return tl.dot(_rounded(weights, EXACT), _rounded(patches, EXACT), acc, input_precision=EXACT)


@triton.jit
def _convolved(
    x, w, bias, o, image, y, v, there, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr, EXACT: tl.constexpr, UNROLLED: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """The convolution's output at some positions."""
    K: tl.constexpr = C * KH * KW
    acc = tl.zeros((BO, BP), dtype=tl.float32)
    if UNROLLED:  # every k is a constant then, and so is where its entries lie
        for start in tl.static_range(0, K, BK):
            acc = _products(acc, x, w, start, o, image, y, v, there, O, C, H, W, KH, KW, PH, PW, BK, EXACT, BESIDE)
    else:
        for start in range(0, K, BK):
            acc = _products(acc, x, w, start, o, image, y, v, there, O, C, H, W, KH, KW, PH, PW, BK, EXACT, BESIDE)
    return acc + bias


@triton.jit
def _forward(
    x, w, b, out, which, n, tiles, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BO: tl.constexpr,
    BK: tl.constexpr, BP: tl.constexpr, EXACT: tl.constexpr, UNROLLED: tl.constexpr, POOLED: tl.constexpr,
):  # fmt: skip
    """POOLED: the largest of each square of four positions, or 0 if that is more, and which one it was, or 4."""
    QH: tl.constexpr = OH // 2 if POOLED else OH
    QW: tl.constexpr = OW // 2 if POOLED else OW
    EACH: tl.constexpr = 2 if POOLED else 1
    BESIDE: tl.constexpr = 1 if POOLED else 4
    client, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    position = tile * BP + tl.arange(0, BP)
    there = position < n * (QH * QW)
    image, place = position // (QH * QW), position % (QH * QW)
    y, v = EACH * (place // QW), EACH * (place % QW)
    x += client * (n * (C * H * W))
    w += client * (O * C * KH * KW)
    bias = tl.load(b + client * O + o, mask=o < O, other=0.0)[:, None]
    found = _convolved(
        x, w, bias, o, image, y, v, there, O, C, H, W, KH, KW, PH, PW, BO, BK, BP, EXACT, UNROLLED, BESIDE
    )  # fmt: skip
    offset = client * (n * QH * QW * O) + image[None, :] * (O * QH * QW) + o[:, None] * (QH * QW) + place[None, :]
    inside = (o < O)[:, None] & there[None, :]
    if POOLED:
        corner = tl.zeros((BO, BP), dtype=tl.uint8)
        for other in tl.static_range(1, 4):
            beside = _convolved(
                x, w, bias, o, image, y + other // 2, v + other % 2, there, O, C, H, W, KH, KW, PH, PW, BO, BK, BP,
                EXACT, UNROLLED, BESIDE,
            )  # fmt: skip
            larger = (beside > found) | (beside != beside)  # the first of several; none where one is none
            found, corner = tl.where(larger, beside, found), tl.where(larger, other, corner).to(tl.uint8)
        corner = tl.where(found <= 0.0, 4, corner).to(tl.uint8)
        found = tl.where(found <= 0.0, 0.0, found)
        tl.store(which + offset, corner, mask=inside)
    tl.store(out + offset, found, mask=inside)


@triton.jit
def _weight_grad(
    x, d, out, n, parts, O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, TILES: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = C * KH * KW
    positions = n * (OH * OW)
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    o, k = tl.program_id(1) * BO + tl.arange(0, BO), tl.program_id(2) * BK + tl.arange(0, BK)
    x += client * (n * (C * H * W))
    d += client * (positions * O)
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    for step in range(TILES):
        position = (part * TILES + step) * BP + tl.arange(0, BP)
        image, place = position // (OH * OW), position % (OH * OW)
        y, v, inside = place // OW, place % OW, position < positions
        there = tl.load(
            d + image[None, :] * (O * OH * OW) + o[:, None] * (OH * OW) + place[None, :],
            mask=(o < O)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        patches = _patches(x, k, image, y, v, inside, C, H, W, KH, KW, PH, PW, 4)
        patches = tl.where((k == K)[:, None], 1.0, patches)  # a last row of ones: the bias
        acc = tl.dot(_rounded(there, EXACT), tl.trans(_rounded(patches, EXACT)), acc, input_precision=EXACT)
    offset = (client * parts + part) * (O * (K + 1)) + o[:, None] * (K + 1) + k[None, :]
    tl.store(out + offset, acc, mask=(o < O)[:, None] & (k <= K)[None, :])


# block sizes: the best of some 300 tried on an H200 (benchmarks/NOTES.md)


def convolve(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Tensor:
    (g, n), shape = x.shape[:2], _shape(x, w.shape[1], list(w.shape[3:]), pad)
    out = x.new_empty(g, n, shape["O"], shape["OH"], shape["OW"])
    _convolve(x, w, b, out, out, n * shape["OH"] * shape["OW"], shape, pooled=False)
    return out


def convolve_pooled(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> tuple[Tensor, Tensor]:
    (g, n), shape = x.shape[:2], _shape(x, w.shape[1], list(w.shape[3:]), pad)
    out = x.new_empty(g, n, shape["O"], shape["OH"] // 2, shape["OW"] // 2)
    which = torch.empty_like(out, dtype=torch.uint8)
    _convolve(x, w, b, out, which, n * (shape["OH"] // 2) * (shape["OW"] // 2), shape, pooled=True)
    return out, which


def _convolve(
    x: Tensor, w: Tensor, b: Tensor, out: Tensor, which: Tensor, positions: int, shape: dict[str, int], pooled: bool
) -> None:
    k = w[0, 0].numel()
    bo, bk = _block(shape["O"], 64), _block(k, 32)
    bp = 128 if not pooled else 64 if k <= 96 else 32  # squares of large windows would not fit into registers
    tiles = -(-positions // bp)
    _forward[(len(x) * tiles, -(-shape["O"] // bo))](
        x, w, b, out, which, x.shape[1], tiles, **shape, BO=bo, BK=bk, BP=bp, EXACT=_exact(), UNROLLED=k <= 256,
        POOLED=pooled, num_warps=4 if k > 96 else 2, num_stages=1,
    )  # fmt: skip


def weight_grad(x: Tensor, d: Tensor, kernel: list[int], pad: list[int]) -> tuple[Tensor, Tensor]:
    (g, n), shape = x.shape[:2], _shape(x, d.shape[2], kernel, pad)
    k = shape["C"] * kernel[0] * kernel[1]
    bo, bk, bp = _block(shape["O"], 64), _block(k + 1, 32), 64
    blocks = -(-shape["O"] // bo), -(-(k + 1) // bk)
    tiles = -(-n * shape["OH"] * shape["OW"] // bp)
    wanted = max(1, PROGRAMS // (g * blocks[0] * blocks[1]))  # parts of a client's positions
    each = 1 << (-(-tiles // wanted) - 1).bit_length()  # a power: no new kernel for every number of clients
    parts = -(-tiles // each)
    sums = x.new_empty(g, parts, shape["O"], k + 1)
    _weight_grad[(g * parts, *blocks)](
        x, d, sums, n, parts, **shape, TILES=each, BO=bo, BK=bk, BP=bp, EXACT=_exact(), num_warps=1, num_stages=1,
    )  # fmt: skip
    both = sums.sum(1)  # in a fixed order, unlike atomic additions
    return both[:, :, :k].contiguous().view(g, shape["O"], shape["C"], *kernel), both[:, :, k].contiguous()


def _shape(x: Tensor, out: int, kernel: list[int], pad: list[int]) -> dict[str, int]:
    c, h, w = x.shape[2:]
    oh, ow = h + 2 * pad[0] - kernel[0] + 1, w + 2 * pad[1] - kernel[1] + 1
    named = {"O": out, "C": c, "H": h, "W": w, "OH": oh, "OW": ow}
    return {**named, "KH": kernel[0], "KW": kernel[1], "PH": pad[0], "PW": pad[1]}


def _block(size: int, most: int) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _exact() -> str:
    """Products in TF32 where that is allowed, else of float32's accuracy by three of them."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
