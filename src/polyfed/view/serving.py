"""The server of the page: one process, until Ctrl-C."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from polyfed.core.errors import BadInput
from polyfed.view.access import Door
from polyfed.view.app import View
from polyfed.view.listing import Folder


class Server(uvicorn.Server):
    """Lets the pages that listen go when it is to stop, and says when it serves.

    Args:
        view: the page.
        ready: called with the door once it answers.
    """

    def __init__(self, view: View, ready: Callable[[Door], None]) -> None:
        config = uvicorn.Config(
            view.app(), log_level="error", access_log=False, lifespan="off", server_header=False, date_header=False,
            proxy_headers=False, ws="none", timeout_graceful_shutdown=5,
        )  # fmt: skip
        super().__init__(config)
        self.view, self._ready = view, ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.view.watcher.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(self.view.door)


def serve(folder: Path, host: str, port: int, ready: Callable[[Door], None]) -> None:
    """Serve the page of a folder until Ctrl-C or SIGTERM.

    Args:
        folder: what holds the runs.
        host: the address to listen at; another than this machine's own makes a token.
        port: where; 0 for a free one.
        ready: called with the door once the page answers.
    """
    found = Folder(folder)
    found.look()  # so that the first page need not wait
    with listening(host, port) as listener:
        door = Door.at(host, listener.getsockname()[1])
        server = Server(View(found, folder, door), ready)
        with suppress(KeyboardInterrupt):  # which uvicorn passes on once everybody has gone
            server.run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; `BadInput` where it cannot.

    Args:
        host: the address.
        port: where; 0 for a free one.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            if os.name != "nt":  # there it would let another program listen at the same port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise BadInput(
            f"The page cannot listen at {host}:{port}: {error.strerror or error}. Give another --port (0: a free one) "
            "or another --host."
        ) from error
    return found
