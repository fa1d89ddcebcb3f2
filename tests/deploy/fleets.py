"""What the deployment tests share: small federations, and toys that remember."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from polyfed import Federation, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.core.client import GradientClient, RowClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.work import Arrays, work
from polyfed.experiment.building import plan as build_plan
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import Result, execute
from small import small_federation, small_problem

LOCAL: dict[str, Any] = {"lr": 0.2, "local_steps": 3, "batch_size": 8}
NEURAL: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", LOCAL), ("fsmgda", LOCAL), ("fedcmoo", {**LOCAL, "width": 16}),
    ("fedcmoo", {**LOCAL, "width": 16, "exchanges": 1}),
]  # fmt: skip
TASKS = ("mocha", {"epochs": 1.0, "omega_every": 2})


@work("toy-add", reply={"added": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_add(client: RowClient, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"added": request["amount"]}, {"total": state["total"] + request["amount"]}


@work("toy-total", reply={"total": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_total(client: RowClient, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"total": state["total"]}, state


@work("toy-slope", reply={"g": "d"})
def toy_slope(client: GradientClient, request: Request) -> Arrays:
    def step(g: Tensor, batch: Batch, i: int) -> Tensor:
        return client.grad(request["x"], request["buffers"], batch, torch.ones_like(client.holds))[0]

    return {"g": client.loop(step, torch.zeros_like(request["x"]), steps=1, batch_size=5)}


def linear_tasks(clients: int = 4) -> tuple[Problem, Federation]:
    """One binary task a client, for MOCHA."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    x = rng.normal(size=(clients, 20, 4)).astype(np.float32)
    data = [(rows, {"label": (rows @ rng.normal(size=4) > 0).astype(np.int64)}) for rows in x]
    return Problem(nn.Linear(4, 1), [Objective("label", "binary")], torch.float64), Federation.from_clients(data)


def trained(name: str, settings: dict[str, Any], engine: Any, rounds: int = 3, **more: Any) -> Result:
    """A run of a method on an engine, over the small federation that fits it."""
    if name == TASKS[0]:
        problem, federation = linear_tasks()
    else:
        holds = {"left": [True, True, False, True, True, True]}
        problem, federation = small_problem(), small_federation(holds=holds)
    return train(problem, federation, algorithms[name](**settings), rounds=rounds, cohort=3, engine=engine, **more)


MANY = {
    "rounds": 3, "cohort": 4, "data": {"name": "two-digits", "clients": 6}, "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "local_steps": 2}, "schedule": {"name": "mfa-rr"}, "models": {"a": {}, "b": {}},
    "evaluate": {"every": 3},
}  # fmt: skip


def many(engine: dict[str, Any], out: str) -> dict[str, Any]:
    """MFA-RR: two models over one pool of clients; the weights in the model file."""
    plan, resolved = build_plan("many", {**copy.deepcopy(MANY), "engine": engine})
    execute(plan, RunDirectory.create(Path(out), "many", resolved))
    return dict(load_file(f"{out}/model.safetensors"))


def weights(result: Result) -> Tensor:
    return torch.cat([value.reshape(-1).double() for value in result.model.state_dict().values()])
