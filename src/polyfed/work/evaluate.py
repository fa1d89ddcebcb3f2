"""Measuring a model on a client's own rows: the server's, or what the client's local training makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.schema import losses, weight
from polyfed.core.work import Arrays, work, works


@dataclass(frozen=True)
class EvaluateOptions:
    """split: which of the client's rows, 'train', 'valid' or 'test'."""

    split: str = "train"

    def counts(self, n: int) -> float:
        """How many rows a client with n examples measures; of rows kept aside nobody has said how many there are."""
        return n if self.split == "train" else math.inf


@work(
    "evaluate", reply={"values": losses("K"), "heard": weight("M", whole=True), "n": weight(whole=True)},
    options=EvaluateOptions, counts=EvaluateOptions.counts, measures=True,
)  # fmt: skip
def evaluate(client: GradientClient, request: Request, options: EvaluateOptions) -> Arrays:
    """Sums over the rows of a split of every objective's loss and metrics, and how many rows there were."""
    values, n = measured(client, request, options.split)
    return {"values": values, "heard": n * client.holds, "n": n}


@dataclass(frozen=True)
class ProgressOptions:
    """work, options: of the local training whose progress is measured."""

    work: str
    options: Mapping[str, Any] = field(default_factory=dict)


@work(
    "progress", reply={"change": losses("K"), "heard": weight("M")}, options=ProgressOptions,
    counts=lambda options, n: 1.0, measures=True,
)  # fmt: skip
def progress(client: GradientClient, request: Request, options: ProgressOptions) -> Arrays:
    """How much the means of the losses and metrics over the training rows change from x to the end of local training.

    The training is done once more: all of a round's randomness follows from its key, so these are the same steps.
    """
    training = works.known(options.work)
    if training.local_model is None:
        raise TypeError(f"the work {options.work!r} says nothing of a local model")
    end = training.local_model(client, request, training.parse(options.options))
    after, n = measured_at(client, *end, "train")
    before, _ = measured(client, request, "train")
    return {"change": (after - before) / n, "heard": client.holds}


def measured(client: GradientClient, request: Request, split: str) -> tuple[Tensor, Tensor]:
    """Sums of the measured values (K,) at the request's model over the rows of a split, and their number."""
    return measured_at(client, request["x"], request["buffers"], split)


def measured_at(client: GradientClient, x: Tensor, buffers: Tensor, split: str) -> tuple[Tensor, Tensor]:
    """The same at any model."""

    def step(carry: tuple[Tensor, Tensor], batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        rows = batch.total(torch.ones(len(batch.x), dtype=x.dtype, device=x.device))
        return carry[0] + client.measure(x, buffers, batch), carry[1] + rows

    start = x.new_zeros(client.problem.dims["K"]), x.new_zeros(())
    return client.loop(step, start, epochs=1, batch_size=1024, split=split, shuffle=False)
