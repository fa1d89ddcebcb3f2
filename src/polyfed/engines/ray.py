"""Engine `ray`: a simulation over a Ray cluster, or over the cores of this machine.

Workers are Ray actors; each holds the rows of a stretch of clients and what those remember, does their part of a
request, and adds replies up where only a sum is asked for. Requests and replies travel as the bytes they have on every
engine; the problem, the data and the wrappers reach the workers by Ray's own transport, which is pickle: a cluster is
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

from polyfed.client.runner import Bench
from polyfed.core.client import Memory, Wrappers
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Ids, Stack, Sum
from polyfed.core.heap import keep_memory
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.core.problem import Problem
from polyfed.core.validate import sound
from polyfed.core.work import works
from polyfed.engines import engines
from polyfed.run.directory import flatten, unflatten

Bytes = NDArray[np.uint8]  # Ray hands arrays to workers without copying them
Rows = Sequence[tuple[int, bytes]]  # a client's number, and its own part of the request


class Worker:
    """Looks after a stretch of clients, in a process of its own."""

    def __init__(self, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]  # where the user's own modules lie
        torch.set_num_threads(1)
        keep_memory()

    def start(self, problem: Problem, federation: Federation, wrappers: Wrappers, offset: int) -> None:
        """Apart from the constructor, since what is given here may need the path that is given there."""
        self._bench = Bench(problem, federation, wrappers, offset=offset)
        self._problem, self._memory = problem, Memory()

    def ask(self, shared: Bytes, rows: Rows) -> Iterator[bytes]:
        for _, _, reply in self._replies(shared, rows):
            yield reply.encode()

    def sum(self, shared: Bytes, rows: Rows) -> bytes:
        """One message for all these clients; a reply that is not sound is left out, and named."""
        total: dict[str, Tensor] = {}
        answered: list[int] = []
        failed: dict[int, str] = {}
        for client, request, reply in self._replies(shared, rows):
            stack = sound(Stack.of(client, reply), request, self._problem.dims, self._problem.dtype)
            answered += stack.clients
            failed |= stack.failed
            _add(total, {name: a[0] for name, a in stack.arrays.items()} if stack.clients else {})
        return encode({"clients": answered, "failed": list(failed.items())}, total)

    def _replies(self, shared: Bytes, rows: Rows) -> Iterator[tuple[int, Request, Reply]]:
        _, arrays = decode(shared.data)
        for client, row in rows:
            request = _request(arrays, row)
            request = replace(request, shared=self._memory.recall([client], request)[0])
            reply, state = self._bench(client, request, self._memory.settle(client, request))
            self._memory.keep(client, request, state)
            yield client, request, reply

    def tree(self) -> bytes:
        return encode({}, flatten(self._memory.tree()))

    def load(self, tree: bytes) -> None:
        self._memory.load(unflatten(decode(tree)[1]))


def _row(request: Request) -> bytes:
    """A client's own part of a request, and the module that its work is defined in."""
    head = {**request.head(), "module": works[request.work].do.__module__}
    return encode(head, {n: a for n, a in request.arrays().items() if n in request.each or n not in request.shared})


def _request(shared: Mapping[str, Tensor], row: bytes) -> Request:
    head, arrays = decode(row)
    importlib.import_module(head["module"])  # registers work that is the user's own
    seed, round, exchange, folded = arrays.pop("when").tolist()
    return Request(head["work"], shared, arrays, head["options"], seed, round, exchange, torch.tensor(folded))


def _add(total: dict[str, Tensor], part: Mapping[str, Tensor]) -> None:
    for name, a in part.items():
        total[name] = total[name].add_(a) if name in total else a.clone()


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
    """A Ray cluster's workers (`address`: 'auto', 'host:port'), or this machine's; each looks after some clients."""

    reduces = overlaps = True

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        wrappers: Wrappers,
        *,
        address: str = "",
        workers: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        self.names, self.examples = problem.names, federation.examples
        self.holds = federation.matrix(problem.names)
        self._ray = cluster.enter(address, workers)
        count = min(workers or int(self._ray.cluster_resources().get("CPU", 1)), len(federation))
        self._cuts = np.linspace(0, len(federation), count + 1).astype(np.int64)
        # a sliver of a processor each, spread: the engines of many models may share one cluster
        actor = self._ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")(Worker)
        common = self._ray.put(problem), self._ray.put(wrappers)
        self._workers = [actor.remote(sys.path) for _ in range(count)]
        stretches = zip(self._workers, self._cuts, self._cuts[1:], strict=False)
        self._get([w.start.remote(common[0], federation.shard(a, b), common[1], int(a)) for w, a, b in stretches])

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        shared, rows = self._parts(clients, request)
        streams = {w: self._workers[w].ask.remote(shared, part) for w, part in rows.items()}
        for client in clients:  # a worker's replies come in the order of its rows, which is the cohort's
            yield Stack.of(client, Reply.decode(self._get(next(streams[self._at(client)]))))

    def sum(self, clients: Ids, request: Request) -> Sum:
        shared, rows = self._parts(clients, request)
        refs = [self._workers[w].sum.remote(shared, rows[w]) for w in sorted(rows)]
        total: dict[str, Tensor] = {}
        answered: set[int] = set()
        failed: dict[int, str] = {}
        for ref in refs:
            head, arrays = decode(self._get(ref))
            answered.update(head["clients"])
            failed |= {int(client): why for client, why in head["failed"]}
            _add(total, arrays)
        return Sum(total, [client for client in clients if client in answered], failed)

    def _parts(self, clients: Ids, request: Request) -> tuple[Any, dict[int, list[tuple[int, bytes]]]]:
        """The shared arrays, put where every worker finds them; and each worker's clients with their own parts."""
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
        return {name: slot for tree in trees for name, slot in tree.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for w, worker in enumerate(self._workers):
            own = {name: slot for name, slot in tree.items() if self._at(int(name)) == w}
            self._get(worker.load.remote(encode({}, flatten(own))))

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        cluster.leave(self._ray)
