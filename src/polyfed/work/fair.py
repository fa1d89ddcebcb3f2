"""What the fair baselines ask of a client: its loss on all its rows, beside an update or a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.work import Arrays, work
from polyfed.work.sgd import batching, descend

EPSILON = 1e-10  # added to a loss before it is raised to a power


def full_loss(client: Client, request: Request) -> Tensor:
    """sum_s omega_s f_is(x) over all training rows."""

    def step(carry: tuple[Tensor, Tensor], batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        rows = batch.total(torch.ones(len(batch.x), dtype=x.dtype, device=x.device))
        return carry[0] + client.measure(x, request["buffers"], batch), carry[1] + rows

    x, problem = request["x"], client.problem
    start = x.new_zeros(problem.dims["K"]), x.new_zeros(())
    values, n = client.loop(step, start, epochs=1, batch_size=1024, shuffle=False)
    losses = torch.stack([values[k] for k in problem.loss_places])
    return torch.dot(losses / n, request["omega"])


@work(
    "q-sgd",
    reply={"delta": "d", "h": "", "buffers": "b", "losses": "M", "heard": "M", "weight": ""},
    numbers=("lr", "L"),
)
def q_sgd(client: Client, request: Request) -> Arrays:
    """q-FedAvg's Delta_i = F_i^q Dw_i and h_i = q F_i^(q-1) |Dw_i|^2 + L F_i^q, with Dw_i = L (x - x_i)."""
    options: Any = request.options
    q, L = float(options["q"]), options["L"]
    w, buffers, losses = descend(client, request, request["omega"])
    F = full_loss(client, request) + EPSILON
    Dw = L * (request["x"] - w)
    h = L * F**q + (q * F ** (q - 1) * Dw.square().sum() if q > 0 else 0.0)
    held = client.holds
    return {"delta": F**q * Dw, "h": h, "buffers": buffers, "losses": held * losses, "heard": held, "weight": 1.0}


@work("gradient", reply={"g": "d", "loss": "", "buffers": "b", "losses": "M"})
def gradient(client: Client, request: Request) -> Arrays:
    """The gradient of sum_s omega_s f_is at x on one batch, and that loss on all rows."""

    def step(carry: Any, batch: Batch, i: int) -> Any:
        return client.grad(request["x"], request["buffers"], batch, request["omega"])

    x = request["x"]
    start = torch.zeros_like(x), torch.zeros_like(client.holds), request["buffers"]
    g, losses, buffers = client.loop(step, start, steps=1, batch_size=batching(request.options)["batch_size"])
    return {"g": g, "loss": full_loss(client, request), "buffers": buffers, "losses": losses}
