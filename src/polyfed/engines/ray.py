"""Engine `ray`: a simulation over a Ray cluster, or over the cores of this machine.

Workers are Ray actors; each holds the rows of a stretch of clients and what those remember, does their part of a
request, and adds replies up where only a sum is asked for. Requests and replies travel as the bytes they have on every
engine; the problems, the data and the layers reach the workers by Ray's own transport, which is pickle: a cluster is
one trusted party.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.client.memory import Job, Memory
from polyfed.client.runner import ClientRunner, run_row
from polyfed.compress import compressors
from polyfed.core.engine import Engine, engines, schema_of_reply
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.fleet import Ids, Stack, Sum
from polyfed.core.heap import keep_freed_memory
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.core.part import Part, Parts
from polyfed.core.schema import Schema
from polyfed.core.tree import flatten, unflatten
from polyfed.core.validate import validate_replies
from polyfed.core.work import works

Bytes = NDArray[np.uint8]  # Ray hands arrays to workers without copying them
Rows = Sequence[tuple[int, bytes]]  # a client's number, and its own part of the request


class Worker:
    """Looks after a stretch of clients of every part, in a process of its own."""

    def __init__(self, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]  # where the user's own modules lie
        torch.set_num_threads(1)
        keep_freed_memory()

    def start(self, parts: Parts, layers: Layers, offset: int) -> None:
        """Apart from the constructor, since what is given here may need the path that is given there."""
        self._parts, self._layers = parts, layers
        self._runners = {n: ClientRunner(p.problem, p.federation, layers, offset=offset) for n, p in parts.items()}
        self._memory = {name: Memory() for name in parts}

    def ask(self, shared: Bytes, rows: Rows) -> Iterator[bytes]:
        for _, reply in self._replies(shared, rows):
            yield reply.encode()

    def sum(self, shared: Bytes, rows: Rows) -> bytes:
        """One message for all these clients; a reply that is not valid is left out, and named."""
        total = Sum.of(self._validated(job, reply) for job, reply in self._replies(shared, rows))
        return encode({"clients": list(total.clients), "failed": list(total.failed.items())}, total.arrays)

    def _validated(self, job: Job, reply: Reply) -> Stack:
        schema = schema_of_reply(self._parts, self._layers, job.request)
        return validate_replies(Stack.of(job.client, reply), schema)

    def _replies(self, shared: Bytes, rows: Rows) -> Iterator[tuple[Job, Reply]]:
        _, arrays = decode(shared.data)
        for client, row in rows:
            request = _request(arrays, row)
            yield run_row(self._runners[request.part], self._memory[request.part], client, request)

    def tree(self) -> bytes:
        return encode({}, flatten({name: memory.tree() for name, memory in self._memory.items()}))

    def load(self, tree: bytes) -> None:
        saved = unflatten(decode(tree)[1])
        for name, memory in self._memory.items():
            memory.load(saved.get(name, {}))


def _row(request: Request) -> bytes:
    """A client's own part of a request, and the module that its work is defined in."""
    return encode({**request.head(), "module": works[request.work].do.__module__}, request.own_arrays())


def _request(shared: Mapping[str, Tensor], row: bytes) -> Request:
    head, arrays = decode(row)
    importlib.import_module(head["module"])  # registers work that is the user's own
    if "compress" in head["options"]:
        _ = compressors[head["options"]["compress"]["name"]]  # imports a compressor that is
    return Request.of(head, arrays, shared)


class _Cluster:
    """The connection to Ray, which all engines of a process share: made by the first and ended with the last, unless
    the user made it.
    """

    def __init__(self) -> None:
        self._ours, self._users, self._lock = False, 0, threading.Lock()

    def enter(self, address: str, workers: int) -> Any:
        try:
            import ray
        except ImportError as error:
            raise BadInput(f"The engine 'ray' needs Ray: pip install 'polyfed[ray]' ({error}).") from error
        with self._lock:
            if not ray.is_initialized():
                _connect(ray, address, workers)
                self._ours = True
            self._users += 1
        return ray

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._ours and not self._users:
                ray.shutdown()
                self._ours = False


def _connect(ray: Any, address: str, workers: int) -> None:
    where = {"address": address} if address else {"num_cpus": workers or None, "include_dashboard": False}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do, and warns of until it does
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise BadInput(f"engine.address = {address!r}: there is no Ray cluster there; start one with "
                       "'ray start --head', or leave the address out.") from error  # fmt: skip


cluster = _Cluster()


@engines("ray")
class Ray(Engine):
    """A Ray cluster's workers (`address`: 'auto', 'host:port'), or this machine's; each looks after some clients.

    Args:
        address: of the cluster, 'auto' for one that is running; '' starts Ray on this machine.
        workers: how many, never more than clients; 0 for as many as there are processors.
    """

    overlaps = True

    def __init__(
        self, parts: Parts, layers: Layers, *, address: str = "", workers: Annotated[int, Field(ge=0)] = 0
    ) -> None:
        super().__init__(parts, layers)
        clients = max(len(part.federation) for part in parts.values())
        self._ray = cluster.enter(address, workers)
        count = min(workers or int(self._ray.cluster_resources().get("CPU", 1)), clients)
        self._cuts = np.linspace(0, clients, count + 1).astype(np.int64)
        actor = self._ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")(Worker)  # a sliver of a processor each
        self._workers = [actor.remote(sys.path) for _ in range(count)]
        stretches = zip(self._workers, self._cuts, self._cuts[1:], strict=False)
        try:
            self._get([w.start.remote(_shard(parts, a, b), layers, int(a)) for w, a, b in stretches])
        except BaseException:
            self.close()
            raise

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        shared, rows = self._rows(clients, request)
        streams = {w: self._workers[w].ask.remote(shared, part) for w, part in rows.items()}
        for client in clients:  # a worker's replies come in the order of its rows, which is the cohort's
            yield Stack.of(client, Reply.decode(self._get(next(streams[self._at(client)]))))

    def sum(self, clients: Ids, request: Request) -> Sum:
        """Added up by every worker for its clients, then here; the sum itself is checked again."""
        shared, rows = self._rows(clients, request)
        refs = [self._workers[w].sum.remote(shared, rows[w]) for w in sorted(rows)]
        schema = self.schema(request)
        total = Sum.of(self._part_of_sum(ref, schema) for ref in refs)
        answered = set(total.clients)
        return replace(total, clients=[client for client in clients if client in answered])

    def _part_of_sum(self, ref: Any, schema: Schema) -> Stack:
        """One worker's sum as a stack whose first row is the sum; its other clients only count."""
        head, arrays = decode(self._get(ref))
        clients, failed = head["clients"], {int(client): why for client, why in head["failed"]}
        if not clients:
            return Stack((), {}, failed)
        one = validate_replies(Stack(clients[:1], {name: a.unsqueeze(0) for name, a in arrays.items()}), schema)
        for why in one.failed.values():
            return Stack((), {}, {**failed, **dict.fromkeys(clients, f"the sum: {why}")})
        return Stack(clients, one.arrays, failed)

    def _rows(self, clients: Ids, request: Request) -> tuple[Any, dict[int, list[tuple[int, bytes]]]]:
        """The shared arrays, put where every worker finds them; and each worker's clients with their own rows."""
        shared = self._ray.put(np.frombuffer(encode({}, request.shared), dtype=np.uint8))
        rows: dict[int, list[tuple[int, bytes]]] = {}
        for i, client in enumerate(clients):
            rows.setdefault(self._at(client), []).append((client, _row(request.row(i))))
        return shared, rows

    def _at(self, client: int) -> int:
        return int(np.searchsorted(self._cuts, client, side="right")) - 1

    def _get(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1]
            raise RunStopped(f"A Ray worker failed ({why}). Resume when the cluster is well again.") from error

    def tree(self) -> dict[str, Any]:
        trees = [unflatten(decode(self._get(worker.tree.remote()))[1]) for worker in self._workers]
        return {n: {c: slot for tree in trees for c, slot in tree.get(n, {}).items()} for n in self.parts}

    def load(self, tree: Mapping[str, Any]) -> None:
        for w, worker in enumerate(self._workers):
            own = {n: {c: s for c, s in slots.items() if self._at(int(c)) == w} for n, slots in tree.items()}
            self._get(worker.load.remote(encode({}, flatten(own))))

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        cluster.leave(self._ray)


def _shard(parts: Parts, first: int, last: int) -> Parts:
    """The rows that a worker's clients have."""
    return {n: Part(p.problem, p.federation.shard(int(first), int(last))) for n, p in parts.items()}
