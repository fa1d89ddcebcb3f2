"""Changing a training batch at random, on its device, keyed like everything else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.core.tensorkeys import uniform


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
