"""Engine `flower`: clients behind a Flower Grid, on other machines or, to try an app, all in this process.

A request goes out to all clients at once, the arrays they share as one record; replies are awaited in a loop of our
own, with a deadline. Who fails, is late or has left is missing from the round, and the round goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field

from polyfed.client.memory import Memory
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.fleet import Ids, Population, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Parts
from polyfed.core.patience import Patience

if TYPE_CHECKING:
    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid

    from polyfed.deploy.identity import Names, Who
    from polyfed.deploy.nodes import Letter, Nodes
    from polyfed.deploy.roster import Roster

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Replies = Annotated[int, Field(ge=1)]


class OverGrid(Engine):
    """The clients that a Grid reaches: as many as the parts' data has, or those of rosters that an earlier start saved.

    Args:
        parts: the models and what the experiment says of their data.
        layers: the layers, whose client halves the nodes apply.
        grid: Flower's.
        rosters: a file for each part, in which it is kept who its clients are; None to keep nothing.
        names: who may have which name; by default, whoever says it first.
        timeout: seconds that an exchange may take.
        min_replies: how many clients must have answered by then, or the run stops (it can be resumed).
        wait: seconds that the clients have to appear in, at the start.
    """

    durable = True

    def __init__(
        self,
        parts: Parts,
        layers: Layers,
        grid: Grid,
        *,
        rosters: list[Path] | None = None,
        names: Names | None = None,
        timeout: float = 600.0,
        min_replies: int = 1,
        wait: float = 60.0,
    ) -> None:
        from polyfed.deploy.gathering import gathered
        from polyfed.deploy.identity import Names
        from polyfed.deploy.nodes import Nodes
        from polyfed.run.plan import pool_size

        super().__init__(parts, layers)
        self.timeout, self.min_replies = timeout, min_replies
        self.up = self.down = 0  # bytes of ours that really went
        self.names = names or Names()
        nodes = {
            name: Nodes(grid, len(part.problem.names), timeout, place, self.names)
            for place, (name, part) in enumerate(parts.items())
        }
        of = gathered(nodes, pool_size(parts), wait, self.names, rosters)
        self.reached = {m: Reached(nodes[m], of[m], place, Patience()) for place, m in enumerate(parts)}
        for m, part in parts.items():
            self.population[m] = Population(
                part.problem.names, of[m].examples, of[m].holds, part.problem.dtype, of[m].labelled, part.problem.dims,
                of[m].aside, of[m].allowed,
            )  # fmt: skip

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        came: dict[int, Reply] = {}
        turn = 0
        for client, reply in _Exchange(self, self.reached[request.part], clients, request).replies():
            came[client] = reply
            while turn < len(clients) and clients[turn] in came:  # in the order of the cohort, whoever was first
                yield Stack.of(clients[turn], came[clients[turn]])
                turn += 1
        answered = sum(not reply.error for reply in came.values())
        if answered < min(self.min_replies, len(clients)):
            raise NobodyAnswered(f"Round {request.round}: {answered} of {len(clients)} clients answered "
                                 f"{request.work!r}; engine.min_replies asks for {self.min_replies}.")  # fmt: skip

    def tree(self) -> dict[str, Any]:
        return {name: one.patience.tree() for name, one in self.reached.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, one in self.reached.items():
            one.patience.load(tree.get(name, {}))

    def refusals(self) -> list[str]:
        """Nodes that were refused since this was last asked."""
        return list(dict.fromkeys(why for one in self.reached.values() for why in one.nodes.reports()))

    def limit(self, request: Request) -> int:
        """The length of a valid reply."""
        schema = self.schema(request)
        return Reply({n: torch.empty(shape, dtype=t, device="meta") for n, (shape, t) in schema.items()}).nbytes


@dataclass(frozen=True)
class Reached:
    """One part's clients: the nodes that they are behind, who they are, the part's place, and who is left out."""

    nodes: Nodes
    roster: Roster
    place: int
    patience: Patience


class _Exchange:
    """One request on its way to some clients: who has been sent it, and who is still awaited."""

    def __init__(self, fleet: OverGrid, reached: Reached, clients: Ids, request: Request) -> None:
        from polyfed.deploy.payload import shared_record

        self.fleet, self.nodes, self.roster, self.request = fleet, reached.nodes, reached.roster, request
        self.part_place, self.patience = reached.place, reached.patience
        self.shared = shared_record(request)
        self.limit = fleet.limit(request)
        self.place = {client: i for i, client in enumerate(clients)}
        self.awaited = set(clients)
        self.sent: dict[str, int] = {}  # message id -> client
        self.node: dict[int, Who] = {}  # client -> the node that has been sent its request

    def replies(self) -> Iterator[tuple[int, Reply]]:
        """Replies as they come, then an error for each that did not."""
        from polyfed.deploy.nodes import pause

        yield from self._left_out()
        begun = time.monotonic()
        while self.awaited and time.monotonic() < begun + self.fleet.timeout:
            self.nodes.look()
            self._send()
            yield from self._received()
            yield from self._gone(begun)
            if self.awaited:
                pause(begun)
        for client in sorted(self.awaited):
            self.patience.missed(client, self.request.round)
            yield client, Reply(error=f"no reply within {self.fleet.timeout:g} s")

    def _left_out(self) -> Iterator[tuple[int, Reply]]:
        """Clients that have missed so many deadlines that it is not yet time to ask them again."""
        for client in sorted(self.awaited.difference(self.patience.among(sorted(self.awaited), self.request.round))):
            self.awaited.remove(client)
            yield client, Reply(error=self.patience.why(client))

    def _send(self) -> None:
        """To whoever has not been sent it; again to a client whose node was replaced before it answered."""
        from polyfed.deploy.payload import length

        letters = list(self._letters())
        for i, letter in zip(self.nodes.push(letters), letters, strict=True):
            if i:  # none: the SuperLink did not take it; the next turn tries again
                self.sent[i], self.node[letter.to.client] = letter.to.client, self.nodes.online[letter.node]
                self.fleet.down += sum(length(a) for record in letter.records.values() for a in record.values())

    def _letters(self) -> Iterator[Letter]:
        from polyfed.deploy.app import To
        from polyfed.deploy.nodes import Letter

        for client in sorted(self.awaited):
            node = self.nodes.node(self.roster.clients[client].name)
            if node is not None and self.nodes.online[node] != self.node.get(client):
                to = To(self.roster.run, self.part_place, client)
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
                self.patience.answered(client)
                reply, length = read(message, self.limit)
                self.fleet.up += length
                yield client, reply

    def _gone(self, begun: float) -> Iterator[tuple[int, Reply]]:
        """Clients without a connected node, unless one that has just come may yet turn out to be theirs."""
        from polyfed.deploy.nodes import GRACE

        waits = time.monotonic() < begun + GRACE  # whoever comes and comes
        for client in sorted(self.awaited):
            name = self.roster.clients[client].name
            if self.nodes.node(name) is None and not (waits and self.nodes.may_come(name)):
                self.awaited.remove(client)
                yield client, Reply(error="its node is not connected")


class InProcess(OverGrid):
    """All clients in this process, each behind Flower's client app: what it remembers is the simulation's to save."""

    durable = False

    def __init__(self, parts: Parts, layers: Layers, **settings: Any) -> None:
        from polyfed.deploy.app import To, client_app
        from polyfed.deploy.grid import InProcess as Grid
        from polyfed.deploy.site import Site

        clients = max(len(part.federation) for part in parts.values())
        self._memory = {name: {i: Memory() for i in range(clients)} for name in parts}
        sites: dict[tuple[int, int], Site] = {}
        names = list(parts)

        def answer(context: Any, to: To, message: bytes) -> bytes:
            i = int(context.node_config["partition-id"])
            if (to.model, i) not in sites:
                part, memory = parts[names[to.model]], self._memory[names[to.model]][i]
                own = part.federation.alone(i)
                sites[to.model, i] = Site(str(i), part.problem, own, layers, _always(memory))
            return sites[to.model, i].answer(to, message)

        grid = Grid(client_app(answer), [{"partition-id": i} for i in range(clients)])
        super().__init__(parts, layers, grid, **settings)

    def tree(self) -> dict[str, Any]:
        missed, every = super().tree(), self._memory.items()
        return {p: {**missed[p], **{n: s for m in own.values() for n, s in m.tree().items()}} for p, own in every}

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)
        for part, own in self._memory.items():
            slots = tree.get(part, {})
            for i, memory in own.items():
                memory.load({str(i): slots[str(i)]} if str(i) in slots else {})


def _always(memory: Memory) -> Callable[[str, str], Memory]:
    return lambda run, name: memory


@engines("flower")
def flower(
    parts: Parts,
    layers: Layers,
    *,
    address: Literal["in-process", "superlink"] = "in-process",
    timeout: Seconds = 600.0,
    min_replies: Replies = 1,
    wait: Seconds = 60.0,
) -> Engine:
    """Clients behind Flower, all in this process; for SuperLink and SuperNodes see `polyfed flower init`.

    Args:
        address: 'superlink' is for the app that `polyfed flower init` makes, and refused elsewhere.
        timeout: seconds that an exchange may take; clients that are late are missing from the round.
        min_replies: how many clients must have answered an exchange, or the run stops (it can be resumed).
        wait: seconds that the clients have to appear in, at the start.
    """
    if address == "superlink":  # the server's app makes that engine itself: it has the Grid
        raise BadInput("engine.address = 'superlink' belongs to a Flower deployment: make its app with 'polyfed "
                       "flower init DIR', and start or resume it with 'flwr run DIR'.")  # fmt: skip
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise BadInput(f"The engine 'flower' needs Flower: pip install 'polyfed[flower]' ({error}).") from error
    return InProcess(parts, layers, timeout=timeout, min_replies=min_replies, wait=wait)
