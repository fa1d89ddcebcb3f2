"""Who gets in: by the right name, from no other site's page, and with the token where others reach the machine."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    # styles: plotly sets them on the elements that it makes; script is ours alone, and from files
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# the cookie is for our own pages alone, so this one leads to the list: a redirect from a link in a mail would lack it
WELCOME = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=./">
<title>polyfed view</title><p><a href="./">To the runs</a></p></html>"""


@dataclass(frozen=True)
class Door:
    """What the page is reached by.

    Args:
        host: the address or name that it listens at.
        port: where.
        token: what a stranger does not know; '' where the page is for this machine alone.
    """

    host: str
    port: int
    token: str = ""

    @classmethod
    def at(cls, host: str, port: int) -> Door:
        """The door of an address: a new token unless it is the machine's own."""
        return cls(host, port, "" if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def url(self) -> str:
        """What a person opens."""
        named = socket.gethostname() if _is_any(self.host) else self.host
        shown = f"[{named}]" if ":" in named else named
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def cookie(self) -> str:
        """The name of the cookie; browsers send a host's cookies to all of its ports."""
        return f"polyfed-view-{self.port}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this page, and not a stranger's name that leads here.

        With a token also every address as a number (no name can be bent to it), and the machine's own name.
        """
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port or parts.username is not None or parts.path or parts.query or parts.fragment:
            return False
        if name in LOOPBACK or name == self.host.lower():
            return True
        return bool(self.token) and (_is_address(name) or name in _own_names())

    def opens(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_any(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0]}


class Gate:
    """Around the page: refuses whom the door does not know, and gives every answer its headers.

    Args:
        app: the page.
        door: what it is reached by.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: nobody here speaks it
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.encode(): value.encode() for name, value in HEADERS.items()}
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in own]
                message = {**message, "headers": [*kept, *own.items()]}
            await send(message)

        answer = self._answer(scope)
        await (answer or self.app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """What is said at the door; None where one may go in."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(hosts) != 1 or not self.door.knows(headers["host"]):
            return _no(403, "This page is not called that; open the address that 'polyfed view' has printed.")
        if scope["method"] not in ("GET", "HEAD"):
            return _no(405, "This page only reads.", {"allow": "GET, HEAD"})
        if not _from_here(headers, scope["path"]):
            return _no(403, "Another site's page asked for this; polyfed view answers its own.")
        if not self.door.token:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and len(given) == 1 and self.door.opens(given[0]):
            return self._welcome()
        if self.door.opens(_cookie(headers, self.door.cookie)):
            return None
        return _no(403, "A token is needed: open the whole address that 'polyfed view' has printed.")

    def _welcome(self) -> Response:
        answer = HTMLResponse(WELCOME, headers={"cache-control": "no-store"})
        answer.set_cookie(self.door.cookie, self.door.token, httponly=True, samesite="strict", path="/")
        return answer


def _from_here(headers: Mapping[str, str], path: str) -> bool:
    """Whether our own page asks, or a person who opens it; not another site's script, frame or picture."""
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{headers['host']}", f"https://{headers['host']}"):
        return False
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return opened and path == "/"  # a link on another page leads here


def _cookie(headers: Mapping[str, str], name: str) -> str:
    """Cookies of the machine's other pages come along, in forms that the standard library's parser gives up at."""
    return cookie_parser(headers.get("cookie", "")).get(name, "")


def _no(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{why}\n", status, headers={"cache-control": "no-store", **(headers or {})})
