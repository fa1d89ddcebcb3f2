"""Engine `flower`: clients behind a Flower Grid, on other machines or, to try an app, all in this process.

A request goes out to all clients at once, the arrays they share as one record; replies are awaited in a loop of our
own, with a deadline. Who fails, is late or has left is missing from the round, and the round goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field

from polyfed.core.client import Memory, Wrappers
from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Ids, Stack
from polyfed.core.messages import Reply, Request
from polyfed.core.problem import Problem
from polyfed.core.validate import schema_of
from polyfed.engines import engines

if TYPE_CHECKING:
    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid

    from polyfed.deploy.nodes import Letter

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Replies = Annotated[int, Field(ge=1)]


class OverGrid(Engine):
    """The clients that a Grid reaches: as many as `clients`, or those of a roster that an earlier start has saved.

    timeout: seconds that an exchange may take; min_replies: how many clients must have answered by then, or the run
    stops (it can be resumed); wait: seconds that the clients have to appear in, at the start; model: its place in
    the experiment, where there are many.
    """

    durable = True

    def __init__(
        self,
        problem: Problem,
        grid: Grid,
        clients: int,
        *,
        roster: Path | None = None,
        timeout: float = 600.0,
        min_replies: int = 1,
        wait: float = 60.0,
        model: int = 0,
    ) -> None:
        from polyfed.deploy.nodes import Nodes

        self.names, self._dims, self._dtype = problem.names, problem.dims, problem.dtype
        self.timeout, self.min_replies, self.model = timeout, min_replies, model
        self.nodes = Nodes(grid, len(problem.names), timeout, model)
        self.roster = _roster(self.nodes, clients, wait, roster)
        self.examples, self.holds = self.roster.examples, self.roster.holds
        self.up = self.down = 0  # bytes of ours that really went

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        came: dict[int, Reply] = {}
        turn = 0
        for client, reply in _Exchange(self, clients, request).replies():
            came[client] = reply
            while turn < len(clients) and clients[turn] in came:  # in the order of the cohort, whoever was first
                yield Stack.of(clients[turn], came[clients[turn]])
                turn += 1
        answered = sum(not reply.error for reply in came.values())
        if answered < min(self.min_replies, len(clients)):
            raise NobodyAnswered(f"Round {request.round}: {answered} of {len(clients)} clients answered "
                                 f"{request.work!r}; engine.min_replies asks for {self.min_replies}.")  # fmt: skip

    def limit(self, request: Request) -> int:
        """The length of a sound reply."""
        schema = schema_of(request, self._dims, self._dtype)
        return Reply({n: torch.empty(shape, dtype=t, device="meta") for n, (shape, t) in schema.items()}).nbytes


class _Exchange:
    """One request on its way to some clients: who has been sent it, and who is still awaited."""

    def __init__(self, fleet: OverGrid, clients: Ids, request: Request) -> None:
        from polyfed.deploy.payload import shared_record

        self.fleet, self.nodes, self.request = fleet, fleet.nodes, request
        self.shared = shared_record(request)
        self.limit = fleet.limit(request)
        self.place = {client: i for i, client in enumerate(clients)}
        self.awaited = set(clients)
        self.sent: dict[str, int] = {}  # message id -> client
        self.node: dict[int, int] = {}  # client -> the node that has been sent its request

    def replies(self) -> Iterator[tuple[int, Reply]]:
        """Replies as they come, then an error for each that did not."""
        from polyfed.deploy.nodes import pause

        begun = time.monotonic()
        while self.awaited and time.monotonic() < begun + self.fleet.timeout:
            self.nodes.look()
            self._send()
            yield from self._received()
            yield from self._gone()
            if self.awaited:
                pause(begun)
        for client in sorted(self.awaited):
            yield client, Reply(error=f"no reply within {self.fleet.timeout:g} s")

    def _send(self) -> None:
        """To whoever has not been sent it; again to a client whose node was replaced before it answered."""
        from polyfed.deploy.payload import length

        letters = list(self._letters())
        for i, letter in zip(self.nodes.push(letters), letters, strict=True):
            if i:  # none: the SuperLink did not take it; the next turn tries again
                self.sent[i], self.node[letter.to.client] = letter.to.client, letter.node
                self.fleet.down += sum(length(a) for record in letter.records.values() for a in record.values())

    def _letters(self) -> Iterator[Letter]:
        from polyfed.deploy.app import To
        from polyfed.deploy.nodes import Letter

        for client in sorted(self.awaited):
            node = self.nodes.node(self.fleet.roster.clients[client].name)
            if node is not None and node != self.node.get(client):
                to = To(self.fleet.roster.run, self.fleet.model, client)
                yield Letter(node, to, self._records(client))

    def _records(self, client: int) -> dict[str, ArrayRecord]:
        from polyfed.deploy.payload import own_record

        return {"own": own_record(self.request.row(self.place[client])), "shared": self.shared}

    def _received(self) -> Iterator[tuple[int, Reply]]:
        from polyfed.deploy.nodes import read

        for i, message in self.nodes.pull(self.sent).items():
            client = self.sent.pop(i)
            if client in self.awaited:
                self.awaited.remove(client)
                reply, length = read(message, self.limit)
                self.fleet.up += length
                yield client, reply

    def _gone(self) -> Iterator[tuple[int, Reply]]:
        """Clients without a connected node, unless one that has just come may yet turn out to be theirs."""
        if self.nodes.unsettled:
            return
        for client in sorted(self.awaited):
            if self.nodes.node(self.fleet.roster.clients[client].name) is None:
                self.awaited.remove(client)
                yield client, Reply(error="its node is not connected")


def _roster(nodes: Any, clients: int, wait: float, path: Path | None) -> Any:
    """Who takes part: gathered once, then kept beside the run, so that everybody keeps their number."""
    from polyfed.deploy.roster import Roster

    if path is not None and path.is_file():
        saved = Roster.load(path)
        nodes.gather(len(saved.clients), wait, [client.name for client in saved.clients])
        return saved
    roster = nodes.gather(clients, wait)
    if path is not None:
        roster.save(path)
    return roster


class InProcess(OverGrid):
    """All clients in this process, each behind Flower's client app: what it remembers is the simulation's to save."""

    durable = False

    def __init__(self, problem: Problem, federation: Federation, wrappers: Wrappers, **settings: Any) -> None:
        from polyfed.deploy.app import To, client_app
        from polyfed.deploy.grid import InProcess as Grid
        from polyfed.deploy.site import Site

        self._memory: dict[int, Memory] = {i: Memory() for i in range(len(federation))}
        sites: dict[int, Site] = {}

        def answer(context: Any, to: To, message: bytes) -> bytes:
            i = int(context.node_config["partition-id"])
            if i not in sites:
                own = federation.alone(i)
                sites[i] = Site(str(i), problem, own, wrappers, lambda run, name: self._memory[int(name)])
            return sites[i].answer(to, message)

        grid = Grid(client_app(answer), [{"partition-id": i} for i in range(len(federation))])
        super().__init__(problem, grid, len(federation), **settings)

    def tree(self) -> dict[str, Any]:
        return {name: slot for memory in self._memory.values() for name, slot in memory.tree().items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for i, memory in self._memory.items():
            memory.load({str(i): tree[str(i)]} if str(i) in tree else {})


@engines("flower")
def flower(
    problem: Problem,
    federation: Federation,
    wrappers: Wrappers,
    *,
    address: Literal["in-process", "superlink"] = "in-process",
    timeout: Seconds = 600.0,
    min_replies: Replies = 1,
    wait: Seconds = 60.0,
) -> Engine:
    """Clients behind Flower, all in this process; for SuperLink and SuperNodes see `polyfed flower init`."""
    if address == "superlink":
        from polyfed.deploy.here import connect

        return connect(problem, federation, wrappers, timeout=timeout, min_replies=min_replies, wait=wait)
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise BadInput(f"The engine 'flower' needs Flower: pip install 'polyfed[flower]' ({error}).") from error
    return InProcess(problem, federation, wrappers, timeout=timeout, min_replies=min_replies, wait=wait)
