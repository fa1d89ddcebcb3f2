"""Networks by name. A factory gets the data set, so that its input and its heads fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor, nn

from polyfed.core.errors import BadInput
from polyfed.core.registry import Registry
from polyfed.core.structure import Nested
from polyfed.data import Dataset

models: Registry[Callable[..., nn.Module]] = Registry("model", __name__)


class Headed(nn.Module):
    """A shared body and one head per objective."""

    def __init__(self, body: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.body = body
        self.names = tuple(heads)
        self.heads = nn.ModuleDict({_key(name): head for name, head in heads.items()})

    def forward(self, x: Nested) -> dict[str, Tensor]:
        shared = self.body(x)
        return {name: head(shared) for name, head in zip(self.names, self.heads.values(), strict=True)}


def _key(name: str) -> str:
    """An objective's name as torch takes it for a module: without a dot, and none of its own."""
    odd = "." in name or name in ("", "shared") or hasattr(nn.ModuleDict(), name)
    return f"head-{name.encode().hex()}" if odd else name


def widths(dataset: Dataset) -> dict[str, int]:
    """How many outputs each objective needs: its classes, or the columns of its target."""
    return {o.name: o.classes or _width(o.loss, dataset.targets[o.name]) for o in dataset.objectives}


def _width(loss: object, target: np.ndarray) -> int:
    if loss in ("cross-entropy", "cross-entropy-of-sigmoid"):
        return int(target.max()) + 1
    if loss in ("binary", "squared"):
        return 1 if target.ndim == 1 else int(target.shape[1])
    raise BadInput("A built-in model does not fit an objective with a loss of your own; name your own model, "
                   "model.name = 'package.module:function'.")  # fmt: skip
