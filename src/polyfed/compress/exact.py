"""Nothing lost: the whole Jacobian, M vectors a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.schema import Field, gradient
from polyfed.core.settings import settings


@compressors("exact")
@settings
class Exact(Compressor):
    """The whole Jacobian: M times a model's upload, nothing lost."""

    additive = True
    unbiased = True
    restores = True

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        return {"H": gradient(f"M {d}", by="heard")}

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        return {"H": H}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        return arrays["H"]
