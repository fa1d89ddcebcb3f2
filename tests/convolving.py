"""What tests of convolutions share: images and weights of some clients, and how far a result is from another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def some(shape: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    g, n, c, h, w, o, kernel, _ = shape
    torch.manual_seed(0)
    sizes = (g, n, c, h, w), (g, o, c, *kernel), (g, o)
    x, weights, bias = (torch.randn(*s, device=DEVICE, dtype=dtype) for s in sizes)
    return x, weights, bias


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
