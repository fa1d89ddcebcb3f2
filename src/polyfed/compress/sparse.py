"""Some entries of the Jacobian: the largest, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core.keys import generator
from polyfed.core.schema import Field, gradient, statistics
from polyfed.core.settings import Positive, settings


@compressors("top-k")
@settings
class TopK(Compressor):
    """The entries largest in size, with their places; values and places together cost `budget` models.

    Args:
        budget: a client's upload in models of d numbers, half of them values; 2 M is all entries.
    """

    budget: Positive = 1.0

    restores = True

    def _entries(self, M: int, d: int) -> int:
        return max(1, int(min(M * d, self.budget * d / 2)))  # a place costs as much as a value

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        k = self._entries(M, d)
        return {"values": gradient(f"{k}"), "places": statistics(f"{k}", "int32", below=M * d)}

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        places = H.reshape(-1).abs().topk(self._entries(*H.shape)).indices
        return {"values": H.reshape(-1)[places], "places": places.to(torch.int32)}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        values, places = arrays["values"], arrays["places"].long()
        return values.new_zeros(len(values), M * d).scatter_(1, places, values).view(len(values), M, d)


@compressors("random-mask")
@settings
class RandomMask(Compressor):
    """Entries at random places that follow from the client's key, scaled so that the mean is right.

    Args:
        budget: a client's upload in models of d numbers, all of them values; M is all entries.
    """

    budget: Positive = 1.0

    unbiased = True
    restores = True

    def _entries(self, M: int, d: int) -> int:
        return max(1, int(min(M * d, self.budget * d)))

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        return {"values": gradient(f"{self._entries(M, d)}")}

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        k = self._entries(*H.shape)
        return {"values": H.reshape(-1)[_places(keys[1], H.numel(), k)] * (H.numel() / k)}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        values = arrays["values"]
        places = torch.stack([_places(own, M * d, values.shape[1]) for _, own in keys]).to(values.device)
        return values.new_zeros(len(values), M * d).scatter_(1, places, values).view(len(values), M, d)


def _places(of: Any, n: int, k: int) -> Tensor:
    return torch.from_numpy(generator(of, "mask").choice(n, k, replace=False, shuffle=False))
