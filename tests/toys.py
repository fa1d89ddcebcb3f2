"""Toy work that no engine knows about, and doors to ask for it: were a special case needed, the seam would be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyfed import Engine, Layer
from polyfed.core.client import ClientState, GradientClient, RowClient
from polyfed.core.door import Door
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.work import Arrays, work
from polyfed.testing import open_door
from small import small_federation, small_problem

EVERYWHERE: list[tuple[str, dict[str, Any]]] = [("local", {}), ("local", {"workers": 2}), ("wire", {})]


def door(engine: str, layers: Sequence[Layer] = (), cohort: int = 4, **settings: Any) -> Door:
    """A door to six clients of the small problem."""
    return open_door(small_problem(), small_federation(), engine, layers=layers, cohort=cohort, settings=settings)


def engine_of(fleet: Any) -> Engine:
    """The engine behind a door and its layers."""
    while not isinstance(fleet, Engine):
        fleet = fleet.inner
    return fleet


@work("toy-gradient", reply={"g": "d"})
def toy_gradient(client: GradientClient, request: Request) -> Arrays:
    def step(g: Tensor, batch: Batch, i: int) -> Tensor:
        return client.grad(request["x"], request["buffers"], batch, torch.ones_like(client.holds))[0]

    return {"g": client.loop(step, torch.zeros_like(request["x"]), steps=1, batch_size=5)}


@work("toy-agreement", reply={"g": "d", "agreement": ""})
def toy_agreement(client: GradientClient, request: Request) -> Arrays:
    g = toy_gradient(client, request)["g"]
    return {"g": g, "agreement": torch.dot(g, request["direction"])}


@work("toy-echo", reply={"v": ""}, needs="rows")
def toy_echo(client: RowClient, request: Request) -> Arrays:
    return {"v": request["v"]}


@work("toy-save", reply={"saved": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_save(client: RowClient, request: Request, state: ClientState) -> tuple[Arrays, ClientState]:
    return {"saved": request["amount"]}, {"total": state["total"] + request["amount"]}


@work("toy-balance", reply={"total": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_balance(client: RowClient, request: Request, state: ClientState) -> tuple[Arrays, ClientState]:
    return {"total": state["total"]}, state
