"""Trees of tensors, as states and checkpoints are: nested names, flattened for a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyfed.core.errors import BadInput

SEPARATOR = "/"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """A tree of tensors as one level of names; a name that ends in the separator is an empty branch."""
    flat: dict[str, Tensor] = {prefix: torch.zeros(0)} if prefix and not tree else {}
    for name, value in tree.items():
        if SEPARATOR in str(name):
            raise BadInput(f"Names in a state have no {SEPARATOR!r} in them. Found {name!r}.")
        if isinstance(value, Tensor):
            flat[prefix + name] = value.detach().cpu().contiguous()
        elif isinstance(value, Mapping):
            flat |= flatten(value, prefix + name + SEPARATOR)
        else:
            raise BadInput(f"A state is a tree of tensors: {prefix + name!r} is {type(value).__name__}; make it one.")
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(SEPARATOR)
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if leaf:
            node[leaf] = value
    return tree
