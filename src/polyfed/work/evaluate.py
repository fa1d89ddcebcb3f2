"""Measuring a model on a client's own rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.schema import losses, weight
from polyfed.core.work import Arrays, work


@dataclass(frozen=True)
class EvaluateOptions:
    """split: which of the client's rows, 'train', 'valid' or 'test'."""

    split: str = "train"


@work(
    "evaluate", reply={"values": losses("K"), "heard": weight("M"), "n": weight()}, options=EvaluateOptions,
    measures=True,
)  # fmt: skip
def evaluate(client: GradientClient, request: Request, options: EvaluateOptions) -> Arrays:
    """Sums over the rows of a split of every objective's loss and metrics, and how many rows there were."""
    values, n = measured(client, request, options.split)
    return {"values": values, "heard": n * client.holds, "n": n}


def measured(client: GradientClient, request: Request, split: str) -> tuple[Tensor, Tensor]:
    """Sums of the measured values (K,) over the rows of a split, and their number."""
    x, buffers = request["x"], request["buffers"]

    def step(carry: tuple[Tensor, Tensor], batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        rows = batch.total(torch.ones(len(batch.x), dtype=x.dtype, device=x.device))
        return carry[0] + client.measure(x, buffers, batch), carry[1] + rows

    start = x.new_zeros(client.problem.dims["K"]), x.new_zeros(())
    return client.loop(step, start, epochs=1, batch_size=1024, split=split, shuffle=False)
