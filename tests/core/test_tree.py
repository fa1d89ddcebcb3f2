"""Trees of tensors, flattened for a file."""

from __future__ import annotations

import torch

from polyfed.core.tree import flatten, unflatten


def test_trees_of_tensors_there_and_back() -> None:
    tree = {"a": {"b": torch.ones(2), "c": {"d": torch.tensor(3)}}, "e": torch.zeros(0)}
    back = unflatten(flatten(tree))
    assert torch.equal(back["a"]["c"]["d"], torch.tensor(3))
    assert back["e"].shape == (0,)
