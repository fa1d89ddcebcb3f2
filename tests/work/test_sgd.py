"""Local steps against torch's own optimisers, and on every engine."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed import BadInput, FedAvg, Federation, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.core.messages import Request
from polyfed.testing import open_door
from polyfed.work.sgd import LocalSteps, descend
from small import small_federation, small_problem, vector


def one_client() -> tuple[Problem, Federation]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), rng.integers(0, 3, 20)
    problem = Problem(nn.Linear(4, 3).double(), [Objective("y", "cross-entropy")], torch.float64)
    return problem, Federation.from_arrays(x, y, clients=1)


@pytest.mark.parametrize("clip", [None, 0.2, 1e6])
@pytest.mark.parametrize(
    ("settings", "optimiser"),
    [
        ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, 0.2, weight_decay=0.3)),
        (
            {"momentum": 0.9, "weight_decay": 0.3},
            lambda p: torch.optim.SGD(p, 0.2, momentum=0.9, weight_decay=0.3),
        ),
        ({"optimizer": "adam", "weight_decay": 0.3}, lambda p: torch.optim.Adam(p, 0.2, weight_decay=0.3)),
        ({"optimizer": "adamw", "weight_decay": 0.3}, lambda p: torch.optim.AdamW(p, 0.2, weight_decay=0.3)),
        ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, 0.2)),  # torch decays by 0.01 unless told otherwise
        ({"optimizer": "adamw", "weight_decay": 0.0}, lambda p: torch.optim.AdamW(p, 0.2, weight_decay=0.0)),
    ],
)
def test_every_step_is_torchs(settings: dict[str, Any], optimiser: Any, clip: float | None) -> None:
    problem, federation = one_client()
    model = nn.Linear(4, 3).double()
    model.load_state_dict(problem.model.state_dict())
    batch = federation.take(torch.from_numpy(federation.rows("train", 0)))
    step = optimiser(model.parameters())
    for steps in range(1, 5):
        step.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(batch.x), batch.targets[""]))
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        step.step()
        method = FedAvg(lr=0.2, local_steps=steps, batch_size=0, clip=clip, **settings)
        found = train(problem, federation, method, rounds=1).model.state_dict()
        for name, value in model.state_dict().items():
            assert torch.allclose(found[name], value, atol=1e-12), (steps, name)


NEURAL = ["fedavg", "fedprox", "fedavg-n", "fedmgda", "q-fedavg", "fmgda", "fsmgda", "fedcmoo", "fedcmoo-pref"]


def settings_of(name: str) -> dict[str, Any]:
    return {"width": 8} if name.startswith("fedcmoo") else {}


@pytest.mark.parametrize("name", [*NEURAL, "centralised"])
def test_a_clip_bounds_what_clients_send_whatever_the_method(name: str) -> None:
    """No step is longer than lr times the clip, so that four of them stay within 4 lr clip; updates of FedAvg-n are
    brought to length one afterwards."""
    problem, steps = small_problem(), 1 if name == "centralised" else 4
    method = algorithms[name](lr=0.1, local_steps=steps, clip=1e-3, **settings_of(name))
    moved = float((vector(train(problem, small_federation(), method, rounds=1)) - problem.initial()["x"]).norm())
    assert 0 < moved < (1.001 if name == "fedavg-n" else steps * 0.1 * 1e-3 * 1.001)


def uneven() -> Federation:
    """Clients with 1 to 25 rows, one of which lacks an objective."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 5)).astype(np.float32)
    targets = {name: (x @ rng.normal(size=(5, 3))).argmax(1) for name in ("left", "right")}
    owned = np.split(np.arange(70), np.cumsum([1, 5, 9, 20, 25]))
    return Federation.from_arrays(x, targets, clients=owned, holds={"left": [True, False, True, True, True, True]})


@pytest.mark.parametrize("local", [{"local_steps": 3}, {"local_epochs": 2}])
@pytest.mark.parametrize("name", ["fedavg", "fsmgda", "fedcmoo"])
@pytest.mark.parametrize(
    "settings", [{"optimizer": "adamw", "weight_decay": 0.5, "lr": 0.02}, {"weight_decay": 0.5, "momentum": 0.5}]
)
def test_it_is_the_same_on_every_engine(name: str, settings: dict[str, Any], local: dict[str, Any]) -> None:
    method = algorithms[name](**{"lr": 0.1, **settings}, **local, batch_size=4, clip=0.4, **settings_of(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a fall-back to one client after the other
        one, wire, many = (
            vector(train(small_problem(), uneven(), method, rounds=2, cohort=5, engine=engine))
            for engine in ("local", "wire", {"name": "batched", "device": "cpu"})
        )
    assert torch.equal(one, wire)
    assert torch.allclose(one, many, atol=2e-5)


def test_what_is_not_asked_for_is_not_sent() -> None:
    fleet = open_door(small_problem(), small_federation())
    assert not {"weight_decay", "clip"} & FedAvg().local_options(1, fleet).keys()
    assert not {"weight_decay"} & FedAvg(optimizer="adamw", weight_decay=0).local_options(1, fleet).keys()
    assert FedAvg(optimizer="adamw", clip=2).local_options(1, fleet)["weight_decay"] == 0.01


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match=r"momentum is SGD's; leave it out, or set optimizer = 'sgd'. Found 'adamw'"):
        FedAvg(optimizer="adamw", momentum=0.9)
    with pytest.raises(BadInput, match=r"clip should be greater than 0. Found 0"):
        FedAvg(clip=0)
    with pytest.raises(BadInput, match=r"weight_decay should be greater than or equal to 0. Found -1"):
        FedAvg(weight_decay=-1)


@pytest.mark.parametrize(
    "more", [{"weight_decay": 0.1}, {"clip": 1.0}, {"optimizer": "adamw"}, {"server_optimizer": "momentum"}]
)
def test_a_theorem_about_plain_sgd_is_about_nothing_else(more: dict[str, Any]) -> None:
    method = algorithms["fmgda"](lr={"rule": "fmgda-corollary-2", "L": 1.0}, **more)
    with pytest.raises(BadInput, match=r"is about plain SGD.*leave out weight_decay, clip and server_optimizer"):
        train(small_problem(), small_federation(), method, rounds=100)


class Bowl:
    """A client whose loss is |w - 1|^2."""

    def grad(self, x: Tensor, buffers: Tensor, batch: Any, omega: Tensor, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return 2 * (x - 1), torch.zeros(1), buffers

    def loop(self, step: Any, carry: Any, *, steps: int, **_: Any) -> Any:
        for i in range(steps):
            carry = step(carry, None, i)
        return carry


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_rate_may_come_as_a_tensor(optimizer: Any) -> None:
    """As it does on a GPU, where one program serves all rounds."""
    client: Any = Bowl()
    request = Request("sgd", {"x": torch.tensor([3.0, -2.0], dtype=torch.float64), "buffers": torch.zeros(0)})
    more: Any = {"steps": 4, "optimizer": optimizer, "weight_decay": 0.3, "clip": 1.5}
    rates: list[Any] = [0.1, torch.tensor(0.1, dtype=torch.float64)]
    one, other = (descend(client, request, LocalSteps(lr=rate, **more), torch.ones(1))[0] for rate in rates)
    assert torch.allclose(one, other, atol=1e-15)
    assert not torch.equal(one, request["x"])
