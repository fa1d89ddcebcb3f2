"""Some entries of the Jacobian: the largest, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors, whole
from polyfed.core.keys import generator
from polyfed.core.messages import Option, Options


class TopK(Compressor):
    """The entries largest in size, with their places; values and places together cost `budget` models."""

    reply: ClassVar = {"values": "k", "places": "k:int32"}

    def options(self, M: int, d: int, width: int, budget: float) -> dict[str, Option]:
        return {"k": max(1, min(M * d, int(budget * d / 2)))}  # a place costs as much as a value

    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        places = H.reshape(-1).abs().topk(whole(options, "k")).indices
        return {"values": H.reshape(-1)[places], "places": places.to(torch.int32)}

    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        values, places = arrays["values"], arrays["places"].long()
        M = whole(options, "rows")
        return values.new_zeros(len(values), M * d).scatter_(1, places, values).view(len(values), M, d)


class RandomMask(Compressor):
    """Entries at random places that follow from the client's key, scaled so that the mean is right."""

    reply: ClassVar = {"values": "k"}
    unbiased = True

    def options(self, M: int, d: int, width: int, budget: float) -> dict[str, Option]:
        return {"k": max(1, min(M * d, int(budget * d)))}

    def encode(self, H: Tensor, options: Options, keys: Keys) -> dict[str, Tensor]:
        k = whole(options, "k")
        return {"values": H.reshape(-1)[_places(keys[1], H.numel(), k)] * (H.numel() / k)}

    def lift(self, arrays: Mapping[str, Tensor], options: Options, keys: Sequence[Keys], d: int) -> Tensor:
        values, M = arrays["values"], whole(options, "rows")
        places = torch.stack([_places(own, M * d, values.shape[1]) for _, own in keys]).to(values.device)
        return values.new_zeros(len(values), M * d).scatter_(1, places, values).view(len(values), M, d)


def _places(of: int, n: int, k: int) -> Tensor:
    return torch.from_numpy(generator(of, "mask").choice(n, k, replace=False, shuffle=False))


compressors("top-k")(TopK())
compressors("random-mask")(RandomMask())
