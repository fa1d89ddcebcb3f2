"""Gradients of one client."""

from __future__ import annotations

import torch
from torch import nn

from polyfed import Objective, Problem
from polyfed.client.autograd import Autograd
from polyfed.core.problem import Batch


def test_a_module_that_writes_over_its_parameters_leaves_the_servers_alone() -> None:
    """An embedding with a largest norm does, at every forward."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(7, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 3))
    problem = Problem(layers, [Objective("a", "cross-entropy")])
    x = 10 * problem.initial()["x"]
    before = x.clone()
    some = Batch(torch.arange(6).view(3, 2), {"a": torch.arange(3)}, None, {}, {})
    operators = Autograd(problem)
    operators.grad(x, torch.zeros(0), some, torch.ones(1), [True])
    assert next(operators.model.parameters()).norm(dim=1)[:6].max() < 0.2
    assert torch.equal(x, before)
