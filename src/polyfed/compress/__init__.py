"""Compressors of a client's Jacobian H (M objectives x d parameters).

A client encodes a_i H_i into named arrays; the server lifts a stack of them to features (clients, M, p) that add up
over clients and whose Gram matrix, after division by who was heard, is the one that weights are found from. Where
lifting is linear, so are the arrays: their sum is enough (`additive`), and secure aggregation can hide the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from polyfed.core.messages import Option, Options
from polyfed.core.registry import Registry

Keys = tuple[int, int]  # the round's common key, the client's own


class Compressor(ABC):
    """One way to send a Jacobian. `reply` is its schema, in the letters of `polyfed.core.work` and of `options`."""

    reply: ClassVar[Mapping[str, str]]
    additive: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def options(self, M: int, d: int, width: int, budget: float) -> dict[str, Option]:
        """What both sides must know to encode and lift: sizes that follow from M, d and what was asked for."""
        return {"p": d}

    @abstractmethod
    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        """At the client: H (M, d) as the arrays of `reply`."""

    @abstractmethod
    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        """At the server: features (n, M, p) from n clients' arrays, stacked."""

    def gram(self, total: Tensor, heard: Tensor) -> Tensor:
        """G from the features summed over clients (M, p), and the sum of a_i over those that hold each objective."""
        mean = total / torch.where(heard > 0, heard, 1.0).unsqueeze(1)
        return (mean @ mean.T).double()


compressors: Registry[Compressor] = Registry("compressor", __name__)


def whole(options: Options, name: str) -> int:
    """An option that is a whole number."""
    value = options[name]
    assert isinstance(value, int)
    return value
