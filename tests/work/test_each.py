"""A run of local steps for every objective."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import FSMGDA, Federation, Layer, Objective, Problem, train
from polyfed.client.loop import LoopClient
from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.layers.attacks import Misreport
from small import small_federation, small_problem, vector

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


@pytest.mark.parametrize("attacks", [[], [Misreport(clients=[1], factor=2.0, bias=0.5)]], ids=["honest", "misreport"])
def test_replies_are_those_of_a_client_that_computes_all_losses(
    attacks: list[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, buffers and reported losses, also of who holds some objectives only, or none."""
    holds = {"left": [True, False, True, False], "right": [True, True, False, False]}
    problem, federation = small_problem(), small_federation(clients=4, holds=holds)
    options = {"lr": 0.1, "steps": 3, "batch_size": 5}
    request = Request("sgd-each", problem.initial(), options=options)
    runner = ClientRunner(problem, federation, Layers(tuple(attacks)))

    def replies() -> list[Reply]:
        return [runner(Job(client, request, None))[0] for client in range(4)]

    found, plain = replies(), LoopClient.grad
    monkeypatch.setattr(LoopClient, "grad", lambda *arguments, losses: plain(*arguments))
    for one, other in zip(found, replies(), strict=True):
        assert not one.error
        assert one.arrays.keys() == other.arrays.keys()
        assert all(torch.equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


def test_each_update_is_plain_sgd_on_its_objective() -> None:
    problem = small_problem()
    federation = small_federation(clients=1)
    runner = ClientRunner(problem, federation, Layers())
    options = {"lr": 0.1, "steps": 3, "batch_size": 0}
    (deltas,) = (runner(Job(0, Request("sgd-each", problem.initial(), options=options), None))[0].arrays["deltas"],)
    for k, name in enumerate(problem.names):
        model = copy.deepcopy(problem.model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        rows = federation.take(torch.from_numpy(federation.rows("train", 0)))
        for _ in range(3):
            loss = F.cross_entropy(model(rows.x)[name], rows.targets[name])
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    if g is not None:
                        p.sub_(g, alpha=0.1)
        after = torch.cat([p.detach().reshape(-1) for p in parameters])
        torch.testing.assert_close(deltas[k], problem.initial()["x"] - after, atol=1e-6, rtol=1e-5)
