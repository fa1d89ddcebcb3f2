"""From stored bytes to what a model takes, batch by batch: data stays small until it is used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def scaled(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels 0..255 as floats with each channel's mean taken off, in units of its standard deviation."""
    centre, width = (torch.tensor(v, device=x.device).view(-1, 1, 1) * 255 for v in (mean, std))
    return x.float().sub_(centre).div_(width)


def tokens(x: Tensor) -> Tensor:
    """Symbol numbers, as an embedding wants them."""
    return x.long()


def indicators(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A row of numbers and category codes, one code per entry of sizes, with each code as 0/1 indicators."""
    numbers, codes = x[:, : -len(sizes)], x[:, -len(sizes) :].long()
    wide = [F.one_hot(codes[:, j], size).to(x.dtype) for j, size in enumerate(sizes)]
    return torch.cat([numbers, *wide], 1)
