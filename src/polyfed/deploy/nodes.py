"""Flower's nodes as our clients: who is connected, who is who, messages out and replies in."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from polyfed.core.errors import BadInput, PolyfedError, RunStopped
from polyfed.core.messages import Reply
from polyfed.deploy.app import ASKED_WHO, KIND, To
from polyfed.deploy.payload import SLACK, BadPayload, from_array
from polyfed.deploy.roster import Description, Roster

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message
    from flwr.serverapp import Grid

WATCH = 1.0  # seconds between looks for nodes that came or went
AGAIN = 10.0  # seconds until a node that could not say who it is, is asked again


def pause(since: float) -> None:
    """Between looks for replies, a twentieth of the time waited so far: Flower's own loop sleeps three seconds."""
    time.sleep(min(max(0.05 * (time.monotonic() - since), 0.01), 0.25))


class Letter(NamedTuple):
    """What goes to one node: whom it is for, and the request's records."""

    node: int
    to: To
    records: Mapping[str, ArrayRecord]


class Nodes:
    """Which node is which client, learnt by asking every node that appears who it is.

    A SuperNode that was restarted has a new number at Flower; it says the same name, and so is the same client again.
    """

    def __init__(self, grid: Grid, objectives: int, ttl: float, model: int = 0) -> None:
        self.grid, self.objectives, self.ttl, self.model = grid, objectives, ttl, model
        self.online: set[int] = set()
        self.at: dict[str, int] = {}  # the node that last said a name
        self.found: dict[str, Description] = {}
        self.refused: dict[int, str] = {}  # nodes that cannot take part, and why
        self._known: dict[int, float] = {}  # nodes that have been asked, and until when that is good for
        self._asked: dict[str, int] = {}  # questions on their way: message id -> node
        self._looked = 0.0
        self._lock = threading.RLock()

    def gather(self, clients: int, wait: float, names: Iterable[str] | None = None) -> Roster:
        """Wait until so many clients, or those of these names, have said who they are."""
        wanted = None if names is None else set(names)
        begun = time.monotonic()
        while not (self.found.keys() >= wanted if wanted is not None else len(self.found) >= clients):
            if time.monotonic() > begun + wait:
                if wanted is not None and self.found:
                    break  # a run that goes on does so with those who are there
                raise RunStopped(self._too_few(clients, wait))
            self.look()
            self.pull(())
            pause(begun)
        return Roster.gathered(self.found)

    def _too_few(self, clients: int, wait: float) -> str:
        why = "".join(f" A node was refused: {text}." for text in list(self.refused.values())[:1])
        return f"{len(self.found)} of {clients} clients were there after {wait:g} s; start the others.{why}"

    def node(self, name: str) -> int | None:
        """The node of a client, if it is connected."""
        node = self.at.get(name)
        return node if node in self.online else None

    @property
    def unsettled(self) -> bool:
        """Whether somebody has been asked who it is and has not said so yet."""
        return any(node in self.online for node in self._asked.values())

    def look(self) -> None:
        """See who is connected, now and then; ask those not met before who they are."""
        with self._lock:
            if time.monotonic() - self._looked < WATCH:
                return
            self._looked, self.online = time.monotonic(), set(self.grid.get_node_ids())
            new = sorted(node for node in self.online if self._known.get(node, 0.0) < self._looked)
            self._known |= dict.fromkeys(new, math.inf)
            ids = self.push([Letter(node, To("", self.model, ASKED_WHO), {}) for node in new])
            self._asked |= dict(zip(ids, new, strict=True))

    def push(self, letters: Sequence[Letter]) -> list[str]:
        """Send letters, all in one go; the messages' ids come back in order."""
        from flwr.app import ConfigRecord, Message, RecordDict

        messages = []
        for letter in letters:
            to = ConfigRecord(letter.to._asdict())
            messages.append(Message(RecordDict({"to": to, **letter.records}), letter.node, KIND, ttl=self.ttl))
        return list(self.grid.push_messages(messages)) if messages else []

    def pull(self, ids: Iterable[str]) -> dict[str, Message]:
        """What has come, by the id of the message it answers; who said who it is, is taken in on the way."""
        with self._lock:
            messages = self.grid.pull_messages([*ids, *self._asked])
            came = {message.metadata.reply_to_message_id: message for message in messages}
            for i in [i for i in came if i in self._asked]:
                self._meet(self._asked.pop(i), came.pop(i))
            return came

    def _meet(self, node: int, message: Message) -> None:
        """A node said who it is: a name that is known now belongs to it."""
        reply, _ = read(message, SLACK)
        try:
            if reply.error:
                raise BadInput(reply.error)
            client = Description.of(reply.arrays, self.objectives)
        except BadInput as error:
            self.refused[node] = str(error).rstrip(".")
            self._known[node] = time.monotonic() + AGAIN
            return
        self.refused.pop(node, None)
        self.found[client.name], self.at[client.name] = client, node


def read(message: Message, limit: int) -> tuple[Reply, int]:
    """A client's reply and its length in bytes; whatever is wrong with it becomes the reply's error."""
    if message.has_error():
        return Reply(error=f"Flower's error {message.error.code}: {message.error.reason}"), 0
    try:
        data = from_array(message.content.array_records["reply"]["bytes"], limit)
        return Reply.decode(data, limit + SLACK), len(data)
    except (KeyError, BadPayload, PolyfedError) as error:
        return Reply(error=f"its reply was rejected: {error}"), 0
