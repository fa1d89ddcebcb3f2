"""The process that a run has to itself: one torch thread, and signals that leave nothing half done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyfed.core import interrupt


def gpus() -> list[int]:
    """Those in use: asking the others for their random state would begin to use them."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]  # torch has no types here


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread (the same bits whatever the machine's load), and the caller's random state left alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=gpus()):
            yield
    finally:
        torch.set_num_threads(threads)


class Interruptions:
    """Whether the run has been asked to end, and what the signals do.

    The first Ctrl-C lets the round finish. The second stops at once, and so does SIGTERM, which nobody sends twice: the
    work is given up with a KeyboardInterrupt, and the round has not been. While a finished round is written down,
    SIGTERM waits.
    """

    def __init__(self) -> None:
        self._seen = self._held = self._pending = False

    def __call__(self) -> bool:
        return self._seen

    def handle(self, number: int, frame: object) -> None:
        """What happens at a signal."""
        first, self._seen = not self._seen, True
        if number == signal.SIGTERM and self._held:
            self._pending = True
        elif number == signal.SIGINT and first:
            print("\nStopping after this round; once more stops at once.", file=sys.stderr)
        else:
            self._stop()

    def hold(self) -> None:
        """What follows should not be left half done."""
        self._held = True

    def release(self) -> None:
        """What follows may be given up."""
        self._held = False
        if self._pending:
            self._stop()

    def _stop(self) -> None:
        interrupt.give_up()  # in other threads, too
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruptions]:
    """Signals end the run as `Interruptions` says; elsewhere than in the main thread, they are somebody else's."""
    interrupt.begin()
    found = Interruptions()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {s: signal.signal(s, found.handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found
    finally:
        for number, old in before.items():
            signal.signal(number, old)
