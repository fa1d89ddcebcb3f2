"""Count-sketch (Charikar, Chen, Farach-Colton 2002) of each objective's gradient: ours, and the default.

S(g)_b = sum of sign(j) g_j over the coordinates j that hash to bucket b, b = 1..k. One hash and sign for all clients
and objectives of a round, drawn from its key, so that nobody sends it. Linear: sketches add up. Inner products are
unbiased, Var <S x, S y> = (|x|^2 |y|^2 + <x, y>^2 - 2 sum_j x_j^2 y_j^2) / k, whatever d is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors, whole
from polyfed.errors import BadInput
from polyfed.keys import bits
from polyfed.messages import Option, Options

DEFAULT_WIDTH = 256


@lru_cache(maxsize=2)  # all clients of a round use the same
def hashes(of: int, d: int, k: int) -> tuple[Tensor, Tensor]:
    """The bucket and the sign of each of d coordinates: the high bits choose the bucket, the lowest the sign."""
    z = bits(of, d)
    bucket = (z >> np.uint64(1)) % np.uint64(k)
    return torch.from_numpy(bucket.astype(np.int64)), torch.from_numpy((z & np.uint64(1)).astype(np.float32) * 2 - 1)


def sketch(H: Tensor, k: int, of: int) -> Tensor:
    """Count-sketch of every row of H (M, d), as (M, k)."""
    bucket, sign = hashes(of, H.shape[1], k)
    return H.new_zeros(len(H), k).index_add_(1, bucket.to(H.device), H * sign.to(H))


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
