"""Engine `wire`: every message through its bytes into a client of its own. What passes here passes on a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polyfed.client.node import Node
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Parts


@engines("wire")
class Wire(Engine):
    """Every message through its bytes into a client that shares nothing: slow, and as honest as a network."""

    def __init__(self, parts: Parts, layers: Layers) -> None:
        super().__init__(parts, layers)
        self._nodes: dict[str, dict[int, Node]] = {name: {} for name in parts}
        self.up = self.down = 0  # bytes that really went

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for i, client in enumerate(clients):
            message = request.row(i).encode()
            answer = self._node(request.part, client).handle(message)
            self.down, self.up = self.down + len(message), self.up + len(answer)
            yield Stack.of(client, Reply.received(answer))

    def _node(self, part: str, client: int) -> Node:
        nodes = self._nodes[part]
        if client not in nodes:
            problem, federation = self.parts[part].problem, self.parts[part].federation
            nodes[client] = Node(client, problem, federation.alone(client), self.layers)
        return nodes[client]

    def tree(self) -> dict[str, Any]:
        every = self._nodes.items()
        return {part: {n: slot for x in nodes.values() for n, slot in x.memory.tree().items()} for part, nodes in every}

    def load(self, tree: Mapping[str, Any]) -> None:
        self._nodes = {name: {} for name in self.parts}
        for part, slots in tree.items():
            for name, slot in slots.items():
                self._node(part, int(name)).memory.load({name: slot})
