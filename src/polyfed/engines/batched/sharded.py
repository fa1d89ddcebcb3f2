"""One cohort over several GPUs: each has an engine of its own, with the data, and works on a stretch of the cohort.

One thread starts them one after the other. A recorded round goes on without the host, so that they work at once; and
what a process has only one of (random generators, TF32, the compiler's settings) is never fought over by threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from polyfed.core.fleet import Ids, Stack
from polyfed.core.messages import Request

if TYPE_CHECKING:
    from polyfed.engines.batched import Batched


def others(first: Batched, devices: int, alike: Callable[[], Batched]) -> list[Batched]:
    """The engines beside the first one, each on the next GPU; they share what clients remember, and what was chosen.

    Args:
        first: an engine, on the GPU that is the current one.
        devices: how many there should be with it, 0 for one a GPU; where there are fewer GPUs, several share one.
        alike: makes another engine, on the GPU that is the current one then.
    """
    gpus = torch.cuda.device_count() if first.gpu is not None else 1
    clients = max(len(part.federation) for part in first.parts.values())
    made = []
    for i in range(1, min(devices or gpus, clients)):
        with on(None if first.gpu is None else (first.gpu + i) % gpus):
            other = alike()
        for name, part in other.together.items():
            part.memory = first.together[name].memory
        other.choices.share(first.choices)
        made.append(other)
    return made


def on(gpu: int | None) -> AbstractContextManager[Any]:
    """Inside, this GPU is the current one; None where the work is the host's."""
    return nullcontext() if gpu is None else torch.cuda.device(gpu)


def replies_of(shards: Sequence[Batched], clients: Ids, request: Request) -> Iterator[Stack]:
    """The replies of several engines' clients, in the order of `clients`, on the first one's GPU.

    Each engine takes a piece of the cohort at a time, no more than it can do at once, so that no more replies than that
    wait for their turn. Pieces are of one size, for which one program serves.
    """
    turns = -(-len(clients) // (len(shards) * _room(shards[0], clients, request)))
    size = -(-len(clients) // max(1, turns * len(shards)))
    pieces = [slice(start, start + size) for start in range(0, len(clients), max(1, size))]
    for first in range(0, len(pieces), len(shards)):
        found = []
        for shard, piece in zip(shards, pieces[first:], strict=False):
            with on(shard.gpu):
                found += list(shard.started(clients[piece], _cut(request, piece)))
        yield from (_moved(stack, shards[0].gpu) for stack in found)


def _room(shard: Batched, clients: Ids, request: Request) -> int:
    """How many clients an engine takes at once: of those that go one by one, one.

    They are sent the request here, all of them: who has the same past has one mapping then, in whatever pieces.
    """
    part = shard.together[request.part]
    with on(shard.gpu):
        groups = [group for group in part.groups(clients, request) if not group.singly]
        return max((shard.chunks(part, group) for group in groups), default=1)


def _cut(request: Request, piece: slice) -> Request:
    """A request as some of the clients asked get it."""
    each = {name: rows[piece] for name, rows in request.each.items()}
    return replace(request, each=each, folded=None if request.folded is None else request.folded[piece])


def _moved(stack: Stack, gpu: int | None) -> Stack:
    """What another GPU has made, on this one; what the host has made stays there."""
    return replace(stack, arrays={name: a.to(gpu) if a.is_cuda else a for name, a in stack.arrays.items()})
