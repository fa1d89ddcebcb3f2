"""The page's server: files of the page, the list as it changes, figures of a selection, a front. GET alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from polyfed.core.errors import BadInput
from polyfed.report.page import plotly_script, web
from polyfed.view.access import Door, Gate
from polyfed.view.following import EVERY, Watcher
from polyfed.view.fronts import clients, front
from polyfed.view.listing import Change, Folder
from polyfed.view.selection import selection
from polyfed.view.shelf import Shelf

HEARTBEAT = 15.0  # seconds; whoever has gone is found out by it
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
OF_REPORT = ("page.css", "theme.js", "figures.js", "cards.js")  # shared with the report
SCRIPTS = ("parts.js", "list.js", "chosen.js", "path.js", "sketch.js", "point.js", "front.js", "view.js")
OWN = ("index.html", "view.css", "icon.svg", *SCRIPTS)


@dataclass
class View:
    """The page of a folder.

    Args:
        folder: its runs.
        shown: the folder as a person types it.
        door: who gets in.
        every: seconds between looks at the folder.
    """

    folder: Folder
    shown: Path
    door: Door
    every: float = EVERY

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.folder)
        self.watcher = Watcher(self.folder, self.every)
        self._files = {name: _File(name, web(name)) for name in OF_REPORT}
        self._files |= {name: _File(name, (files("polyfed.view") / "web" / name).read_text("utf-8")) for name in OWN}
        self._files["plotly.js"] = _File("plotly.js", plotly_script())

    def app(self) -> Gate:
        """What a server serves."""
        routes = [
            Route("/", self._file),
            Route("/web/{name}", self._file),
            Route("/favicon.ico", self._icon),
            Route("/api/events", self._events),
            Route("/api/runs", self._answers(self._selection)),
            Route("/api/front", self._answers(self._front)),
            Route("/api/clients", self._answers(self._clients)),
        ]
        return Gate(Starlette(routes=routes), self.door)

    async def _file(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("name", "index.html"))
        if file is None:
            return _said(404, {"error": "There is no such file."})
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers, media_type=file.kind)

    async def _icon(self, request: Request) -> Response:
        """A browser that has not read the page yet asks for its icon here."""
        return Response(self._files["icon.svg"].data, media_type=KINDS[".svg"])

    async def _events(self, request: Request) -> Response:
        """The list, and then what changes in it, for as long as the page is open."""
        if self.watcher.full:
            return _said(503, {"error": "Too many pages are open; close some."})
        return StreamingResponse(self._told(), headers={"cache-control": "no-store"}, media_type="text/event-stream")

    async def _told(self) -> AsyncIterator[str]:
        async with self.watcher.listening() as listener:
            first = True
            while True:
                change = await listener.next(HEARTBEAT)
                if listener.over:
                    return
                yield ": still here\n\n" if change is None else _event(change, first, str(self.shown), self.folder.cut)
                first = False

    def _answers(self, make: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Any]:
        """An answer that is made in a thread; what a person can mend is said."""

        async def answer(request: Request) -> Response:
            try:
                return _said(200, await run_in_threadpool(make, request))
            except BadInput as error:
                return _said(404, {"error": str(error)})

        return answer

    def _selection(self, request: Request) -> dict[str, Any]:
        return selection(self.shelf, request.query_params.getlist("run"), self.shown)

    def _front(self, request: Request) -> dict[str, Any]:
        return front(self.shelf, request.query_params.get("front", ""), self.shown)

    def _clients(self, request: Request) -> dict[str, Any]:
        return clients(self.shelf, request.query_params.get("run", ""))


class _File:
    """A file of the page, in memory."""

    def __init__(self, name: str, text: str) -> None:
        self.data = text.encode()
        self.tag = f'"{hashlib.sha256(self.data).hexdigest()[:24]}"'
        self.kind = KINDS[Path(name).suffix]


def _event(change: Change, first: bool, folder: str, cut: bool) -> str:
    data = {"rows": change.rows, "groups": change.groups, "gone": change.gone}
    more = {"whole": True, "folder": folder, "cut": cut} if first else {}
    return f"data: {json.dumps(data | more, allow_nan=False)}\n\n"  # JSON has no line ends


def _said(status: int, data: dict[str, Any]) -> Response:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Response(text, status, {"cache-control": "no-store"}, "application/json")
