"""One client's side of a deployment: its problem, its data, its memory, and the answers it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from polyfed.client.memory import Memory
from polyfed.client.node import Node
from polyfed.core.errors import PolyfedError
from polyfed.core.federation import SPLITS, Federation, Rows
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply
from polyfed.core.problem import Problem
from polyfed.deploy.app import ASKED_WHO, To


@dataclass
class Site:
    """Answers for one client. federation holds that client only; memory makes what it remembers of a run."""

    name: str
    problem: Problem
    federation: Federation
    layers: Layers
    memory: Callable[[str, str], Memory] = lambda run, name: Memory()
    nodes: dict[tuple[str, int], Node] = field(default_factory=dict)

    def answer(self, to: To, message: bytes) -> bytes:
        if to.client == ASKED_WHO:
            return self.describe().encode()
        try:
            return self._node(to.run, to.client).handle(message)
        except PolyfedError as error:
            return Reply(error=f"refused: {error}").encode()

    def describe(self) -> Reply:
        """Who this is, how many examples it has, for which objectives, and with how many labels if some are missing;
        and how many rows it keeps aside."""
        name = torch.from_numpy(np.frombuffer(self.name.encode(), dtype=np.uint8).copy())
        holds = torch.from_numpy(self.federation.matrix(self.problem.names)[0].copy())
        examples = int(self.federation.examples[0])
        kept: list[Rows | None] = [getattr(self.federation, split) for split in SPLITS[1:]]
        aside = torch.tensor([0 if rows is None else int(rows.length[0]) for rows in kept])
        said = {"name": name, "examples": torch.tensor(examples), "holds": holds, "aside": aside}
        if self.federation.labelled:
            part = self.federation.fractions(self.problem.names)[0]
            said["labelled"] = torch.from_numpy(np.rint(part * examples).astype(np.int64))
        return Reply(said)

    def _node(self, run: str, client: int) -> Node:
        if (run, client) not in self.nodes:
            self.nodes.clear()  # of another run, or from before the client was given another number
            memory = self.memory(run, self.name)
            self.nodes[run, client] = Node(client, self.problem, self.federation, self.layers, memory)
        return self.nodes[run, client]
