"""Gradients of one client: small models are copied into the module, large ones looked at where they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyfed import Objective, Problem
from polyfed.client import autograd
from polyfed.client.autograd import Autograd
from polyfed.core.problem import Batch


def problem() -> Problem:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    return Problem(layers, [Objective("a", "cross-entropy")])


def batch() -> Batch:
    return Batch(torch.randn(8, 6), {"a": torch.arange(8) % 3}, None, {}, {})


def of(problem: Problem, x: Tensor, some: Batch) -> list[tuple[Tensor, ...]]:
    """Everything that an operator says, twice, from one x and from another."""
    operators, buffers = Autograd(problem), problem.initial()["buffers"].clone()
    found: list[tuple[Tensor, ...]] = []
    for at in (x, x + 1, x):
        found.append(operators.grad(at, buffers, some, torch.ones(1), [True]))
        found.append(operators.jacobian(at, buffers, some, [True], train=False))
        found.append((operators.measure(at, buffers, some, [True]),))
    return found


def test_views_of_large_models_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    made, some = problem(), batch()
    x = made.initial()["x"].clone()
    before, copied = x.clone(), of(made, x, some)
    monkeypatch.setattr(autograd, "LARGE", 1)
    for one, other in zip(of(made, x, some), copied, strict=True):
        assert all(map(torch.equal, one, other))
    assert torch.equal(x, before)


def test_large_models_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made, some = problem(), batch()
    start = made.initial()
    x = start["x"].clone()
    for large, borrowed in ((1, True), (1 << 17, False)):
        monkeypatch.setattr(autograd, "LARGE", large)
        operators = Autograd(made)
        operators.grad(x, start["buffers"].clone(), some, torch.ones(1), [True])
        memory = next(operators.model.parameters()).data_ptr()
        assert (memory == x.data_ptr()) is borrowed


@pytest.mark.parametrize("given", ["double", "every second"])
def test_what_cannot_be_looked_at_as_it_is_is_copied(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, some = problem(), batch()
    x, buffers = made.initial()["x"].clone(), made.initial()["buffers"].clone()
    expected = Autograd(made).grad(x, buffers, some, torch.ones(1), [True])
    monkeypatch.setattr(autograd, "LARGE", 1)
    other = x.double() if given == "double" else torch.stack([x, x], 1)[:, 0]
    found = Autograd(made).grad(other, buffers, some, torch.ones(1), [True])
    assert all(map(torch.equal, found, expected))
