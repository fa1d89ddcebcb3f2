"""FSMGDA's local work: one run of local steps for every objective, apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyfed.compress.sketch import sketch
from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.schema import gradient, update
from polyfed.core.work import Arrays, work
from polyfed.work.jacobian import columns
from polyfed.work.sgd import HEARD, TRAINED, WEIGHT, LocalSteps, descend


@dataclass(frozen=True)
class EachOptions(LocalSteps):
    """Local steps, and sketches of width k 'over' all parameters or those that are shared."""

    k: int = 0
    over: Literal["all", "shared"] = "all"


def cost_of_each(options: LocalSteps, n: int, held: int) -> float:
    """A run of local steps for every objective held."""
    return held * options.cost(n)


def updates(client: GradientClient, request: Request, options: LocalSteps) -> tuple[Tensor, Tensor, Tensor]:
    """Delta_si = x - x_si (M, d) of every objective held, the losses at x (M,), and the buffers, averaged over runs."""
    x, M = request["x"], len(client.holds)
    one = torch.eye(M, dtype=x.dtype, device=x.device)
    runs = [descend(client, request, options, one[s], losses=s == 0) for s in range(M)]
    held = client.holds
    deltas = torch.stack([x - w for w, _, _ in runs]) * held.unsqueeze(1)
    after = (torch.stack([b for _, b, _ in runs]) * held.unsqueeze(1)).sum(0) / held.sum().clamp(min=1)
    after = torch.where(held.any(), after, request["buffers"])  # who holds nothing has not trained
    return deltas, runs[0][2], after


def local_model(client: GradientClient, request: Request, options: LocalSteps) -> tuple[Tensor, Tensor]:
    """What the client's runs come to under the round's weights lambda: x - sum_s lambda_s Delta_si, and the buffers."""
    deltas, _, after = updates(client, request, options)
    return request["x"] - request["weights"] @ deltas, after


@work(
    "sgd-each",
    reply={"deltas": update("M d", by="heard"), "buffers": TRAINED["buffers"], **HEARD, "weight": WEIGHT},
    options=LocalSteps,
    numbers=("lr",),
    cost=cost_of_each,
    counts=LocalSteps.counts,
    local_model=local_model,
)
def sgd_each(client: GradientClient, request: Request, options: LocalSteps) -> Arrays:
    """Delta_si for every objective s the client holds: M models' upload."""
    deltas, at_x, after = updates(client, request, options)
    heard = options.heard(client)
    return {"deltas": deltas, "buffers": after, "losses": at_x, "heard": heard, "weight": options.share(client)}


@work(
    "sgd-each-sketch", reply={"S": gradient("M k", by="heard"), **HEARD}, options=EachOptions, numbers=("lr",),
    cost=cost_of_each, counts=LocalSteps.counts,
)  # fmt: skip
def sgd_each_sketch(client: GradientClient, request: Request, options: EachOptions) -> Arrays:
    """Sketches of Delta_si, from which the server finds weights (k the whole width sends them whole)."""
    deltas, at_x, _ = updates(client, request, options)
    shown = columns(deltas, client.problem, options.over)
    S = shown if options.k == shown.shape[1] else sketch(shown, options.k, client.common_key)
    return {"S": S, "losses": at_x, "heard": options.heard(client)}


@work(
    "sgd-each-combined", reply={**TRAINED, "weight": WEIGHT}, options=EachOptions, cost=cost_of_each,
    counts=LocalSteps.counts, local_model=local_model,
)  # fmt: skip
def sgd_each_combined(client: GradientClient, request: Request, options: EachOptions) -> Arrays:
    """u_i = sum_s omega_s Delta_si, the same local runs as before: one model's upload."""
    deltas, _, after = updates(client, request, options)
    return {"delta": options.own(client, request["omega"]) @ deltas, "buffers": after, "weight": options.share(client)}
