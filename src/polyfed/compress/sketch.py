"""Count-sketch (Charikar, Chen, Farach-Colton 2002) of each objective's gradient: ours, and the default.

S(g)_b = sum of sign(j) g_j over the coordinates j that hash to bucket b, b = 1..k. One hash and sign for all clients
and objectives of a round, drawn from its key, so that nobody sends it. Linear: sketches add up. Inner products are
unbiased, Var <S x, S y> = (|x|^2 |y|^2 + <x, y>^2 - 2 sum_j x_j^2 y_j^2) / k, whatever d is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field as Setting
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.errors import BadInput
from polyfed.core.schema import Field, gradient
from polyfed.core.segments import column_sums
from polyfed.core.settings import settings
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
    return column_sums(H * sign, bucket, k)


@compressors("sketch")
@settings
class Sketch(Compressor):
    """Count-sketch: `width` numbers an objective (256 where the model has them); sketches add up.

    Args:
        width: of an objective's sketch, at most the parameters; the smaller of these and 256 if not given. As many as
            the parameters are sent as they are, exact.
    """

    width: Annotated[int, Setting(ge=1)] | None = None

    additive = True
    unbiased = True

    def _buckets(self, d: int) -> int:
        return min(DEFAULT_WIDTH, d) if self.width is None else self.width

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        if self._buckets(d) > d:
            raise BadInput(f"algorithm.width should be at most the {d} parameters it sketches. Found {self.width}.")
        return {"S": gradient(f"M {self._buckets(d)}", by="heard")}

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        k, d = self._buckets(H.shape[1]), H.shape[1]
        return {"S": H if k == d else sketch(H, k, keys[0])}  # as many numbers as there are: sent as they are

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        return arrays["S"]
