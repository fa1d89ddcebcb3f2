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
        grid = F.affine_grid(_turned(turn.to(x.dtype), x.shape[-2] / x.shape[-1]), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


def _turned(turn: Tensor, aspect: float) -> Tensor:
    """Rotation matrices (n, 2, 3) for affine_grid, in whose coordinates every image is a square."""
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    return torch.stack([cos, -sin * aspect, zero, sin / aspect, cos, zero], -1).reshape(-1, 2, 3)


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
