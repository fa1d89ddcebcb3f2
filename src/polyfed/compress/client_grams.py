"""Each client's own Gram matrix: M x M numbers, without cross-client inner products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.schema import Field, gradient
from polyfed.core.settings import settings


@compressors("client-grams")
@settings
class ClientGrams(Compressor):
    """The mean of the clients' own Gram matrices: M x M numbers, blind to how clients differ."""

    additive = True

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        return {"G": gradient("M M", by="heard", power=2, form="gram")}

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        return {"G": H @ H.T}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        return arrays["G"]

    def gram(self, total: Tensor, heard: Tensor) -> Tensor:
        """The weighted mean of H_i^T H_i over clients, as if all had the same gradients: exact when they do."""
        each = torch.sqrt(torch.clamp(torch.outer(heard, heard), min=torch.finfo(heard.dtype).tiny))
        return (total / each).double()
