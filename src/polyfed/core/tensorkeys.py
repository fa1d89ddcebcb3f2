"""`polyfed.core.keys` on tensors: the same bits, on any device, for many keys at once.

Int64 products wrap modulo 2^64, so they have the bits that unsigned ones have; only shifts need care.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from polyfed.core.keys import GOLDEN, MIX_A, MIX_B


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits."""
    return (number + 2**63) % 2**64 - 2**63


def shift(z: Tensor, by: int) -> Tensor:
    """A logical right shift: the sign bit does not spread."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ shift(z, 30)) * signed(MIX_A)
    z = (z ^ shift(z, 27)) * signed(MIX_B)
    return z ^ shift(z, 31)


def key(*parts: Tensor | int | str) -> Tensor:
    """`keys.key`, where some parts are int64 tensors."""
    z = next(part for part in parts if isinstance(part, Tensor)).new_zeros(())
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        z = _mix((z ^ (signed(number) if isinstance(number, int) else number)) + signed(GOLDEN))
    return z


def bits(of: int | Tensor, n: int, device: torch.device | str = "cpu") -> Tensor:
    """`keys.bits`: the first n numbers of a key's stream, as signed integers."""
    start = signed(of) if isinstance(of, int) else of
    where = device if isinstance(of, int) else of.device
    return _mix(torch.arange(1, n + 1, device=where) * signed(GOLDEN) + start)


def uniform(of: int | Tensor, n: int, device: torch.device | str = "cpu") -> Tensor:
    """n numbers in [0, 1): the top 24 bits, exact in float32 on every device."""
    return shift(bits(of, n, device), 40).to(torch.float32) / 2**24


def normal(of: int | Tensor, n: int, device: torch.device | str = "cpu") -> Tensor:
    """n normal numbers in float64, by Box and Muller; devices may differ in the last digit."""
    even, odd = uniform(of, 2 * n, device).double().view(n, 2).unbind(-1)
    return (-2 * torch.log1p(-even)).sqrt() * torch.cos(2 * math.pi * odd)
