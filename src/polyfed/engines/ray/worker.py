"""What a Ray worker does, and the bytes in which it is asked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.client.memory import Job, Memory
from polyfed.client.runner import ClientRunner, run_row
from polyfed.compress import compressors
from polyfed.core.engine import expected_replies
from polyfed.core.fleet import Population, Stack, Sum
from polyfed.core.heap import keep_freed_memory
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.core.part import Parts
from polyfed.core.tree import flatten, unflatten
from polyfed.core.validate import Expected
from polyfed.core.work import works

Bytes = NDArray[np.uint8]  # Ray hands arrays to workers without copying them
Rows = Sequence[tuple[int, bytes]]  # a client's number, and its own part of the request
LENGTHS = "polyfed.lengths"  # of the replies in a sum, which the server compares


class Worker:
    """Looks after a stretch of clients of every part, in a process of its own.

    What clients keep is handed out with the replies, since a worker may be lost: Ray holds it where it is.
    """

    def __init__(self, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]  # where the user's own modules lie
        torch.set_num_threads(1)
        keep_freed_memory()

    def start(self, parts: Parts, layers: Layers, offset: int) -> None:
        """Apart from the constructor, since what is given here may need the path that is given there."""
        self._parts, self._layers = parts, layers
        self._runners = {n: ClientRunner(p.problem, p.federation, layers, offset=offset) for n, p in parts.items()}
        self._memory = {name: Memory() for name in parts}
        self._known = {n: Population.of(p.problem, p.federation).shifted(offset) for n, p in parts.items()}

    def ask(self, shared: Bytes, rows: Rows, keeps: bool) -> Iterator[bytes]:
        """Each client's reply; where the work keeps states, its state comes first: who has the one has the other."""
        for job, reply in self._replies(shared, rows):
            if keeps:
                yield self._kept(job)
            yield reply.encode()

    def sum(self, shared: Bytes, rows: Rows, keeps: bool) -> Iterator[bytes]:
        """One message for all these clients, the last; a reply that is not valid is left out, and named.

        The others are empty: they say how far the work is, should it go no further.
        """
        total, lengths = Sum({}, (), {}), []
        for job, reply in self._replies(shared, rows):
            stack, own = self._expected(job.request).validated(Stack.of(job.client, reply))
            lengths.append(own)
            total = Sum.of([_as_stack(total), stack])
            if keeps:
                yield self._kept(job)
            if len(lengths) < len(rows):
                yield b""
        about = {"clients": list(total.clients), "failed": list(total.failed.items())}
        yield encode(about, {**total.arrays, LENGTHS: torch.from_numpy(np.concatenate(lengths))})

    def _expected(self, request: Request) -> Expected:
        return expected_replies(self._parts, self._known[request.part], self._layers, request)

    def _replies(self, shared: Bytes, rows: Rows) -> Iterator[tuple[Job, Reply]]:
        for client, request in _requests(shared, rows):
            yield run_row(self._runners[request.part], self._memory[request.part], client, request)

    def _kept(self, job: Job) -> bytes:
        """All that is remembered of a client, where it keeps something new."""
        slots = self._memory[job.request.part].tree([job.client])
        new = any(str(job.request.tick) in slot["pending"] for slot in slots.values())
        return encode({}, flatten({job.request.part: slots} if new else {}))

    def remind(self, shared: Bytes, rows: Rows) -> None:
        """What another worker's clients were sent in this round."""
        for client, request in _requests(shared, rows):
            self._memory[request.part].recall([client], request)

    def load(self, *trees: bytes) -> None:
        """What clients remember, later trees before earlier ones."""
        saved = merged(trees)
        for name, memory in self._memory.items():
            memory.load(saved.get(name, {}))


def merged(trees: Sequence[bytes]) -> dict[str, dict[str, object]]:
    """What clients of every part remember; the last tree that has a client counts."""
    saved: dict[str, dict[str, object]] = {}
    for tree in trees:
        for name, slots in unflatten(decode(tree, ours=True)[1]).items():
            saved.setdefault(name, {}).update(slots)
    return saved


def row(request: Request) -> bytes:
    """A client's own part of a request, and the module that its work is defined in."""
    return encode({**request.head(), "module": works[request.work].do.__module__}, request.own_arrays())


def _requests(shared: Bytes, rows: Rows) -> Iterator[tuple[int, Request]]:
    _, arrays = decode(shared.data, ours=True)
    for client, own in rows:
        yield client, _request(arrays, own)


def _request(shared: Mapping[str, Tensor], own: bytes) -> Request:
    head, arrays = decode(own)
    importlib.import_module(head["module"])  # registers work that is the user's own
    if "compress" in head["options"]:
        _ = compressors[head["options"]["compress"]["name"]]  # imports a compressor that is
    return Request.of(head, arrays, shared)


def _as_stack(total: Sum) -> Stack:
    """A sum to go on from, in the same order of additions."""
    return Stack(total.clients, {name: a.unsqueeze(0) for name, a in total.arrays.items()}, total.failed)
