"""VLMOP1 (Van Veldhuizen 1999): two objectives whose front is known, and bends the wrong way for weighted sums."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets


def bell(w: Tensor, centre: Tensor) -> Tensor:
    """1 - exp(-|w - centre|^2) for each example."""
    return 1 - torch.exp(-(w - centre).square().sum(1))


@datasets("vlmop1")
def vlmop1(*, seed: int, examples: Annotated[int, Field(ge=1)] = 100, dim: Annotated[int, Field(ge=1)] = 4) -> Dataset:
    """VLMOP1, f1 and f2 = 1 - exp(-|w -+ 1 / sqrt(n)|^2); model 'point'. The same at every client.

    The front is f(s) = (1 - exp(-(1 - s)^2), 1 - exp(-(1 + s)^2)) for s from -1 to 1, at w = s / sqrt(n).

    Args:
        examples: rows, all alike.
        dim: n, how many numbers the point has.
    """
    check_room(4 * 3 * examples * dim, "data.examples and data.dim")
    x = np.zeros((examples, dim), dtype=np.float32)
    targets = {name: x + sign / np.sqrt(dim, dtype=np.float32) for name, sign in (("f1", 1), ("f2", -1))}
    return Dataset(x, targets, tuple(Objective(name, bell, {}) for name in targets))
