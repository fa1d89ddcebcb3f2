"""Engine `ray`: a simulation over a Ray cluster, or over the cores of this machine.

Workers are Ray actors; each holds the rows of a stretch of clients and what those remember, does their part of a
request, and adds replies up where only a sum is asked for. Requests and replies travel as the bytes they have on every
engine; the problems, the data and the layers reach the workers by Ray's own transport, which is pickle: a cluster is
one trusted party.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Ids, Stack, Sum
from polyfed.core.guard import Lengths
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.core.part import Part, Parts
from polyfed.core.patience import Patience
from polyfed.core.schema import Schema
from polyfed.core.validate import validate_replies
from polyfed.core.work import works
from polyfed.engines.ray.cluster import cluster
from polyfed.engines.ray.inner import Inner, settings_of, share
from polyfed.engines.ray.shard import Shard, Stream, failed
from polyfed.engines.ray.worker import LENGTHS, Worker, row


@engines("ray")
class Ray(Engine):
    """A Ray cluster's workers (`address`: 'auto', 'host:port'), or this machine's; each looks after some clients.

    Args:
        address: of the cluster, 'auto' for one that is running; '' starts Ray on this machine.
        workers: how many, never more than clients; 0 for as many as there are processors, or GPUs for `inner`.
        timeout: seconds that a worker may take for one client, then the client has failed and the worker is replaced;
            0 for any time. Clients that go together have that time together.
        inner: how a worker does its clients' work: 'local' for one after the other on its processor, 'batched' for all
            together, on a GPU of its own where the cluster has some; or a table with that name and its settings.
    """

    overlaps = True

    def __init__(
        self,
        parts: Parts,
        layers: Layers,
        *,
        address: str = "",
        workers: Annotated[int, Field(ge=0)] = 0,
        timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0,
        inner: Inner = "local",
    ) -> None:
        super().__init__(parts, layers)
        clients = max(len(part.federation) for part in parts.values())
        self.patience = {name: Patience() for name in parts}
        self._together = settings_of(inner)
        self._ray = cluster.enter(address, workers)
        there = self._ray.cluster_resources()
        gpus = 0 if self._together is None or self._together["device"] == "cpu" else int(there.get("GPU", 0))
        count = min(workers or gpus or int(there.get("CPU", 1)), clients)
        self._gpu = share(gpus, count)
        self._cuts = np.linspace(0, clients, count + 1).astype(np.int64)
        stretches = [(int(a), int(b)) for a, b in zip(self._cuts, self._cuts[1:], strict=False)]
        together = self._together is not None
        self._shards = [Shard(self._ray, partial(self._begin, a, b), timeout, together) for a, b in stretches]
        try:
            self._ray.get([shard.begun for shard in self._shards])
        except BaseException as error:
            self.close()
            raise failed(error) if isinstance(error, self._ray.exceptions.RayError) else error from error

    def _begin(self, first: int, last: int) -> tuple[Any, Any]:
        """A worker for a stretch of clients, and a reference that stands for its having begun."""
        sliver = {"num_cpus": 0.01, "num_gpus": self._gpu}  # of a processor: as many may share one as there are
        make = self._ray.remote(**sliver, scheduling_strategy="SPREAD")(Worker)
        actor = make.remote(sys.path)
        return actor, actor.start.remote(_shard(self.parts, first, last), self.layers, self._together)

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        streams, paused = self._exchange("ask", clients, request)
        try:
            for client in clients:  # a worker's replies come in the order of its rows, which is the cohort's
                if client in paused:
                    yield Stack.of(client, Reply(error=paused[client]))
                    continue
                stream = streams[self._at(client)]
                message = stream.reply(client)
                self._heard([client], stream.lost, request)
                reply = Reply(error=stream.lost[client]) if client in stream.lost else Reply.received(message)
                yield Stack.of(client, reply)
        finally:
            for stream in streams.values():
                stream.close()

    def sum(self, clients: Ids, request: Request) -> Sum:
        """Added up by every worker for its clients, then here; the sum itself is checked again.

        Lengths of all replies come with the sums. Whoever is far from the others is left out: its worker adds up again.
        """
        parts, failures, lost = self._sums(clients, request)
        self._heard([client for client in clients if client not in failures], lost, request)
        expected = self.expected(request)
        guard = self.guard(request, expected)
        came = {c: row for stack, own in parts.values() for c, row in zip(stack.clients, own, strict=True)}
        order = [client for client in clients if client in came]
        far = guard.compare(order, np.array([came[client] for client in order])) if order else {}
        self.note_medians(request, guard)
        if far:
            shards = {self._at(client) for client in far}
            again, _, late = self._sums(clients, request, {c for c in order if c not in far and self._at(c) in shards})
            failed = {c: why for w in shards for c, why in parts.pop(w)[0].failed.items()}
            parts, failures, lost = {**parts, **again}, {**failures, **failed}, {**lost, **late}
        total = Sum.of(parts[w][0] for w in sorted(parts))
        answered = set(total.clients)
        return replace(
            total,
            clients=[client for client in clients if client in answered],
            failed={**failures, **lost, **total.failed, **far},
        )

    def _sums(
        self, clients: Ids, request: Request, only: set[int] | None = None
    ) -> tuple[dict[int, tuple[Stack, Lengths]], dict[int, str], dict[int, str]]:
        """Every worker's sum, with the lengths of its replies; who is left alone, and who was lost."""
        streams, failures = self._exchange("sum", clients, request, only)
        schema = self.schema(request)
        try:
            parts = {w: _part_of_sum(streams[w].total(), schema) for w in sorted(streams)}
        finally:
            for stream in streams.values():
                stream.close()
        return parts, failures, {c: why for stream in streams.values() for c, why in stream.lost.items()}

    def _exchange(
        self, call: str, clients: Ids, request: Request, only: set[int] | None = None
    ) -> tuple[dict[int, Stream], dict[int, str]]:
        """Every shard's clients, or some of them only, are asked at once; and why some are left alone."""
        patience = self.patience[request.part]
        asked = set(patience.among(clients, request.round))
        shared = self._ray.put(np.frombuffer(encode({}, request.shared), dtype=np.uint8))
        rows: dict[int, list[tuple[int, bytes]]] = {}
        for i, client in enumerate(clients):
            if client in asked and (only is None or client in only):
                rows.setdefault(self._at(client), []).append((client, row(request.row(i))))
        work = works[request.work]
        keeps = work.state is not None or self.layers.remember(work)
        streams = {w: self._shards[w].exchange(call, request, shared, own, keeps) for w, own in rows.items()}
        return streams, {client: patience.why(client) for client in clients if client not in asked}

    def _heard(self, clients: Ids, lost: Mapping[int, str], request: Request) -> None:
        for client in clients:
            if client in lost:
                self.patience[request.part].missed(client, request.round)
            else:
                self.patience[request.part].answered(client)

    def _at(self, client: int) -> int:
        return int(np.searchsorted(self._cuts, client, side="right")) - 1

    def tree(self) -> dict[str, Any]:
        trees = [shard.tree() for shard in self._shards]
        own = {n: {c: slot for tree in trees for c, slot in tree.get(n, {}).items()} for n in self.parts}
        return {name: {**slots, **self.patience[name].tree()} for name, slots in own.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, patience in self.patience.items():
            patience.load(tree.get(name, {}))
        for w, shard in enumerate(self._shards):
            shard.load({n: {c: s for c, s in _slots(own).items() if self._at(int(c)) == w} for n, own in tree.items()})

    def close(self) -> None:
        for shard in self._shards:
            self._ray.kill(shard.actor)
        cluster.leave(self._ray)


def _slots(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What clients remember, without what is remembered of them."""
    return {client: slot for client, slot in tree.items() if client != "missed"}


def _part_of_sum(message: bytes, schema: Schema) -> tuple[Stack, Lengths]:
    """One worker's sum as a stack whose first row is the sum, its other clients only count; and all their lengths."""
    nothing = np.zeros((0, 0))
    if not message:
        return Stack((), {}), nothing
    head, arrays = decode(message, ours=True)
    clients, failures = head["clients"], {int(client): why for client, why in head["failed"]}
    lengths = arrays.pop(LENGTHS).numpy() if LENGTHS in arrays else nothing
    if not clients:
        return Stack((), {}, failures), nothing
    one = validate_replies(Stack(clients[:1], {name: a.unsqueeze(0) for name, a in arrays.items()}), schema)
    for why in one.failed.values():
        return Stack((), {}, {**failures, **dict.fromkeys(clients, f"the sum: {why}")}), nothing
    return Stack(clients, one.arrays, failures), lengths


def _shard(parts: Parts, first: int, last: int) -> Parts:
    """The rows that a worker's clients have, under their numbers."""
    return {n: Part(p.problem, p.federation.shard(first, last).shifted(first)) for n, p in parts.items()}
