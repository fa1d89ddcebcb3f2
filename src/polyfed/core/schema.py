"""What a reply holds: for each array its axes, its type, what it means, and the weight it is averaged by.

A work replies plain, unweighted arrays and its weights a_i. Where a sum is asked for, the client's runner multiplies
each array by its weight before it is sent, so that the server's sum over clients, divided by the sum of the weights, is
the weighted mean. A layer finds what it is about by role: a clip bounds the updates of a method it has never heard of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from polyfed.core.messages import DTYPES

Unpacked = Callable[[Mapping[str, Tensor], Sequence[int], Any], Tensor]
Role = Literal["update", "gradient", "statistics", "buffers", "losses", "weight"]
Schema = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # shape and type of every array


@dataclass(frozen=True)
class Field:
    """One array of a reply.

    Args:
        axes: its axes as letters or numbers, 'M d': d parameters, b buffers, M objectives, K measured values, C counts
            and S moments of metrics over a whole split, or an integer option of the request; 'd/2' is half as long,
            rounded up.
        dtype: its type by name, 'float64'; empty for the problem's own.
        role: what it means.
        by: the weight it is averaged by, the name of an array with the role 'weight'; empty for arrays that simply
            add up. A weight with one entry per objective multiplies along the array's first axis.
        in_sums: whether it travels where a sum is asked for; a weight whose sum nobody needs does not.
        power: of a weight: it is at most what the client may count, to this power; of products of gradients, of how
            many: their length grows with a gradient's to this power.
        whole: of a weight: whether it is a number of rows.
        exact: of a weight: whether it is all that the client counts, and no less.
        below: of whole numbers: all are from 0 to below this; 0 for any.
        upto: of the counts of metrics over a whole split: the array with each objective's number of rows, which bounds
            each count and, as the metric says (`SplitMetric.times`), their sum.
        least: no entry is below this.
        form: of matrices: 'gram' for products of a matrix with itself, symmetric and positive semi-definite;
            'orthonormal' for rows that are.
        squares: of sums: the array with the sums of the same numbers' squares, which bound them.
        alike: whether the guard compares it with other clients'; if not given, updates, gradients, buffers and losses
            are. Not where each client's model is its own.
        per: the array in whose units it counts, so that the guard compares lengths divided by it; beside the length
            itself, unless those units are what the server knows.
        lengths: of what is compressed: from the arrays of some clients, these clients and the request to the lengths,
            by objective, of what the server unpacks.
        slack: from the arrays of some clients, these clients and the request to by how much, as a part of what they
            are, they keep to an inequality that all honest replies do; clients x 1, and not below 0 but for rounding.
        packed: of an array that a layer sends in another form: what it is before and after, which the guard looks at.
    """

    axes: str = ""
    dtype: str = ""
    role: Role = "statistics"
    by: str = ""
    in_sums: bool = True
    power: float = 1
    whole: bool = False
    exact: bool = False
    below: int = 0
    upto: str = ""
    least: float = -math.inf
    form: Literal["", "gram", "orthonormal"] = ""
    squares: str = ""
    alike: bool | None = None
    per: str = ""
    lengths: Unpacked | None = None
    slack: Unpacked | None = None
    packed: Packed | None = None

    @classmethod
    def of(cls, field: Field | str) -> Field:
        """A field, or one given in short: 'M d', 'k:int64'."""
        if isinstance(field, Field):
            return field
        axes, _, dtype = field.partition(":")
        return cls(axes, dtype)

    @property
    def by_objective(self) -> bool:
        """Whether it has a row, or an entry, for each objective."""
        return self.axes.split()[:1] == ["M"]

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(_size(axis, dims) for axis in self.axes.split())

    def type_for(self, own: torch.dtype) -> torch.dtype:
        """Its type, where the problem's own is this one."""
        return DTYPES[self.dtype] if self.dtype else own


@dataclass(frozen=True)
class Packed:
    """How an array that travels in another form is put back.

    Args:
        field: what it means to the work and to the method.
        unpack: from the arrays of some clients, clients first, and its shape and type without them, to the array.
    """

    field: Field
    unpack: Callable[[Mapping[str, Tensor], tuple[int, ...], torch.dtype], Tensor]

    def __call__(self, arrays: Mapping[str, Tensor], dims: Mapping[str, int], dtype: torch.dtype) -> Tensor:
        return self.unpack(arrays, self.field.shape(dims), self.field.type_for(dtype))


def _size(axis: str, dims: Mapping[str, int]) -> int:
    name, _, parts = axis.partition("/")
    whole = dims[name] if name in dims else int(name)
    return -(-whole // int(parts)) if parts else whole


Fields = Mapping[str, Field]

update: Callable[..., Field] = partial(Field, role="update")  # a change of the model
gradient: Callable[..., Field] = partial(Field, role="gradient")  # gradients, whole or compressed
statistics: Callable[..., Field] = partial(Field, role="statistics")
buffers: Callable[..., Field] = partial(Field, role="buffers")
losses: Callable[..., Field] = partial(Field, role="losses")
weight: Callable[..., Field] = partial(Field, role="weight")


def schema_of(fields: Fields, dims: Mapping[str, int], dtype: torch.dtype, *, weighed: bool = False) -> Schema:
    """Shape and type of every array that travels; dims gives the letters' sizes."""
    sent = {name: field for name, field in fields.items() if field.in_sums or not weighed}
    return {name: (f.shape(dims), f.type_for(dtype)) for name, f in sent.items()}


def weigh(arrays: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Every array times the weight it is averaged by; of one client, or of a stack of them."""
    return {name: _times(arrays[f.by], a) if (f := fields[name]).by else a for name, a in arrays.items()}


def _times(a: Any, array: Tensor) -> Tensor:
    if not isinstance(a, Tensor):
        return array if a == 1 else a * array
    return a.reshape(*a.shape, *[1] * (array.dim() - a.dim())) * array
