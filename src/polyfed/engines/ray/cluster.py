"""The connection to Ray."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from polyfed.core.errors import BadInput


class Cluster:
    """The connection to Ray, which all engines of a process share: made by the first and ended with the last, unless
    the user made it.
    """

    def __init__(self) -> None:
        self._ours, self._users, self._lock = False, 0, threading.Lock()

    def enter(self, address: str, workers: int) -> Any:
        try:
            import ray
        except ImportError as error:
            raise BadInput(f"The engine 'ray' needs Ray: pip install 'polyfed[ray]' ({error}).") from error
        with self._lock:
            if not ray.is_initialized():
                _connect(ray, address, workers)
                self._ours = True
            self._users += 1
        return ray

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._ours and not self._users:
                ray.shutdown()
                self._ours = False


def _connect(ray: Any, address: str, workers: int) -> None:
    where = {"address": address} if address else {"num_cpus": workers or None, "include_dashboard": False}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do, and warns of until it does
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise BadInput(f"engine.address = {address!r}: there is no Ray cluster there; start one with "
                       "'ray start --head', or leave the address out.") from error  # fmt: skip
    finally:
        if threading.current_thread() is threading.main_thread():  # elsewhere Ray has left them alone, too
            for number, handler in handlers.items():
                if callable(handler):
                    signal.signal(number, handler)  # Ray's own would end the run there and then


cluster = Cluster()
