"""Uploads of few bits: updates and gradients as whole numbers, rounded at random so that their mean is right.

A row v of an array (an objective's, where it has one for each; else all of it) is sent as a scale and whole numbers,

    s = max |v| / L,    q = floor(v / s + u),    u uniform in [0, 1),

with L = 127 at 8 bits and 7 at 4 bits, two of which share a byte. E q = v / s, so that the server's s q has the mean v
(stochastic rounding; Alistarh et al. 2017, QSGD, has the 2-norm in place of the maximum). u follows from the client's
key: the same on every engine. With 16 bits numbers are bfloat16, rounded to the nearest; there is no scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from polyfed.core import keys, tensorkeys
from polyfed.core.algorithm import Algorithm
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Around, Ids, PartFleet, Stack
from polyfed.core.layer import Layer, Outgoing, Stage, layers
from polyfed.core.messages import DTYPES, Request
from polyfed.core.part import Parts
from polyfed.core.schema import Field, Fields, Packed, statistics
from polyfed.core.settings import settings
from polyfed.core.work import works

LEVELS = {8: 127, 4: 7}  # L: whole numbers go from -L to L, and travel as 1 to 2 L + 1


@layers("quantise")
@settings
class Quantise(Layer):
    """Updates and gradients are uploaded in few bits, rounded at random so that their mean is right.

    Losses, weights and buffers travel as they are, and so do arrays whose form the server checks (Gram matrices,
    orthonormal rows) or that have one number a row.

    Args:
        bits: of a number that travels, 8 or 4, two in a byte; 16 is bfloat16, rounded to the nearest.
    """

    stage: ClassVar[Stage] = "quantise"

    bits: Literal[4, 8, 16] = 8

    def check(self, parts: Parts, clients: int) -> None:
        for part in parts.values():
            if part.algorithm is not None and type(part.algorithm).personal is not Algorithm.personal:
                raise BadInput(
                    f"The layer 'quantise' rounds updates, and clients of {part.algorithm.title!r} remember theirs as "
                    f"they were before: the server's sums would not be the clients' any more. Leave the layer out."
                )

    def transported(self, fields: Fields) -> Fields:
        return {key: made for name, f in fields.items() for key, made in self._fields(name, f).items()}

    def _fields(self, name: str, f: Field) -> dict[str, Field]:
        """What travels in place of an array."""
        if not _is_packed(f):
            return {name: f}
        packed = Packed(f, partial(_unpacked, name, self.bits))
        if self.bits == 16:
            return {name: replace(f, dtype="bfloat16", packed=packed)}
        axes = f.axes if self.bits == 8 else f"{f.axes}/2"
        scale = statistics("M" if f.by_objective else "", f.dtype, in_sums=f.in_sums, least=0.0)
        return {name: replace(f, axes=axes, dtype="uint8", packed=packed), _scale(name): scale}

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        return {key: made for name, a in out.arrays.items() for key, made in self._arrays(name, a, out).items()}

    def _arrays(self, name: str, a: Any, out: Outgoing) -> Mapping[str, Any]:
        f = out.fields[name]
        if not _is_packed(f):
            return {name: a}
        if self.bits == 16:
            return {name: a.to(torch.bfloat16)}
        make = keys.key if isinstance(out.key, int) else tensorkeys.key
        rows = a.reshape(a.shape[0] if f.by_objective else 1, -1)
        u = tensorkeys.uniform(make(out.key, name), rows.numel(), a.device).reshape(rows.shape)
        codes, scale = rounded(rows, u, LEVELS[self.bits])
        codes = codes.reshape(a.shape)
        return {name: codes if self.bits == 8 else _halved(codes), _scale(name): scale if f.by_objective else scale[0]}

    def fleet(self, inner: PartFleet) -> PartFleet:
        return Unpacking(inner, self)


class Unpacking(Around):
    """The server's half: replies as the method knows them."""

    def __init__(self, inner: PartFleet, layer: Quantise) -> None:
        super().__init__(inner)
        self._layer = layer

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        fields = self.clock.layers.transported(works[request.work], request.options, upto=self._layer)
        packed = {name: f.packed for name, f in fields.items() if f.packed is not None}
        scales, dims, dtype = {*map(_scale, packed)}, self.population.sizes(request), self.population.dtype
        for stack in self.inner.ask(clients, request):
            wide = {name: packed[name](stack.arrays, dims, dtype) for name in stack.arrays if name in packed}
            kept = {name: wide.get(name, a) for name, a in stack.arrays.items() if name not in scales}
            yield replace(stack, arrays=kept)


def rounded(rows: Tensor, u: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Every row as whole numbers from -most to most, counted from 1 on, and its scale."""
    scale = rows.abs().amax(1) / most
    unit = torch.where(scale > 0, scale, 1.0).unsqueeze(1)
    q = torch.floor(rows / unit + u).clamp(-most, most)  # 127 + u may be rounded up to 128
    return (q + (most + 1)).to(torch.uint8), scale


def _unpacked(name: str, bits: int, arrays: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    codes = arrays[name]
    if bits == 16:
        return codes.to(dtype)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)[..., : shape[-1]]
    scale = arrays[_scale(name)]
    return (codes.to(dtype) - (LEVELS[bits] + 1)) * scale.reshape(*scale.shape, *[1] * (codes.dim() - scale.dim()))


def _halved(codes: Tensor) -> Tensor:
    """Two numbers below 16 in a byte, the first one in its lower half."""
    even = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return even[..., 0::2] + 16 * even[..., 1::2]


def _is_packed(f: Field) -> bool:
    """Whether an array travels in another form: numbers of an update or a gradient, several a row."""
    wide = not f.dtype or DTYPES[f.dtype].is_floating_point
    several = len(f.axes.split()) > f.by_objective
    return f.role in ("update", "gradient") and wide and several and not f.form and f.packed is None


def _scale(name: str) -> str:
    return f"{name}.scale"
