"""Nothing lost: the whole Jacobian, M vectors a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.messages import Options


class Exact(Compressor):
    """The whole Jacobian: M times a model's upload, nothing lost."""

    reply: ClassVar = {"H": "M p"}
    additive = True
    unbiased = True

    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        return {"H": H}

    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        return arrays["H"]


compressors("exact")(Exact())
