"""Measuring a model on a client's own rows: the server's, or what the client's local training makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.metric import KINDS
from polyfed.core.problem import Batch
from polyfed.core.schema import losses, statistics, weight
from polyfed.core.work import Arrays, ReplySchema, work, works

ROWS = 1024  # that are measured at a time


@dataclass(frozen=True)
class EvaluateOptions:
    """split: which of the client's rows, 'train', 'valid' or 'test'; statistics: whether those of metrics of the whole
    split are wanted, too."""

    split: str = "train"
    statistics: bool = False

    def reply(self) -> ReplySchema:
        """Sums, all of them: what a server may add up without seeing one."""
        means = {"values": losses("K"), "heard": weight("M", whole=True), "n": weight(whole=True)}
        if not self.statistics:
            return means
        return {**means, "counts": statistics("C", "int64", upto="heard"), "moments": statistics("S", "float64")}


@work("evaluate", reply=EvaluateOptions.reply, options=EvaluateOptions, measures=True)
def evaluate(client: GradientClient, request: Request, options: EvaluateOptions) -> Arrays:
    """Sums over the rows of a split of every objective's loss and metrics, and how many rows there were."""
    return evaluated_at(client, request["x"], request["buffers"], options)


def evaluated_at(client: GradientClient, x: Tensor, buffers: Tensor, options: EvaluateOptions) -> Arrays:
    """The reply to `evaluate` at any model."""
    if not options.statistics:
        return measured_at(client, x, buffers, options.split)._asdict()
    sums, counts, moments = _whole_split(client, x, buffers, options.split)
    return {**sums._asdict(), "counts": counts, "moments": moments}


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
    after = measured_at(client, *end, "train")
    before = measured(client, request, "train")
    rows = [after.heard[k].clamp(min=1) for k, o in enumerate(client.problem.objectives) for _ in o.values]
    return {"change": (after.values - before.values) / torch.stack(rows), "heard": client.holds}


class Sums(NamedTuple):
    """Of a split: sums of the measured values (K,), how many rows each objective has (M,), and how many there are."""

    values: Tensor
    heard: Tensor
    n: Tensor

    @classmethod
    def none(cls, client: GradientClient, like: Tensor) -> Sums:
        dims = client.problem.dims
        return cls(like.new_zeros(dims["K"]), like.new_zeros(dims["M"]), like.new_zeros(()))

    def plus(self, client: GradientClient, batch: Batch, values: Tensor) -> Sums:
        """With one more batch; rows without an objective's label do not count for it."""
        n = batch.number().to(values.dtype)
        each = [batch.number(label).to(n) for label in client.problem.labels] if batch.labelled else None
        heard = client.allowed * (n if each is None else torch.stack(each))
        return Sums(self.values + values, self.heard + heard, self.n + n)


def measured(client: GradientClient, request: Request, split: str) -> Sums:
    """Sums of the measured values at the request's model over the rows of a split."""
    return measured_at(client, request["x"], request["buffers"], split)


def measured_at(client: GradientClient, x: Tensor, buffers: Tensor, split: str) -> Sums:
    """The same at any model."""

    def step(carry: Sums, batch: Batch, i: int) -> Sums:
        return carry.plus(client, batch, client.measure(x, buffers, batch))

    return client.loop(step, Sums.none(client, x), epochs=1, batch_size=ROWS, split=split, shuffle=False)


def _whole_split(client: GradientClient, x: Tensor, buffers: Tensor, split: str) -> tuple[Sums, Tensor, Tensor]:
    """The same, and the counts (C,) and moments (S,) of metrics of the whole split, by one pass over its rows."""
    dims = client.problem.dims

    def step(carry: tuple[Sums, Tensor, Tensor], batch: Batch, i: int) -> tuple[Sums, Tensor, Tensor]:
        values, counts, moments = client.measure_split(x, buffers, batch)
        return carry[0].plus(client, batch, values), carry[1] + counts, carry[2] + moments

    counts = torch.zeros(dims["C"], dtype=KINDS[True], device=x.device)
    moments = torch.zeros(dims["S"], dtype=KINDS[False], device=x.device)
    start = Sums.none(client, x), counts, moments
    return client.loop(step, start, epochs=1, batch_size=ROWS, split=split, shuffle=False)
