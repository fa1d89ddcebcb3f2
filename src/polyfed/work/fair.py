"""What the fair baselines ask of a client: its loss on all its rows, beside an update or a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.schema import buffers, gradient, losses, statistics, update
from polyfed.core.work import Arrays, ReplySchema, work
from polyfed.work.evaluate import measured
from polyfed.work.sgd import HEARD, WEIGHT, Gradient, LocalSteps, descend, local_model

EPSILON = 1e-10  # added to a loss before it is raised to a power


@dataclass(frozen=True)
class QOptions(LocalSteps):
    """q-FedAvg's power q and Lipschitz estimate L."""

    q: float = 1.0
    L: float = 1.0

    def reply(self) -> ReplySchema:
        """Delta and h grow with a loss to the power q times a gradient, so that their roots are what is compared."""
        power = self.q + 1
        return {
            "delta": update("d", by="weight", per="h", power=power),
            "h": statistics(by="weight", least=0.0, power=power, alike=True),
            "buffers": buffers("b", by="weight"), **HEARD, "weight": WEIGHT,
        }  # fmt: skip


@dataclass(frozen=True)
class GradientOptions:
    """batch_size: rows the gradient is taken over, 0 for all."""

    batch_size: int = 0


def full_loss(client: GradientClient, request: Request) -> Tensor:
    """sum_s omega_s f_is(x) over all training rows."""
    sums = measured(client, request, "train")
    every = torch.stack([sums.values[k] for k in client.problem.loss_places])
    return torch.dot(every / sums.heard.clamp(min=1), request["omega"])


@work(
    "q-sgd",
    reply=QOptions.reply,
    options=QOptions,
    numbers=("lr", "L"),
    cost=QOptions.cost,
    counts=QOptions.counts,
    local_model=local_model,
)  # fmt: skip
def q_sgd(client: GradientClient, request: Request, options: QOptions) -> Arrays:
    """q-FedAvg's Delta_i = F_i^q Dw_i and h_i = q F_i^(q-1) |Dw_i|^2 + L F_i^q, with Dw_i = L (x - x_i)."""
    q, L = options.q, options.L
    w, after, at_x = descend(client, request, options, request["omega"])
    F = full_loss(client, request) + EPSILON
    Dw = L * (request["x"] - w)
    h = L * F**q + (q * F ** (q - 1) * Dw.square().sum() if q > 0 else 0.0)
    a = options.share(client)
    heard = options.heard(client)
    return {"delta": F**q * Dw, "h": h, "buffers": after, "losses": at_x, "heard": heard, "weight": a}


@work(
    "gradient",
    reply={"g": gradient("d"), "loss": losses(), "buffers": buffers("b"), "losses": losses("M")},
    options=GradientOptions,
    cost=lambda options, n, held: min(options.batch_size or n, n),
)
def one_gradient(client: GradientClient, request: Request, options: GradientOptions) -> Arrays:
    """The gradient of sum_s omega_s f_is at x on one batch, and that loss on all rows."""

    def step(carry: Gradient, batch: Batch, i: int) -> Gradient:
        return client.grad(request["x"], request["buffers"], batch, request["omega"])

    x = request["x"]
    start = torch.zeros_like(x), torch.zeros_like(client.holds), request["buffers"]
    g, at_x, after = client.loop(step, start, steps=1, batch_size=options.batch_size)
    return {"g": g, "loss": full_loss(client, request), "buffers": after, "losses": at_x}
