"""What the server looks at in each array of a reply: a few numbers a client, found where the array is.

All numbers of a stack are one table, fetched at once: asking a GPU takes longer than finding them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.facts import Facts
from polyfed.core.schema import Field, Fields, Schema

if TYPE_CHECKING:
    from polyfed.core.fleet import Stack
    from polyfed.core.messages import Request

Kind = Literal["length", "weight", "loss", "sums", "buffers", "own", "gram", "least", "deviation", "slack", "place"]
Bounds = NDArray[np.float64]

ROUNDING = 1e-6  # by which a loss or a variance that is 0 may be below it
SKEW = 0.01  # of products of unit vectors: what rounding to TF32 and a truncated SVD leave


@dataclass
class Asked:
    """What some columns of an exchange need beside its replies.

    Args:
        request: what is answered.
        buffers: the server's own, which clients started from, on the device where they were needed last; None if
            unknown.
    """

    request: Request
    buffers: Tensor | None = None


class Columns(NamedTuple):
    """Some columns of the table.

    Args:
        name: the array.
        kind: what of it.
        width: how many.
        see: from a stack, and what was asked, to the numbers, clients x width.
        low, high: what they may be; infinite for the server's limit.
    """

    name: str
    kind: Kind
    width: int
    see: Callable[[Stack, Asked], Tensor]
    low: float | Bounds = 0.0
    high: float | Bounds = math.inf


def columns_of(schema: Schema, fields: Fields, facts: Facts, weighed: bool, strict: bool) -> Iterator[Columns]:
    """All columns of a reply's table.

    Args:
        schema: shapes and types.
        fields: what each array means.
        facts: what follows from the problem.
        weighed: whether replies come multiplied by their weights.
        strict: whether to look for more than finite numbers and weights.
    """
    for name, (shape, dtype) in schema.items():
        f = fields[name]
        if f.below:
            yield Columns(name, "place", 2, partial(_extremes, name=name), 0.0, f.below - 1.0)
        if not dtype.is_floating_point or 0 in shape:
            continue
        yield _main(name, f, shape, facts, strict, weighed)
        if strict:
            yield from _more(name, f, shape, fields, facts)


def _main(name: str, f: Field, shape: tuple[int, ...], facts: Facts, strict: bool, weighed: bool) -> Columns:
    """What tells whether an array is finite, and of ordinary size."""
    width = math.prod(map(int, shape))
    if f.role == "weight":
        return Columns(name, "weight", width, partial(_entries, name=name))
    if f.role == "losses" and f.axes == "K":
        return Columns(name, "sums", width, partial(_entries, name=name), -math.inf)
    if f.role == "losses" and f.axes in ("", "M"):
        known = facts.positive if f.axes else np.array([bool(facts.positive.all())])
        low = np.where(known & strict, -ROUNDING, -math.inf)
        return Columns(name, "loss", width, partial(_entries, name=name), low)
    if strict and f.form == "gram":
        return Columns(name, "gram", width, partial(_entries, name=name), -math.inf)
    if f.role == "buffers" and shape == tuple(facts.pieces.shape):
        see = _Distances(name, f.by if weighed else "", facts.pieces, len(facts.buffers))
        return Columns(name, "buffers", len(facts.buffers), see)
    rows = int(shape[0]) if f.by_objective else 1
    return Columns(name, "length", rows, partial(_norms, name=name, rows=rows))


def _more(name: str, f: Field, shape: tuple[int, ...], fields: Fields, facts: Facts) -> Iterator[Columns]:
    """What else an honest array keeps to."""
    if f.least > -math.inf:
        yield Columns(name, "least", 1, partial(_least, name=name, places=None), f.least)
    if f.role == "buffers" and shape == tuple(facts.pieces.shape) and len(facts.variances):
        yield Columns(name, "least", 1, partial(_least, name=name, places=facts.variances), -ROUNDING)
    if f.form == "orthonormal":
        yield Columns(name, "deviation", 1, partial(_deviation, name=name), 0.0, SKEW)
    if f.squares:
        n = next(other for other, g in fields.items() if g.role == "weight" and g.exact)
        yield Columns(name, "slack", 1, partial(_slack, name=name, squares=f.squares, n=n), -ROUNDING)
    if f.slack is not None:
        kept = f.slack
        yield Columns(name, "slack", 1, lambda s, a: kept(s.arrays, list(s.clients), a.request), -ROUNDING)
    if f.lengths is not None:
        unpacked = f.lengths
        yield Columns(name, "own", len(facts.positive), lambda s, a: unpacked(s.arrays, list(s.clients), a.request))


def _entries(stack: Stack, asked: Asked, name: str) -> Tensor:
    a = stack.arrays[name]
    return a if a.dim() == 2 else a.reshape(len(stack.clients), -1)


def _norms(stack: Stack, asked: Asked, name: str, rows: int) -> Tensor:
    """A length for each client, or for each client and objective."""
    a = stack[name]
    if a.dim() == 1:
        return a.abs().unsqueeze(1)
    apart = a.reshape(len(a), rows, -1)
    found: Tensor = torch.linalg.vector_norm(apart, dim=2, dtype=torch.float32 if a.dtype == torch.float16 else None)
    return found


def _extremes(stack: Stack, asked: Asked, name: str) -> Tensor:
    """As doubles, in which whole numbers stay what they are."""
    return torch.stack(torch.aminmax(_entries(stack, asked, name), dim=1), 1).double()


def _least(stack: Stack, asked: Asked, name: str, places: Tensor | None) -> Tensor:
    every = _entries(stack, asked, name)
    some = every if places is None else every[:, places.to(every.device)]
    return some.amin(1, keepdim=True)


def _deviation(stack: Stack, asked: Asked, name: str) -> Tensor:
    """How far the rows' products are from those of orthonormal ones."""
    V = stack[name]
    products = V @ V.mT - torch.eye(V.shape[1], dtype=V.dtype, device=V.device)
    return products.abs().amax((1, 2)).unsqueeze(1)


def _slack(stack: Stack, asked: Asked, name: str, squares: str, n: str) -> Tensor:
    """By how much |sum| stays below sqrt(n sum of squares), in units of that: Cauchy and Schwarz."""
    most = (stack[n].reshape(-1, 1) * stack[squares].clamp(min=0)).sqrt()
    return ((most - stack[name].abs()) / torch.where(most > 0, most, 1.0)).amin(1, keepdim=True)


class _Distances:
    """How far each buffer is from the server's, which the client multiplied by its weight where a sum was asked for."""

    def __init__(self, name: str, by: str, pieces: Tensor, count: int) -> None:
        self._name, self._by, self._pieces, self._count = name, by, pieces, count

    def __call__(self, stack: Stack, asked: Asked) -> Tensor:
        own, pieces = stack[self._name], self._pieces
        if own.device != pieces.device:  # as a rule once a run
            self._pieces = pieces = pieces.to(own.device)
        if asked.buffers is not None:
            asked.buffers = server = asked.buffers.to(own)  # once an exchange
            centre = server.unsqueeze(0)
            own = own - (stack[self._by].reshape(-1, 1) * centre if self._by else centre)
        found: Tensor = own.new_zeros(len(own), self._count).index_add_(1, pieces, own.square()).sqrt_()
        return found
