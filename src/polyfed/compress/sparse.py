"""Some entries of the Jacobian: the largest, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors, own_key
from polyfed.core.keys import client_key
from polyfed.core.messages import Request
from polyfed.core.schema import Field, gradient, statistics
from polyfed.core.settings import Positive, settings
from polyfed.core.tensorkeys import bits


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
        values = gradient(f"{k}", lengths=partial(self.lengths, M, d))
        return {"values": values, "places": statistics(f"{k}", "int32", below=M * d)}

    def lengths(self, M: int, d: int, arrays: Mapping[str, Tensor], clients: Sequence[int], request: Request) -> Tensor:
        """The lengths (n, M) of the objectives' rows."""
        return _by_row(arrays["values"], arrays["places"].long().clamp(0, M * d - 1), M, d)

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        places = H.reshape(-1).abs().topk(self._entries(*H.shape)).indices
        return {"values": H.reshape(-1)[places], "places": places.to(torch.int32)}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        values, places = arrays["values"], arrays["places"].long()
        return values.new_zeros(len(values), M * d).scatter(1, places, values).view(len(values), M, d)


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
        return {"values": gradient(f"{self._entries(M, d)}", lengths=partial(self.lengths, M, d))}

    def lengths(self, M: int, d: int, arrays: Mapping[str, Tensor], clients: Sequence[int], request: Request) -> Tensor:
        """The lengths (n, M) of the objectives' rows, at the places that follow from the clients' keys."""
        draw: Any = request.options.get("draw", 0)
        own = [own_key(client_key(request.seed, request.round, client), draw) for client in clients]
        return _by_row(arrays["values"], self._drawn(own, arrays["values"], M * d), M, d)

    def _drawn(self, own: Sequence[Any], values: Tensor, n: int) -> Tensor:
        return torch.stack([_places(key, n, values.shape[1]) for key in own]).to(values.device)

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        k = self._entries(*H.shape)
        return {"values": H.reshape(-1)[_places(keys[1], H.numel(), k)] * (H.numel() / k)}

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        values = arrays["values"]
        places = self._drawn([own for _, own in keys], values, M * d)
        return values.new_zeros(len(values), M * d).scatter(1, places, values).view(len(values), M, d)


def _by_row(values: Tensor, places: Tensor, M: int, d: int) -> Tensor:
    """The length of what lies in each of M rows of d entries."""
    return values.new_zeros(len(values), M).scatter_add_(1, places // d, values.square()).sqrt_()


def _places(of: int | Tensor, n: int, k: int) -> Tensor:
    """k of n places: those with the least numbers of the key's stream."""
    return _known(of, n, k) if isinstance(of, int) else _least(of, n, k)


def _least(of: int | Tensor, n: int, k: int) -> Tensor:
    return bits(of, n).topk(k, largest=False, sorted=False).indices.sort().values


_known = lru_cache(maxsize=1)(_least)  # in a simulation the server looks at what the client has just drawn
