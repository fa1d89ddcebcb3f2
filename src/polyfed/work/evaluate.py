"""Measuring a model on a client's own rows."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.work import Arrays, work


@work("evaluate", reply={"values": "K", "heard": "M", "n": ""}, measures=True)
def evaluate(client: Client, request: Request) -> Arrays:
    """Sums over the rows of a split of every objective's loss and metrics, and how many rows there were."""
    x, buffers = request["x"], request["buffers"]

    def step(carry: tuple[Tensor, Tensor], batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        rows = batch.total(torch.ones(len(batch.x), dtype=x.dtype, device=x.device))
        return carry[0] + client.measure(x, buffers, batch), carry[1] + rows

    start = x.new_zeros(client.problem.dims["K"]), x.new_zeros(())
    split = str(request.options["split"])
    values, n = client.loop(step, start, epochs=1, batch_size=1024, split=split, shuffle=False)
    return {"values": values, "heard": n * client.holds, "n": n}
