"""Engine `wire`: every message through its bytes into a client of its own. What passes here passes on a network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from polyfed.client.runner import Bench
from polyfed.core.client import Memory, Wrappers
from polyfed.core.errors import PolyfedError, nearest
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Ids, Stack
from polyfed.core.messages import BadMessage, Reply, Request
from polyfed.core.problem import Problem
from polyfed.core.work import works
from polyfed.engines import engines


class Node:
    """A client that shares nothing: bytes in, bytes out. It does the work it knows by name, and nothing else."""

    def __init__(
        self, client: int, problem: Problem, federation: Federation, wrappers: Wrappers, memory: Memory | None = None
    ) -> None:
        self.client = client
        self.memory = memory or Memory()
        self._bench = Bench(copy.deepcopy(problem), federation, wrappers, offset=client)

    def handle(self, message: bytes | memoryview) -> bytes:
        try:
            return self._do(_known(Request.decode(message))).encode()
        except PolyfedError as error:
            return Reply(error=f"refused: {error}").encode()

    def _do(self, request: Request) -> Reply:
        (shared,) = self.memory.recall([self.client], request)
        request = replace(request, shared=shared)
        reply, state = self._bench(self.client, request, self.memory.settle(self.client, request))
        self.memory.keep(self.client, request, state)
        return reply


def _known(request: Request) -> Request:
    """Only registered work: a name such as 'package.module:function' would have the server choose what is run."""
    if request.work not in works:
        raise BadMessage(f"Unknown work {request.work!r}.{nearest(str(request.work), works)}")
    return request


@engines("wire")
class Wire(Engine):
    """Every message through its bytes into a client that shares nothing: slow, and as honest as a network."""

    def __init__(self, problem: Problem, federation: Federation, wrappers: Wrappers) -> None:
        self.names, self.examples = problem.names, federation.examples
        self.holds = federation.matrix(problem.names)
        self._parts = problem, federation, wrappers
        self._nodes: dict[int, Node] = {}
        self.up = self.down = 0  # bytes that really went

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for i, client in enumerate(clients):
            message = request.row(i).encode()
            answer = self._node(client).handle(message)
            self.down, self.up = self.down + len(message), self.up + len(answer)
            yield Stack.of(client, Reply.decode(answer))

    def _node(self, client: int) -> Node:
        if client not in self._nodes:
            problem, federation, wrappers = self._parts
            self._nodes[client] = Node(client, problem, federation.alone(client), wrappers)
        return self._nodes[client]

    def tree(self) -> dict[str, Any]:
        return {name: slot for node in self._nodes.values() for name, slot in node.memory.tree().items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        self._nodes = {}
        for name, slot in tree.items():
            self._node(int(name)).memory.load({name: slot})
