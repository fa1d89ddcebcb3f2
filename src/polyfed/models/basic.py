"""Small networks for any data set: linear, MLP, a small convolution net, and a bare point for quadratics."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from polyfed.core.errors import BadInput
from polyfed.data import Dataset, sample
from polyfed.models import Headed, models, widths

Width = Annotated[int, Field(ge=1)]


@models("linear")
def linear(dataset: Dataset, *, bias: bool = True) -> nn.Module:
    """One linear map per objective.

    Args:
        bias: whether each map has a constant term.
    """
    features = sample(dataset).numel()
    return Headed(nn.Flatten(), {name: nn.Linear(features, k, bias) for name, k in widths(dataset).items()})


@models("mlp")
def mlp(dataset: Dataset, *, hidden: list[Width] | None = None) -> nn.Module:
    """Fully connected, ReLU; `hidden` layers are shared, one linear head per objective.

    Args:
        hidden: the widths of the shared layers, from the input on; one of 128 if not given.
    """
    sizes = [sample(dataset).numel(), *(hidden or [128])]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return Headed(nn.Sequential(*layers), {name: nn.Linear(sizes[-1], k) for name, k in widths(dataset).items()})


@models("conv")
def conv(dataset: Dataset, *, channels: Width = 16, hidden: Width = 64, batch_norm: bool = False) -> nn.Module:
    """Two 3x3 convolutions with pooling and a shared layer, one linear head per objective.

    Args:
        channels: of the first convolution; the second has twice as many.
        hidden: the width of the shared layer.
        batch_norm: whether batches are normalised after each convolution.
    """
    shape = sample(dataset).shape
    if len(shape) != 4 or min(shape[2:]) < 4:
        raise BadInput(f"The model 'conv' needs images of at least 4x4, (n, channels, h, w). Found {tuple(shape)}.")
    norm = [[nn.BatchNorm2d(k)] if batch_norm else [] for k in (channels, 2 * channels)]
    body = nn.Sequential(
        nn.Conv2d(shape[1], channels, 3, padding=1), *norm[0], nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), *norm[1], nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * channels * (shape[2] // 4) * (shape[3] // 4), hidden), nn.ReLU(),
    )  # fmt: skip
    return Headed(body, {name: nn.Linear(hidden, k) for name, k in widths(dataset).items()})


class Point(nn.Module):
    """A vector w, whatever the example: for losses that are functions of w alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), -1)


@models("point")
def point(dataset: Dataset) -> nn.Module:
    """A bare vector as wide as an example, started at 0: for quadratics."""
    return Point(sample(dataset).numel())
