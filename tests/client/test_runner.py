"""A client's work done by plain autograd: gradients, buffers of any kind, and replies that can travel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed import FedAvg, Objective, Problem, train
from polyfed.client.runner import ClientRunner
from polyfed.core.client import RowClient
from polyfed.core.errors import NobodyAnswered
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work
from small import small_federation, small_problem
from toys import EVERYWHERE, door, engine_of


def test_gradient_of_the_flat_view_is_autograds() -> None:
    problem, federation = small_problem(), small_federation()
    batch = federation.take(torch.arange(10))
    start = problem.initial()
    omega = torch.tensor([0.3, 0.7])
    runner = ClientRunner(problem, federation, Layers())
    g, losses, _ = runner.autograd.grad(start["x"], start["buffers"], batch, omega, [True, True])
    out = problem.model(batch.x)
    by_hand = [F.cross_entropy(out[name], batch.targets[name]) for name in problem.names]
    torch.autograd.backward(0.3 * by_hand[0] + 0.7 * by_hand[1])
    assert torch.allclose(losses, torch.stack(by_hand).detach())
    for name, piece in problem.split(g).items():
        wanted = problem.params[name].grad
        assert wanted is not None, name
        assert torch.allclose(piece, wanted), name


def test_an_objective_that_is_not_held_has_no_gradient() -> None:
    problem, federation = small_problem(), small_federation()
    runner = ClientRunner(problem, federation, Layers())
    start = problem.initial()
    g, losses, _ = runner.autograd.grad(
        start["x"], start["buffers"], federation.take(torch.arange(4)), torch.ones(2), [True, False]
    )
    assert losses[1] == 0
    assert not g[problem.parts["right"]].any()
    assert g[problem.parts["left"]].any()


class Assigned(nn.Module):
    """A running mean that is put in place of the last one, a counter, and a part the user froze."""

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(5, 3), nn.Dropout(0.9)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.body(x))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            self.count = self.count + 1
        return out - self.mean * (self.count > 0)


def made(kind: Any) -> Problem:
    torch.manual_seed(0)
    return Problem(kind(), [Objective("left", "cross-entropy")])


def hashes(kind: Any, **settings: Any) -> set[str]:
    """The checksum of the model on every engine."""
    method = FedAvg(local_steps=3, batch_size=8)
    engines: list[Any] = ["local", "wire", {"name": "local", "workers": 2}, {"name": "local", "workers": 3}]
    runs = [train(made(kind), small_federation(), method, rounds=3, cohort=4, engine=e, **settings) for e in engines]
    return {result.summary["model_sha256"] for result in runs}


@pytest.mark.parametrize("kind", [Assigned, lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None))])
def test_buffers_of_any_kind_give_one_model_on_every_engine(kind: Any) -> None:
    assert len(hashes(kind)) == 1
    assert hashes(kind) == hashes(kind, evaluate={"clients": True})
    assert train(made(kind), small_federation(), FedAvg(), rounds=2).model.state_dict().keys()


def test_a_buffer_that_a_forward_replaces_reaches_the_server() -> None:
    result = train(made(Assigned), small_federation(), FedAvg(), rounds=2)
    assert result.model.get_buffer("mean").abs().sum() > 0


@work("toy-half-at-one", reply={"v": ""}, needs="rows")
def half(client: RowClient, request: Request) -> Arrays:
    return {"v": torch.zeros((), dtype=torch.float16) if client.id == 1 else torch.zeros(())}


@pytest.mark.parametrize(("name", "settings"), EVERYWHERE)
def test_a_reply_of_a_type_that_cannot_travel_drops_its_client_only(name: str, settings: dict[str, Any]) -> None:
    fleet = door(name, **settings)
    fleet.begin(1)
    answered = [c for s in fleet.ask([0, 1, 2], Request("toy-half-at-one")) for c in s.clients]
    assert answered == [0, 2]
    assert "torch.float16" in fleet.failures[0][1]
    engine_of(fleet).close()


@work("toy-misnamed", reply={"v": ""}, needs="rows")
def misnamed(client: RowClient, request: Request) -> Arrays:
    return {"w": 0.0}


def test_a_reply_of_another_name_says_what_it_should_hold(engine: str) -> None:
    fleet = door(engine)
    fleet.begin(1)
    with pytest.raises(NobodyAnswered, match=r"the reply should hold \['v'\]; found \['w'\]"):
        list(fleet.ask([0], Request("toy-misnamed")))
