"""Each client's own Gram matrix: M x M numbers, and no word of how clients' gradients lie to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.messages import Options


class ClientGrams(Compressor):
    """The sum of the clients' own Gram matrices: M x M numbers, blind to how clients differ."""

    reply: ClassVar = {"G": "M M"}
    additive = True

    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        return {"G": H @ H.T}

    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        return arrays["G"]

    def gram(self, total: Tensor, heard: Tensor) -> Tensor:
        """The mean of a_i^2 H_i^T H_i over clients, as if all had the same gradients: exact when they do."""
        each = torch.sqrt(torch.clamp(torch.outer(heard, heard), min=torch.finfo(heard.dtype).tiny))
        return (total / each).double()


compressors("client-grams")(ClientGrams())
