"""Gradients of one client, of modules that change their parameters themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.client.autograd import Autograd
from polyfed.core.problem import Batch
from small import Held, vector


def test_an_embedding_with_a_largest_norm_leaves_the_servers_model_alone() -> None:
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


def test_a_module_that_gives_its_parameters_other_data_is_trained() -> None:
    """Before, what it had put there in the first step stayed, whatever the clients learnt."""
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays(x, (x[:, 0] > 0).long(), clients=4)

    def trained(engine: str) -> Tensor:
        torch.manual_seed(1)
        layers = nn.Sequential(Held(6, 5), nn.Tanh(), nn.Linear(5, 2))
        problem = Problem(layers, [Objective("a", "cross-entropy")])
        method = FedAvg(lr=0.2, local_steps=5, batch_size=10)
        return vector(train(problem, federation, method, rounds=3, cohort=4, engine=engine, keep=False))

    torch.testing.assert_close(trained("local"), trained("batched"), atol=1e-5, rtol=1e-5)
    assert torch.equal(trained("local"), trained("wire"))
