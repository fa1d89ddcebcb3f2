"""What a Ray worker does, and the bytes in which it is asked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.client.memory import Memory
from polyfed.client.runner import ClientRunner, run_row
from polyfed.compress import compressors
from polyfed.core.engine import expected_replies
from polyfed.core.fleet import Population, Stack, Sum
from polyfed.core.heap import keep_freed_memory
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.core.part import Parts
from polyfed.core.settings import Settings
from polyfed.core.tree import flatten, unflatten
from polyfed.core.validate import Expected
from polyfed.core.work import works
from polyfed.engines.batched import Batched

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

    def start(self, parts: Parts, layers: Layers, together: Settings | None) -> None:
        """Apart from the constructor, since what is given here may need the path that is given there.

        together: the settings of an engine that does many clients' work at once; None for one client after another.
        """
        self._parts, self._layers = parts, layers
        self._known = {n: Population.of(p.problem, p.federation) for n, p in parts.items()}
        self._engine = None if together is None else Batched(parts, layers, **together)
        if self._engine is None:
            self._runners = {n: ClientRunner(p.problem, p.federation, layers) for n, p in parts.items()}
            self._memory = {name: Memory() for name in parts}
        else:
            self._memory = {name: part.memory for name, part in self._engine.together.items()}

    def ask(self, shared: Bytes, rows: Rows, keeps: bool) -> Iterator[bytes]:
        """Each client's reply; where the work keeps states, its state comes first: who has the one has the other."""
        waiting, replies = [client for client, _ in rows], dict[int, Reply]()
        for request, stack in self._stacks(shared, rows):
            replies |= _replies(stack)
            for client in _in_turn(waiting, replies):
                if keeps:
                    yield self._kept(client, request)
                yield replies.pop(client).encode()

    def sum(self, shared: Bytes, rows: Rows, keeps: bool) -> Iterator[bytes]:
        """One message for all these clients, the last; a reply that is not valid is left out, and named.

        The others are empty: they say how far the work is, should it go no further.
        """
        total, lengths = Sum({}, (), {}), []
        waiting, done = [client for client, _ in rows], set[int]()
        for request, stack in self._stacks(shared, rows):
            done |= {*stack.clients, *stack.failed}
            sound, own = self._expected(request).validated(stack)
            lengths.append(own)
            total = Sum.of([_as_stack(total), sound])
            for client in _in_turn(waiting, done):
                if keeps:
                    yield self._kept(client, request)
                if waiting:
                    yield b""
        about = {"clients": list(total.clients), "failed": list(total.failed.items())}
        yield encode(about, {**total.arrays, LENGTHS: torch.from_numpy(np.concatenate(lengths))})

    def _expected(self, request: Request) -> Expected:
        return expected_replies(self._parts, self._known[request.part], self._layers, request)

    def _stacks(self, shared: Bytes, rows: Rows) -> Iterator[tuple[Request, Stack]]:
        """Replies with what was asked, of one client after another or of as many as go together."""
        if self._engine is None:
            for client, request in _requests(shared, rows):
                job, reply = run_row(self._runners[request.part], self._memory[request.part], client, request)
                yield job.request, Stack.of(client, reply)
            return
        asked = dict(_requests(shared, rows))
        request = _joined(list(asked.values()))
        memory = self._memory[request.part]
        for stack in self._engine.replies(list(asked), request):
            first = [*stack.clients, *stack.failed][:1]  # those of a stack have been sent the same
            yield replace(asked[first[0]], shared=memory.recall(first, request)[0]), stack

    def _kept(self, client: int, request: Request) -> bytes:
        """All that is remembered of a client, where it keeps something new."""
        slots = self._memory[request.part].tree([client])
        new = any(str(request.tick) in slot["pending"] for slot in slots.values())
        return encode({}, flatten({request.part: slots} if new else {}))

    def remind(self, shared: Bytes, rows: Rows) -> None:
        """What another worker's clients were sent in this round."""
        asked = dict(_requests(shared, rows))
        request = next(iter(asked.values()))
        self._memory[request.part].recall(list(asked), request)  # at once: they can go together then

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


def _joined(rows: Sequence[Request]) -> Request:
    """Clients' own parts of a request as one for all of them."""
    each = {name: torch.stack([row.each[name] for row in rows]) for name in rows[0].each}
    folded = [-1 if row.folded is None else int(row.folded) for row in rows]
    return replace(rows[0], each=each, folded=torch.tensor(folded))


def _replies(stack: Stack) -> dict[int, Reply]:
    """The single replies of a stack."""
    host = stack.to_host()
    came = {client: Reply({n: a[i] for n, a in host.arrays.items()}) for i, client in enumerate(host.clients)}
    return came | {client: Reply(error=why) for client, why in stack.failed.items()}


def _in_turn(waiting: list[int], done: Container[int]) -> Iterator[int]:
    """The first of those that wait, as long as they are done."""
    while waiting and waiting[0] in done:
        yield waiting.pop(0)


def _as_stack(total: Sum) -> Stack:
    """A sum to go on from, in the same order of additions."""
    return Stack(total.clients, {name: a.unsqueeze(0) for name, a in total.arrays.items()}, total.failed)
