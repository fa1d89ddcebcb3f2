"""A run of local steps for every objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import FSMGDA, Federation, Objective, Problem, train
from small import vector

STEPS = 4


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_losses_that_nobody_asks_for_are_not_computed(engine: str) -> None:
    """With forty objectives those of the other 39 would take as long as the gradient."""
    asked: list[str] = []

    def counted(name: str) -> Objective:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            if torch.is_grad_enabled():  # not to measure
                asked.append(name)
            return F.mse_loss(output[:, 0], target, reduction="none")

        return Objective(name, loss)

    def trained(objectives: list[Objective], engine: str) -> Tensor:
        torch.manual_seed(0)
        federation = Federation.from_arrays(
            torch.randn(30, 3), {o.name: torch.randn(30) for o in objectives}, clients=1
        )
        method = FSMGDA(lr=0.1, local_steps=STEPS, batch_size=5)
        problem = Problem(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), objectives)
        return vector(train(problem, federation, method, rounds=1, cohort=1, engine=engine, keep=False))

    names = ["a", "b", "c"]
    found = trained([counted(name) for name in names], engine)
    plain = trained([Objective(name, lambda o, t: F.mse_loss(o[:, 0], t, reduction="none")) for name in names], "local")
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=1e-6)
    if engine == "local":  # all at the start, once; then that of each run alone
        assert [asked.count(name) for name in names] == [STEPS, STEPS + 1, STEPS + 1]
