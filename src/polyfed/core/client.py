"""The client's side of the door: what work sees of a client, what a client remembers, what is wrapped around work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from polyfed.core.messages import TICKS, Request
from polyfed.core.problem import Batch

if TYPE_CHECKING:
    from polyfed.core.problem import Problem

State = Mapping[str, Tensor]
Carry = TypeVar("Carry")
_NOTHING: Mapping[str, Tensor] = {}


class Client(Protocol):
    """A client as its work sees it. An engine may run many at once, so nothing here is a Python decision on data.

    n is the number of training examples and holds says, per objective, whether the client has data for it (1 or 0);
    key seeds all its randomness of this round; scratch may be kept until the next request, or not. The gradient
    operators and the loop belong to the engine: one client after another with plain autograd, or a hundred as one
    program.
    """

    problem: Problem
    id: int
    key: Any
    common_key: Any
    n: Any
    holds: Tensor
    scratch: dict[str, Any]

    def data(self, split: str = "train") -> Batch:
        """All rows of a split at once, for work that needs no gradients of the model."""
        ...

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient of sum_s omega_s f_s over the objectives held, the losses f (M,), and the buffers after."""
        ...

    def jacobian(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of all objectives (M, d), 0 for those not held, the losses (M,), and the buffers after."""
        ...

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        """Sums over the batch of every objective's loss and metrics (K,), in evaluation mode."""
        ...

    def loop(
        self,
        step: Callable[[Carry, Batch, int], Carry],
        carry: Carry,
        *,
        batch_size: int,
        steps: int = 0,
        epochs: int = 0,
        split: str = "train",
        shuffle: bool = True,
    ) -> Carry:
        """Fold `step` over batches: so many steps, or so many passes over the rows; batch_size 0 is all rows."""
        ...


Perform = Callable[[Client, Request, State | None], tuple[Mapping[str, Any], State | None]]
Around = Callable[[Perform], Perform]


def perform(client: Client, request: Request, state: State | None) -> tuple[Mapping[str, Any], State | None]:
    """Do what the request asks for."""
    from polyfed.core.work import works

    return works[request.work](client, request, state)


def finite(inner: Perform) -> Perform:
    """Refuse to send what is not a number."""

    def checked(client: Client, request: Request, state: State | None) -> tuple[Mapping[str, Any], State | None]:
        arrays, state = inner(client, request, state)
        for name, value in arrays.items():
            if not all_finite(torch.as_tensor(value)):
                raise FloatingPointError(f"{name!r} holds NaN or infinity")
        return arrays, state

    return checked


def all_finite(value: Tensor) -> bool:
    """One pass and one number, whatever the size: NaN and infinity survive a minimum and a maximum."""
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = torch.aminmax(value)
    return bool(torch.isfinite(low) & torch.isfinite(high))


@dataclass(frozen=True)
class Wrappers:
    """Functions around a client's work, applied by every engine: attack, finite check, then clip, noise and mask."""

    attacks: tuple[Around, ...] = ()
    guards: tuple[Around, ...] = ()
    checked: bool = True  # the server's own measurements may be infinite: that is worth knowing

    def wrap(self, inner: Perform = perform) -> Perform:
        for around in (*self.attacks, *((finite,) if self.checked else ()), *self.guards):
            inner = around(inner)
        return inner


@dataclass
class _Slot:
    committed: State | None = None
    pending: dict[int, State] = field(default_factory=dict)  # of one round, by tick


@dataclass
class Memory:
    """What clients remember: the arrays of this round's earlier exchanges, and durable state.

    A state that work returns is pending. The next request names the last tick whose reply the server used: in the same
    round the work starts from that tick's state, and in a later one it is committed and the rest forgotten. So a lost
    reply never leaves the two apart, and neither does a server that goes back to the end of the last round.
    """

    _round: int = -1
    _sent: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    _slots: dict[int, _Slot] = field(default_factory=dict)

    def recall(self, clients: Sequence[int], request: Request) -> list[Mapping[str, Tensor]]:
        """For each client the shared arrays of the request, with what this round has sent it before."""
        if request.round != self._round:
            self._round, self._sent = request.round, {}
        merged: dict[int, Mapping[str, Tensor]] = {}  # clients with the same past share one mapping
        for client in clients:
            before = self._sent.get(client, _NOTHING)
            if id(before) not in merged:
                merged[id(before)] = {**before, **request.shared}
            self._sent[client] = merged[id(before)]
        return [self._sent[client] for client in clients]

    def settle(self, client: int, request: Request) -> State | None:
        """What the work may start from; in a new round, what the server used of the last one is committed."""
        slot = self._slots.get(client)
        if slot is None:
            return None
        used = slot.pending.get(-1 if request.folded is None else int(request.folded), slot.committed)
        if any(tick // TICKS < request.round for tick in slot.pending):
            slot.committed, slot.pending = used, {}
        return used

    def keep(self, client: int, request: Request, state: State | None) -> None:
        """Hold a new state as pending."""
        if state is not None:
            self._slots.setdefault(client, _Slot()).pending[request.tick] = state

    def tree(self) -> dict[str, Any]:
        """All durable state as a tree of tensors, for the checkpoint of a simulation."""
        return {
            str(client): {
                "pending": {str(tick): dict(state) for tick, state in slot.pending.items()},
                **({} if slot.committed is None else {"committed": dict(slot.committed)}),
            }
            for client, slot in self._slots.items()
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        self._slots = {
            int(client): _Slot(slot.get("committed"), {int(t): s for t, s in slot.get("pending", {}).items()})
            for client, slot in tree.items()
        }
        self._round, self._sent = -1, {}
