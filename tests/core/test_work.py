"""Work functions: vmapped as they are, and only those that are registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed import BadInput
from polyfed.client.memory import Job
from polyfed.client.node import Node
from polyfed.client.runner import ClientRunner
from polyfed.core.keys import key, permutation
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.problem import Batch, Problem
from polyfed.core.work import works
from small import small_federation, small_problem
from toys import door


@dataclass
class VmapClient:
    """Many clients as one program: what a batched engine does, in thirty lines."""

    problem: Problem
    key: int
    n: Tensor
    holds: Tensor
    x: Tensor
    targets: dict[str, Tensor]
    index: Tensor  # (steps, batch)

    @property
    def fractions(self) -> Tensor:
        return self.holds

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
        def total(x: Tensor) -> tuple[Tensor, Tensor]:
            out = torch.func.functional_call(self.problem.model, self.problem.split(x), (batch.x,))
            losses = torch.stack(self.problem.losses(out, batch, [True] * len(self.problem.names))) * self.holds
            return losses @ omega, losses

        g, losses = torch.func.grad(total, has_aux=True)(x)
        return g, losses, buffers

    def loop(self, step: Callable[..., Any], carry: Any, *, steps: int, **_: Any) -> Any:
        for i in range(steps):
            rows = self.index[i]
            carry = step(carry, Batch(self.x[rows], {n: t[rows] for n, t in self.targets.items()}), i)
        return carry


@pytest.mark.parametrize(
    "options",
    [
        {}, {"momentum": 0.9}, {"optimizer": "adam"}, {"mu": 0.5}, {"weight_decay": 0.3, "clip": 0.2},
        {"optimizer": "adamw", "weight_decay": 0.3, "clip": 0.2},
    ],
)  # fmt: skip
def test_a_work_function_can_be_vmapped(options: dict[str, Any]) -> None:
    problem, federation = small_problem(), small_federation(holds={"left": [True, False, True, True, True, True]})
    request = Request(
        "sgd", {**problem.initial(), "omega": torch.tensor([0.4, 0.6])}, round=3,
        options={"lr": 0.1, "steps": 3, "batch_size": 5, "weight": "size", **options},
    )  # fmt: skip
    runner = ClientRunner(problem, federation, Layers())
    alone = [runner(Job(c, request, None))[0].arrays for c in range(6)]

    def index(c: int) -> np.ndarray:
        return federation.rows("train", c)[permutation(key(key(0, 3, c), "batch", 0), 20)][:15].reshape(3, 5)

    holds = torch.from_numpy(federation.matrix(problem.names)).float()
    n = torch.from_numpy(federation.examples).float()

    def one(n: Tensor, holds: Tensor, rows: Tensor) -> Mapping[str, Any]:
        client: Any = VmapClient(problem, 0, n, holds, federation.x, dict(federation.targets), rows)
        return works["sgd"](client, request, None)[0]

    together = torch.func.vmap(one)(n, holds, torch.from_numpy(np.stack([index(c) for c in range(6)])))
    assert set(together) == set(alone[0])
    for name in together:
        assert torch.allclose(together[name], torch.stack([a[name] for a in alone]), atol=1e-5), name


def test_a_network_cannot_make_a_client_import_things() -> None:
    with pytest.raises(BadInput, match="Unknown work"):
        works["shutil:rmtree"]
    node = Node(0, small_problem(), small_federation().alone(0), Layers())
    assert "refused: Unknown work" in Reply.decode(node.handle(Request("shutil:rmtree").encode())).error


def test_options_that_a_work_does_not_have_are_refused_before_anything_is_sent(engine: str) -> None:
    fleet = door(engine)
    for name, options, why in (
        ("evaluate", {"splitt": "train"}, "no option 'splitt'"),
        ("sgd", {"lr": "fast"}, "lr should be"),
        ("toy-echo", {"v": 1}, "It has none"),
    ):
        with pytest.raises(BadInput, match=why):
            list(fleet.ask([0], Request(name, options=options)))
    assert fleet.asked == {}
