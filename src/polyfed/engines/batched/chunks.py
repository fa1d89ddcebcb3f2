"""How many clients of a work go at once: found by a trial with one and with two of them, before the first round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from polyfed.client.device import no_memory
from polyfed.core.choices import Choices
from polyfed.core.errors import BadInput
from polyfed.engines.batched.together import Group, Together

MOST = 1024  # clients at once, on a GPU
ON_HOST = 64  # on a CPU: larger stacks leave its caches
SHARE = 0.8  # of the free memory is for a chunk: recorded programs keep some beside it
OTHERS = 0.1  # of a GPU's memory: no more is taken by what is not ours, our own context included


def fitting(one: int, two: int, free: int, lanes: int = 1) -> int:
    """How many clients fit into memory.

    Args:
        one, two: bytes that the work of one client takes at its peak, and that of two.
        free: bytes that there are.
        lanes: how many clients' temporary memory there is at once, where they do not go together.
    """
    each = max(two - one, 1)
    beside = max(one - each, 0) * lanes
    return max(1, min(MOST, int(SHARE * free - beside) // each))


class Chunks:
    """The number of clients that go at once, by model and work.

    Args:
        setting: as many as a user has set, 0 for those that fit.
        device: where the work is done.
        choices: of the run.
    """

    def __init__(self, setting: int, device: torch.device, choices: Choices) -> None:
        self.most = setting or (MOST if device.type == "cuda" else ON_HOST)
        self._tried = not setting and device.type == "cuda"
        self._choices = choices
        self._known: dict[tuple[int, str], int] = {}

    def __call__(self, part: Together, group: Group) -> int:
        """How many clients of a group go at once; where that was found, pieces of one size: one program serves all."""
        clients = len(group.clients)
        most = self._of(part, group)
        return most if not self._tried or clients <= most else -(-clients // -(-clients // most))

    def smaller(self, part: Together, group: Group, size: int) -> None:
        """Memory has run out with so many clients."""
        if size == 1:
            self._less(part, group)
            return
        half = self._known[id(part), group.request.work] = (size + 1) // 2
        said = f"{_up_to(half)} of the work {group.request.work!r} at once: memory ran out with {size}."
        # for this run alone: the next one may find nobody else on the device
        self._choices.make("chunk", part.about(group.request, 0), half, said, lasting=False)

    def _less(self, part: Together, group: Group) -> None:
        """One client alone does not fit."""
        if not part.ways.keep_less():
            raise BadInput("One client alone does not fit into the device's memory; use a smaller batch_size.")
        said = "Activations are computed again for gradients: memory ran out with one client."
        self._choices.make("recompute", part.about(group.request, 0), True, said, lasting=False)

    def _of(self, part: Together, group: Group) -> int:
        name = id(part), group.request.work
        if name not in self._known:
            if not self._tried or group.singly or len(group.clients) == 1:
                return self.most
            about = part.about(group.request, 0)
            if self._choices.known("recompute", about, lambda value: value is True):  # before it was resumed
                part.ways.keep_less()
            found = self._choices.known("chunk", about, _fits)
            found = found or self._trial(part, group, about)
            if not found:
                return self.most
            self._known[name] = found
        return self._known[name]

    def _trial(self, part: Together, group: Group, about: dict[str, Any]) -> int:
        """As many as fit, by what one client and two take; 0 where their work cannot be done so."""
        try:
            part.attempt(group, 1)  # once before: libraries take memory of their own
            one, two = (peak(partial(part.attempt, group, clients)) for clients in (1, 2))
        except Exception as error:
            if not no_memory(error):
                return 0  # the work itself will say why
            found, said, lasting = 1, "two do not fit into memory", False
        else:
            free = available()
            found = fitting(one, two, free, part.ways.lanes(group.request.work))
            said, lasting = f"one more takes {_size(two - one)} of {_size(free)}", undisturbed()
        said = f"{_up_to(found)} of the work {group.request.work!r} at once: {said}."
        self._choices.make("chunk", about, found, said, lasting=lasting)
        return found


def _fits(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _up_to(clients: int) -> str:
    return f"Up to {clients} client{'' if clients == 1 else 's'}"


def _size(bytes: int) -> str:
    return f"{bytes / 1e9:.3g} GB" if bytes >= 1e9 else f"{bytes / 1e6:.3g} MB"


def peak(run: Callable[[], Any]) -> int:
    """Bytes of the GPU that a call takes at its peak, beside what was taken before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def undisturbed() -> bool:
    """Whether hardly any memory of the GPU is somebody else's: so much will be free for a later run, too."""
    free, total = torch.cuda.mem_get_info()
    return bool(total - free - torch.cuda.memory_reserved() < OTHERS * total)


def available() -> int:
    """Bytes of the GPU that nobody uses, and those that torch holds without a use."""
    return int(torch.cuda.mem_get_info()[0]) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
