"""Compressors of a client's Jacobian H (M objectives x d parameters).

A client encodes H_i into named arrays; the server lifts a stack of them to features (clients, M, p) that add up over
clients and whose Gram matrix, after division by who was heard, is the one that weights are found from. Where lifting is
linear, so are the arrays: their sum is enough (`additive`), and secure aggregation can hide the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyfed.core import keys, tensorkeys
from polyfed.core.registry import Registry
from polyfed.core.schema import Field

Keys = tuple[Any, Any]  # the round's common key, the client's own


class Compressor(ABC):
    """One way to send a Jacobian, a dataclass of its settings.

    additive: whether the arrays of all clients may be added up before they are lifted. unbiased: whether the features'
    expectation is the Jacobian, or their Gram matrix that of the Jacobian. restores: whether the features are the
    Jacobian's own coordinates (p = d), which two-way correction needs.
    """

    additive: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    restores: ClassVar[bool] = False

    @abstractmethod
    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        """The schema of the arrays for M objectives and d parameters; settings that do not fit are refused here.

        Arrays that add up over clients are averaged by 'heard', the client's weight for each objective.
        """

    @abstractmethod
    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        """At the client: H (M, d) as the arrays of `reply`."""

    @abstractmethod
    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        """At the server: features (n, M, p) from n clients' arrays, stacked."""

    def gram(self, total: Tensor, heard: Tensor) -> Tensor:
        """G from the weighted features summed over clients (M, p), and the sum of a_i over those that hold each."""
        mean = total / torch.where(heard > 0, heard, 1.0).unsqueeze(1)
        return (mean @ mean.T).double()


compressors: Registry[Callable[..., Any]] = Registry("compressor", __name__)


def own_key(client_key: Any, draw: int = 0) -> Any:
    """A client's key for what it draws while compressing; the server can draw the same."""
    return (keys.key if isinstance(client_key, int) else tensorkeys.key)(client_key, "compress", *keys.other(draw))
