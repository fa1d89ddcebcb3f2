"""From stored bytes to what a model takes, batch by batch: data stays small until it is used."""

from __future__ import annotations

import torch
from torch import Tensor


def scaled(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels 0..255 as floats with each channel's mean taken off, in units of its standard deviation."""
    centre, width = (torch.tensor(v, device=x.device).view(-1, 1, 1) * 255 for v in (mean, std))
    return x.float().sub_(centre).div_(width)


def indicators(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Rows of numbers and then category codes, a code for each entry of sizes, with the codes as 0/1 indicators."""
    numbers, codes = x[:, : -len(sizes)], x[:, -len(sizes) :].long()
    first = torch.tensor((0, *sizes[:-1]), device=x.device).cumsum(0)
    wide = x.new_zeros(len(x), sum(sizes)).scatter_(1, codes + first, 1.0)
    return torch.cat([numbers, wide], 1)
