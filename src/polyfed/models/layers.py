"""What the papers' networks are put together from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from polyfed.core.errors import BadInput
from polyfed.data import Dataset, sample
from polyfed.models import Headed, widths

Dropout = Annotated[float, Field(ge=0, lt=1)]


def channels(dataset: Dataset, name: str, least: int) -> int:
    """The number of channels of the data set's images, which a network needs to be of some size."""
    shape = tuple(sample(dataset).shape)
    if len(shape) != 4 or min(shape[2:]) < least:
        raise BadInput(
            f"The model {name!r} needs images of at least {least}x{least}, (n, channels, h, w). Found {shape}; "
            "choose another model.name."
        )
    return shape[1]


def drop(p: float) -> nn.Module:
    """Dropout, or nothing at all: then the model is as reproducible as any other."""
    return nn.Dropout(p) if p else nn.Identity()


def flat_width(body: nn.Module, dataset: Dataset) -> int:
    """How many features a body gives for one example of the data set."""
    with torch.no_grad():  # in evaluation, since dropout would draw from the seed of the initial weights
        width = int(body.eval()(sample(dataset).float()).numel())
    body.train()
    return width


def headed(body: nn.Module, dataset: Dataset, head: Callable[[int], nn.Module]) -> nn.Module:
    """The shared body with one head(outputs) per objective."""
    return Headed(body, {name: head(k) for name, k in widths(dataset).items()})
