"""What does not go together is refused before a run is begun; what only looks odd is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import BadInput, FedAvg, Federation, Objective, Problem, train
from polyfed.run.plan import check_compatible
from small import small_federation, small_problem


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.conv(x).view(len(x), -1))
        return out


def test_a_model_that_views_after_a_convolution_is_welcome() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2, 8, 8)).astype(np.float32)
    federation = Federation.from_arrays(x, np.arange(40) % 3, clients=4)
    result = train(Problem(Viewed(), [Objective("y", "cross-entropy")]), federation, FedAvg(batch_size=5), rounds=1)
    assert np.isfinite(result.summary["objectives"]["y"]["loss"])


class Counting(nn.Module):
    """A buffer that only training changes, with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.get_buffer("seen").add_(1)
        out: Tensor = self.out(x)
        return out


def test_buffers_that_training_changes_travel_and_none_takes_a_gradient_to_find_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a gradient, processes that are forked on a machine with a GPU cannot train."""
    problem = Problem(Counting(), [Objective("left", "cross-entropy")])
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "grad", None)
        check_compatible(problem, small_federation())
    assert list(problem.buffers) == ["seen"]
    model = train(problem, small_federation(), FedAvg(local_steps=3), rounds=2).model
    assert float(model.get_buffer("seen")) > 0


def test_an_objective_that_is_held_and_not_learned_is_named() -> None:
    with pytest.raises(BadInput, match="Did you mean 'left'"):
        train(small_problem(), small_federation(holds={"lefft": [True] * 6}), FedAvg(), rounds=1)


def test_an_objective_without_an_output_or_a_target_is_named() -> None:
    x = np.zeros((10, 5), dtype=np.float32)
    with pytest.raises(BadInput, match="Objective 'right' has no target"):
        train(small_problem(), Federation.from_arrays(x, {"left": np.zeros(10)}, clients=2), FedAvg(), rounds=1)
