"""Triton kernels of `recurrent`: a step of an LSTM layer, forward and backward, product and gates in one.

A program has one client, some rows, and some of the layer's units: of each of these units all four gates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfed.engines.batched.kernels.convolution_triton import _rounded

UNITS, INNER = 32, 64  # of a program, and of one step of its products


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _gate(acc, h, w, k, unit, GATE: tl.constexpr, H: tl.constexpr, EXACT: tl.constexpr):
    """acc and the products of states (rows, k) with the weights of one gate."""
    weights = tl.load(
        w + (GATE * H + unit)[None, :] * H + k[:, None], mask=(k < H)[:, None] & (unit < H)[None, :], other=0.0
    )
    return tl.dot(h, _rounded(weights, EXACT), acc, input_precision=EXACT)


@triton.jit
def _forward(
    gates, w, h, c, out, cells, acts, rows, apart, past, H: tl.constexpr, BR: tl.constexpr, BU: tl.constexpr,
    BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    row = tl.program_id(2) * BR + tl.arange(0, BR)
    unit = tl.program_id(1) * BU + tl.arange(0, BU)
    w += client * (4 * H * H)
    small, large = (client * apart + row)[:, None] * H, (client * apart + row)[:, None] * (4 * H)
    old = (client * past + row)[:, None] * H
    there = (row < rows)[:, None] & (unit < H)[None, :]
    a = tl.load(gates + large + unit[None, :], mask=there, other=0.0)
    f = tl.load(gates + large + (H + unit)[None, :], mask=there, other=0.0)
    g = tl.load(gates + large + (2 * H + unit)[None, :], mask=there, other=0.0)
    o = tl.load(gates + large + (3 * H + unit)[None, :], mask=there, other=0.0)
    for start in range(0, H, BK):
        k = start + tl.arange(0, BK)
        states = tl.load(h + old + k[None, :], mask=(row < rows)[:, None] & (k < H)[None, :], other=0.0)
        states = _rounded(states, EXACT)
        a = _gate(a, states, w, k, unit, 0, H, EXACT)
        f = _gate(f, states, w, k, unit, 1, H, EXACT)
        g = _gate(g, states, w, k, unit, 2, H, EXACT)
        o = _gate(o, states, w, k, unit, 3, H, EXACT)
    a, f, g, o = _sigmoid(a), _sigmoid(f), _tanh(g), _sigmoid(o)
    after = f * tl.load(c + old + unit[None, :], mask=there, other=0.0) + a * g
    tl.store(out + small + unit[None, :], o * _tanh(after), mask=there)
    tl.store(cells + small + unit[None, :], after, mask=there)
    tl.store(acts + large + unit[None, :], a, mask=there)
    tl.store(acts + large + (H + unit)[None, :], f, mask=there)
    tl.store(acts + large + (2 * H + unit)[None, :], g, mask=there)
    tl.store(acts + large + (3 * H + unit)[None, :], o, mask=there)


@triton.jit
def _backward(
    dout, dcell, later, dc_later, w, acts, c, before, dgates, dc, rows, apart, ahead, past, H: tl.constexpr,
    BR: tl.constexpr, BU: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    row = tl.program_id(2) * BR + tl.arange(0, BR)
    unit = tl.program_id(1) * BU + tl.arange(0, BU)
    w += client * (4 * H * H)
    small, large = (client * apart + row)[:, None] * H, (client * apart + row)[:, None] * (4 * H)
    own = (client * rows + row)[:, None] * H
    there = (row < rows)[:, None] & (unit < H)[None, :]
    dh = tl.load(dout + small + unit[None, :], mask=there, other=0.0)
    for start in range(0, 4 * H, BK):  # the gates' gradients of the step after this one, through its product
        k = start + tl.arange(0, BK)
        known = k < 4 * H
        offset = (client * ahead + row)[:, None] * (4 * H) + k[None, :]
        grads = tl.load(later + offset, mask=(row < rows)[:, None] & known[None, :], other=0.0)
        weights = tl.load(w + k[:, None] * H + unit[None, :], mask=known[:, None] & (unit < H)[None, :], other=0.0)
        dh = tl.dot(_rounded(grads, EXACT), _rounded(weights, EXACT), dh, input_precision=EXACT)
    a = tl.load(acts + large + unit[None, :], mask=there, other=0.0)
    f = tl.load(acts + large + (H + unit)[None, :], mask=there, other=0.0)
    g = tl.load(acts + large + (2 * H + unit)[None, :], mask=there, other=0.0)
    o = tl.load(acts + large + (3 * H + unit)[None, :], mask=there, other=0.0)
    bent = _tanh(tl.load(c + small + unit[None, :], mask=there, other=0.0))
    earlier = tl.load(before + (client * past + row)[:, None] * H + unit[None, :], mask=there, other=0.0)
    cell = tl.load(dcell + small + unit[None, :], mask=there, other=0.0)
    cell += tl.load(dc_later + own + unit[None, :], mask=there, other=0.0) + dh * o * (1 - bent * bent)
    tl.store(dgates + large + unit[None, :], cell * g * a * (1 - a), mask=there)
    tl.store(dgates + large + (H + unit)[None, :], cell * earlier * f * (1 - f), mask=there)
    tl.store(dgates + large + (2 * H + unit)[None, :], cell * a * (1 - g * g), mask=there)
    tl.store(dgates + large + (3 * H + unit)[None, :], dh * bent * o * (1 - o), mask=there)
    tl.store(dc + own + unit[None, :], cell * f, mask=there)


def _sizes(states: Tensor) -> tuple[tuple[int, int, int], dict[str, object]]:
    """The grid of programs, and what they are compiled for."""
    clients, rows, size = states.shape
    tile = 16 if rows <= 16 else 32
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    more = {"H": size, "BR": tile, "BU": UNITS, "BK": INNER, "EXACT": exact}
    return (clients, triton.cdiv(size, UNITS), triton.cdiv(rows, tile)), more


def forward(gates: Tensor, w: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, cells and gates of all steps; gates (clients, steps, rows, 4 sizes), and so what comes back."""
    grid, more = _sizes(h)
    (clients, steps, rows, _), size = gates.shape, h.shape[2]
    out = gates.new_empty(clients, steps, rows, size)
    cells, acts = torch.empty_like(out), torch.empty_like(gates)
    for t in range(steps):
        before = (out[:, t - 1], cells[:, t - 1]) if t else (h, c)
        made = out[:, t], cells[:, t], acts[:, t]
        _forward[grid](gates[:, t], w, *before, *made, rows, steps * rows, steps * rows if t else rows, **more)
    return out, cells, acts


def backward(dout: Tensor, dcells: Tensor, cells: Tensor, acts: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gates of all steps, and of the cells before the first."""
    grid, more = _sizes(c)
    _, steps, rows, _ = acts.shape
    dgates, dc, other = torch.empty_like(acts), torch.zeros_like(c), torch.empty_like(c)
    later, ahead, whole = torch.zeros_like(acts[:, 0]), rows, steps * rows
    for t in reversed(range(steps)):
        before, past = (cells[:, t - 1], whole) if t else (c, rows)
        given = dout[:, t], dcells[:, t], later, dc, w, acts[:, t], cells[:, t], before
        _backward[grid](*given, dgates[:, t], other, rows, whole, ahead, past, **more)
        later, ahead, dc, other = dgates[:, t], whole, other, dc
    return dgates, dc
