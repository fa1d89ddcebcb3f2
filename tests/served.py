"""`polyfed view` in a thread of the test, and requests to it as somebody hostile would write them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polyfed.view.access import Door
from polyfed.view.app import View
from polyfed.view.listing import Folder
from polyfed.view.serving import Server, listening


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """A page that is being served."""

    view: View
    server: Server

    @property
    def port(self) -> int:
        return self.view.door.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """One request, its path and headers as they are; Host is the right one unless it is given ('' for none)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        try:
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def served(folder: Path, host: str = "127.0.0.1", every: float = 0.1) -> Iterator[Served]:
    """Serve the page of a folder.

    Args:
        folder: what holds the runs.
        host: as `--host` says; the socket is this machine's own all the same.
        every: seconds between looks.
    """
    found = Folder(folder)
    found.look()
    ready = threading.Event()
    with listening("127.0.0.1", 0) as listener:
        view = View(found, folder, Door.at(host, listener.getsockname()[1]), every)
        server = Server(view, lambda _: ready.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(20)
            yield Served(view, server)
        finally:
            server.should_exit = True
            view.watcher.close()
            thread.join(20)
