"""Changing a training batch at random, on its device, keyed like everything else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.keys import GOLDEN, MIX_A, MIX_B


@dataclass(frozen=True)
class Rotation:
    """Turns each image of a batch (n, channels, h, w) by its own angle, uniform in [-degrees, degrees].

    Bilinear, zero where nothing comes in from outside (FedCMOO: 25 degrees). `of` is the key of the client and step, a
    Python integer or an int64 tensor, so that many clients' batches can be mapped over.
    """

    degrees: float

    def __call__(self, x: Tensor, of: int | Tensor) -> Tensor:
        turn = (2 * uniform(of, len(x), x.device) - 1) * (self.degrees * torch.pi / 180)
        return F.grid_sample(x, _turned(turn.to(x.dtype), *x.shape[-2:]), align_corners=False)


def _turned(turn: Tensor, h: int, w: int) -> Tensor:
    """Where each pixel of n turned images comes from (n, h, w, 2), in coordinates that are -1 and 1 at the edges."""
    y, x = (((2 * torch.arange(k, device=turn.device) + 1) / k - 1).to(turn.dtype) for k in (h, w))
    y, x, cos, sin = y[:, None], x[None, :], turn.cos()[:, None, None], turn.sin()[:, None, None]
    return torch.stack([cos * x - sin * (h / w) * y, sin * (w / h) * x + cos * y], -1)


def uniform(of: int | Tensor, n: int, device: torch.device | str = "cpu") -> Tensor:
    """n numbers in [0, 1) from a key's stream: the top 24 bits of `keys.bits`, exact in float32 on every device.

    Int64 products wrap modulo 2^64, so they have the bits that unsigned ones have.
    """
    key = _signed(of) if isinstance(of, int) else of
    z = torch.arange(1, n + 1, device=device) * _signed(GOLDEN) + key
    z = (z ^ _shift(z, 30)) * _signed(MIX_A)
    z = (z ^ _shift(z, 27)) * _signed(MIX_B)
    return _shift(z ^ _shift(z, 31), 40).to(torch.float32) / 2**24


def _signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits."""
    return (number + 2**63) % 2**64 - 2**63


def _shift(z: Tensor, by: int) -> Tensor:
    """A logical right shift: the sign bit does not spread."""
    return (z >> by) & ((1 << (64 - by)) - 1)
