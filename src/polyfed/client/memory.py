"""What clients remember: the arrays of this round's earlier exchanges, and durable state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from polyfed.core.client import ClientState
from polyfed.core.messages import TICKS, Request

_NOTHING: Mapping[str, Tensor] = {}


class Job(NamedTuple):
    """One client's part of a request: its own row, with all arrays it has, and the state to start from."""

    client: int
    request: Request
    state: ClientState | None


@dataclass
class _Slot:
    committed: ClientState | None = None
    pending: dict[int, ClientState] = field(default_factory=dict)  # of one round, by tick


@dataclass
class Memory:
    """The memory of some clients of one model.

    A state that work returns is pending. The next request names the last tick whose reply the server used: in the same
    round the work starts from that tick's state, and in a later one it is committed and the rest forgotten. So a lost
    reply never leaves the two apart, and neither does a server that goes back to the end of the last round.
    """

    _round: int = -1
    _sent: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    _slots: dict[int, _Slot] = field(default_factory=dict)

    def jobs(self, clients: Sequence[int], request: Request) -> Iterator[Job]:
        """Each client's part of a request for several of them."""
        for i, shared in enumerate(self.recall(clients, request)):
            yield self.job(clients[i], replace(request.row(i), shared=shared))

    def job(self, client: int, row: Request) -> Job:
        """One client's part, from its own row with all arrays it has been sent in this round."""
        return Job(client, row, self.settle(client, row))

    def recall(self, clients: Sequence[int], request: Request) -> list[Mapping[str, Tensor]]:
        """For each client the shared arrays of the request, with what this round has sent it before."""
        if request.round != self._round:
            self._round, self._sent = request.round, {}
        merged: dict[int, Mapping[str, Tensor]] = {}  # clients with the same past share one mapping
        for client in clients:
            before = self._sent.get(client, _NOTHING)
            if id(before) not in merged:
                known = all(before.get(name) is a for name, a in request.shared.items())  # as when it is asked again
                merged[id(before)] = before if known else {**before, **request.shared}
            self._sent[client] = merged[id(before)]
        return [self._sent[client] for client in clients]

    def settle(self, client: int, request: Request) -> ClientState | None:
        """What the work may start from; in a new round, what the server used of the last one is committed."""
        slot = self._slots.get(client)
        if slot is None:
            return None
        used = slot.pending.get(-1 if request.folded is None else int(request.folded), slot.committed)
        if any(tick // TICKS < request.round for tick in slot.pending):
            slot.committed, slot.pending = used, {}
        return used

    def keep(self, job: Job, state: ClientState | None) -> None:
        """Hold a new state as pending."""
        if state is not None:
            self._slots.setdefault(job.client, _Slot()).pending[job.request.tick] = state

    def tree(self, clients: Sequence[int] | None = None) -> dict[str, Any]:
        """All durable state as a tree of tensors, for the checkpoint of a simulation; or that of some clients."""
        some = self._slots if clients is None else {c: self._slots[c] for c in clients if c in self._slots}
        return {
            str(client): {
                "pending": {str(tick): dict(state) for tick, state in slot.pending.items()},
                **({} if slot.committed is None else {"committed": dict(slot.committed)}),
            }
            for client, slot in some.items()
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        self._slots = {
            int(client): _Slot(slot.get("committed"), {int(t): s for t, s in slot.get("pending", {}).items()})
            for client, slot in tree.items()
        }
        self._round, self._sent = -1, {}
