"""From stored bytes to what a model takes, batch by batch: data stays small until it is used."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once a device: a copy from the host inside a captured round would be an error."""
    return torch.tensor(values, dtype=dtype, device=device)


def scaled(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels 0..255 as floats with each channel's mean taken off, in units of its standard deviation."""
    centre, width = (_constant(v, torch.float32, x.device).view(-1, 1, 1) * 255 for v in (mean, std))
    return x.float().sub_(centre).div_(width)


def indicators(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Rows of numbers and then category codes, a code for each entry of sizes, with the codes as 0/1 indicators."""
    numbers, codes = x[:, : -len(sizes)], x[:, -len(sizes) :].long()
    first = _constant((0, *sizes[:-1]), torch.int64, x.device).cumsum(0)
    wide = torch.scatter(x.new_zeros(len(x), sum(sizes)), 1, codes + first, 1.0)
    return torch.cat([numbers, wide], 1)
