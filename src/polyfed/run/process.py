"""The process that a run has to itself: one torch thread, and the first Ctrl-C lets the round finish."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


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


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM lets the round finish; the second stops at once, at the last checkpoint."""
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        print("\nStopping after this round; once more stops at once.", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
