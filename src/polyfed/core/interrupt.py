"""Whether long work should be given up: signals reach the main thread alone, and compiled loops not at all."""

from __future__ import annotations

import threading

_stop = threading.Event()


def give_up() -> None:
    """Work in this process, in whatever thread, ends where it next looks up."""
    _stop.set()


def begin() -> None:
    """Work may begin again."""
    _stop.clear()


def may_go_on() -> None:
    """For long loops to call every now and then: KeyboardInterrupt when the work is to be given up."""
    if _stop.is_set():
        raise KeyboardInterrupt
