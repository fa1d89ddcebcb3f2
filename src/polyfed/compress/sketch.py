"""Count-sketch (Charikar, Chen, Farach-Colton 2002) of each objective's gradient: ours, and the default.

S(g)_b = sum of sign(j) g_j over the coordinates j that hash to bucket b, b = 1..k. One hash and sign for all clients
and objectives of a round, drawn from its key, so that nobody sends it. Linear: sketches add up. Inner products are
unbiased, Var <S x, S y> = (|x|^2 |y|^2 + <x, y>^2 - 2 sum_j x_j^2 y_j^2) / k, whatever d is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors, whole
from polyfed.core.errors import BadInput
from polyfed.core.messages import Option, Options
from polyfed.core.tensorkeys import bits, shift

DEFAULT_WIDTH = 256


def hashes(of: int | Tensor, d: int, k: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """The bucket and the sign of each of d coordinates: the high bits choose the bucket, the lowest the sign."""
    z = bits(of, d, device)
    return shift(z, 1) % k, (z & 1) * 2 - 1


_of_a_round = lru_cache(maxsize=2)(hashes)  # all clients of a round use the same


def sketch(H: Tensor, k: int, of: int | Tensor) -> Tensor:
    """Count-sketch of every row of H (M, d), as (M, k)."""
    find = _of_a_round if isinstance(of, int) else hashes
    bucket, sign = find(of, H.shape[1], k, H.device)
    return torch.index_add(H.new_zeros(len(H), k), 1, bucket, H * sign)


class Sketch(Compressor):
    """Count-sketch: `width` numbers an objective, whatever the model's size; sketches add up."""

    reply: ClassVar = {"S": "M k"}
    additive = True
    unbiased = True

    def options(self, M: int, d: int, width: int, budget: float) -> dict[str, Option]:
        if width > d:
            raise BadInput(f"algorithm.width should be at most the {d} parameters it sketches. Found {width}.")
        return {"k": width}

    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        return {"S": sketch(H, whole(options, "k"), keys[0])}

    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        return arrays["S"]


compressors("sketch")(Sketch())
