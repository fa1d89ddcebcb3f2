"""Flower's nodes as our clients: who is connected, who is who, messages out and replies in."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from polyfed.core.errors import PolyfedError, cut, shown
from polyfed.core.messages import BadMessage, Reply
from polyfed.deploy.app import ASKED_WHO, KIND, To
from polyfed.deploy.identity import Names, Who
from polyfed.deploy.payload import SLACK, BadPayload, from_array
from polyfed.deploy.pulls import Pulls
from polyfed.deploy.roster import Description

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message
    from flwr.serverapp import Grid

WATCH = 1.0  # seconds between looks for nodes that came or went
AGAIN = 10.0  # seconds until a node that could not say who it is, is asked again; twice as long each time
GRACE = 20.0  # seconds that an exchange waits for a node that may turn out to be one of its clients
UNANSWERED = 256  # nodes that are asked who they are at a time
REPORTS = 20  # refusals that a round tells of
REMEMBERED = 1000  # nodes that were refused
GONE = {3, 4, 5}  # Flower's codes where a request, its reply or their node is not there any more
REASON = 200  # characters of what Flower or a node says went wrong


def pause(since: float) -> None:
    """Between looks for replies, a twentieth of the time waited so far: Flower's own loop sleeps three seconds."""
    time.sleep(min(max(0.05 * (time.monotonic() - since), 0.01), 0.25))


class Letter(NamedTuple):
    """What goes to one node: whom it is for, and the request's records."""

    node: int
    to: To
    records: Mapping[str, ArrayRecord]


@dataclass
class Question:
    """Who are you: whom that was asked, when, and whether it was told of that no answer came."""

    node: int
    asked: float
    told: bool = False


class Nodes:
    """Which node is which client, learnt by asking every node that appears who it is.

    What it says is one thing; whether it may have that name, `names` decides by what the SuperLink knows of it. Who is
    refused is told of (`reports`), and costs nothing: no exchange waits for somebody who cannot be its client.
    """

    def __init__(self, grid: Grid, objectives: int, ttl: float, model: int = 0, names: Names | None = None) -> None:
        self.grid, self.objectives, self.ttl, self.model = grid, objectives, ttl, model
        self.names, self._pulls = names or Names(), Pulls(grid)
        self.online: dict[int, Who] = {}
        self.at: dict[str, int] = {}  # the node that has a name
        self.found: dict[str, Description] = {}
        self.refused: dict[int, str] = {}  # nodes that cannot take part, and why
        self._reports: dict[int, str] = {}  # by node, what has not been told yet
        self._known: dict[int, float] = {}  # nodes that have been asked, and until when that is good for
        self._tries: dict[int, int] = {}
        self._asked: dict[str, Question] = {}  # questions on their way, by message id
        self._looked = 0.0
        self._lock = threading.RLock()

    def node(self, name: str) -> int | None:
        """The node of a client, if it is connected and the name is still its own."""
        node = self.at.get(name)
        return node if node in self.online and self.names.has(name, self.online[node]) else None

    def may_come(self, name: str) -> bool:
        """Whether somebody who has just been asked who it is may turn out to be this client."""
        late = time.monotonic() - GRACE
        new = [self.online[q.node] for q in self._asked.values() if q.asked > late and q.node in self.online]
        return any(self.names.may_be(name, who) for who in new)

    def look(self) -> None:
        """See who is connected, now and then; ask those not met before who they are."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked < WATCH:
                return
            self._looked, self.online = now, {info.node_id: Who.of(info) for info in self.grid.get_nodes()}
            self.names.see(self.online.values())
            self._forget(now)
            room = max(UNANSWERED - sum(now < q.asked + GRACE for q in self._asked.values()), 0)
            ours = set(self.names.key.values())  # who has a name goes before strangers
            new = [node for node in self.online if self._known.get(node, 0.0) < now]
            new = sorted(new, key=lambda node: (self.online[node].key not in ours, node))[:room]
            self._known |= dict.fromkeys(new, math.inf)
            ids = self.push([Letter(node, To("", self.model, ASKED_WHO), {}) for node in new])
            self._asked |= {i: Question(node, now) for i, node in zip(ids, new, strict=True) if i}
            self._known |= {node: now for i, node in zip(ids, new, strict=True) if not i}  # not taken: again

    def _forget(self, now: float) -> None:
        """Questions whose node has left, or that it lets lie, which is told of."""
        for i, q in list(self._asked.items()):
            if q.node not in self.online or now > q.asked + self.ttl:
                del self._asked[i]
                self._known[q.node] = self._again(q.node)
            elif not q.told and now > q.asked + GRACE:
                q.told = True
                self._refuse(q.node, f"it has not said who it is for {GRACE:g} s")
        for node in [node for node in self._known if node not in self.online]:
            del self._known[node]  # one that comes back is asked again
            self._tries.pop(node, None)
        for node in list(self.refused)[:-REMEMBERED]:
            del self.refused[node]

    def _again(self, node: int) -> float:
        self._tries[node] = tries = self._tries.get(node, -1) + 1
        return time.monotonic() + AGAIN * 2.0 ** min(tries, 10)

    def _refuse(self, node: int, why: str) -> None:
        who = self.online.get(node, f"node {node}")
        if self.refused.get(node) != why and len(self._reports) < REPORTS:
            self._reports[node] = f"{who} was refused: {why}"
        self.refused[node] = why

    def tell(self, node: int, what: str) -> None:
        """Say something of a node with the next reports."""
        self._reports[node] = what

    def reports(self) -> list[str]:
        """Who has been refused since this was last asked, and is still."""
        with self._lock:
            told, self._reports = list(self._reports.values()), {}
            return told

    def push(self, letters: Sequence[Letter]) -> list[str]:
        """Send letters, all in one go; the messages' ids come back in order."""
        from flwr.app import ConfigRecord, Message, RecordDict

        messages = []
        for letter in letters:
            to = ConfigRecord(letter.to._asdict())
            messages.append(Message(RecordDict({"to": to, **letter.records}), letter.node, KIND, ttl=self.ttl))
        ids = list(self.grid.push_messages(messages)) if messages else []
        return ids or [""] * len(messages)  # Flower's answer when it takes none

    def pull(self, ids: Iterable[str]) -> dict[str, Message | Exception]:
        """What has come, by the id of the message it answers; who said who it is, is taken in on the way."""
        with self._lock:
            came = self._pulls([*ids, *self._asked])
            for i in [i for i in came if i in self._asked]:
                self._meet(self._asked.pop(i).node, came.pop(i))
            return came

    def _meet(self, node: int, message: Message | Exception) -> None:
        """A node said who it is: the name is its own, unless it may not have it."""
        reply, _ = read(message, SLACK)
        try:
            if reply.error:
                raise BadMessage(reply.error)
            client = Description.of(reply.arrays, self.objectives)
            if node not in self.online:
                raise BadMessage("it has left")
            if why := self.names.claim(client.name, self.online[node], client.most):
                raise BadMessage(f"it says that it is {shown(client.name)}; {why}")
        except BadMessage as error:
            self._refuse(node, cut(str(error).rstrip("."), REASON))
            self._known[node] = self._again(node)
            return
        for table in (self.refused, self._tries, self._reports):
            table.pop(node, None)
        before = self.at.get(client.name, node)
        if before != node and before in self.online:  # bind = false, or the operator's word against who came first
            self._reports[node] = f"{self.online[node]} has the name {shown(client.name)} now, which node {before} had"
        self.found[client.name], self.at[client.name] = client, node


def read(message: Message | Exception, limit: int) -> tuple[Reply, int]:
    """A client's reply and its length in bytes; whatever is wrong with it becomes the reply's error."""
    if isinstance(message, Exception):
        why = cut(f"{type(message).__name__}: {message}", REASON)
        return Reply(error=f"its reply was rejected: Flower cannot hand it over ({why})"), 0
    try:
        if message.has_error():
            why = f"Flower's error {message.error.code}: {cut(str(message.error.reason), 1000)}"
            return Reply(error=f"its node left or was too late ({why})" if message.error.code in GONE else why), 0
        data = from_array(message.content.array_records["reply"]["bytes"], limit)
        return Reply.decode(data, limit + SLACK), len(data)
    except (BadPayload, PolyfedError) as error:
        return Reply(error=f"its reply was rejected: {cut(str(error), 1000)}"), 0
    except Exception as error:  # a message of Flower's in which a stranger has left something out
        why = cut(f"{type(error).__name__}: {error}", REASON)
        return Reply(error=f"its reply was rejected: it holds no bytes of ours ({why})"), 0
