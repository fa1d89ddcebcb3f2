"""What tests of convolutions share: images and weights of some clients, and how far a result is from another."""

from __future__ import annotations

from typing import Any

import pytest
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


def products_of_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies the bits of such numbers; from now on, what they stand for."""
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = (self.cast_impl(f, tl.float32) if f.dtype.scalar == tl.bfloat16 else f for f in (a, b))
        return plain(self, *wide, *rest)

    patch.setattr(InterpreterBuilder, "create_dot", create_dot)
