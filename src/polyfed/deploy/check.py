"""`polyfed flower check`: what a stranger finds who knows a federation's address and its CA certificate."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import socket
import ssl
import threading
import tomllib
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from polyfed.core.errors import BadInput, cut, shown
from polyfed.deploy.proxy import SUPERLINK, Address

SECONDS = 10.0
REFUSED = (401, 403, 404)
UNCERTIFIED = 400  # nginx, to who shows no client certificate
CONTROL = ("list-runs", "start-run", "register-node", "list-nodes")
OTHERS = ("/v1/runtime/pull-task-input", "/openapi.json", "/docs", "/health")


class Finding(NamedTuple):
    """One thing that was tried: whether it is as it should be, and what came."""

    good: bool
    text: str


class Place(NamedTuple):
    """Where a federation is reached from outside, the certificate that its clients trust, the SuperLink's own port."""

    address: Address
    ca: Path
    superlink: int


def check(folder: Path, address: str | None = None, ca: Path | None = None) -> Iterator[Finding]:
    """Try, from this machine, what a stranger could.

    Args:
        folder: of `polyfed flower init`, whose `.flwr/config.toml` says where the federation is.
        address: HOST:PORT instead of what it says.
        ca: the CA certificate instead of what it says.
    """
    place = _place(folder, address, ca)
    certified = _tls(place)
    yield certified
    yield _no_plain_text(place)
    if not certified.good:
        return
    if wants := _wants_certificates(place):
        yield Finding(True, "client certificates: asked for; what follows is tried without one")
    refused = (*REFUSED, UNCERTIFIED) if wants else REFUSED
    yield from _strangers(place, refused)
    for path in (*(f"/v1/control/{name}" for name in CONTROL), *OTHERS):
        yield _refused(path, partial(_asked, place, path), refused)
    yield _port(place)
    yield from _names(folder)


def _place(folder: Path, address: str | None, ca: Path | None) -> Place:
    path = folder / ".flwr" / "config.toml"
    if address and ca:
        return Place(Address.of(address), ca, SUPERLINK)
    try:
        links = tomllib.loads(path.read_text(encoding="utf-8"))["superlink"]
        said, inside = links["outside"], Address.of(str(links["federation"]["address"]))
        return Place(
            Address.of(address or str(said["address"])), ca or Path(str(said["root-certificates"])), inside.port
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{shown(str(path))} should have [superlink.outside] with address and root-certificates, as 'polyfed "
            f"flower init' writes it; or give --address and --ca. Found {type(error).__name__}: {error}."
        ) from error


def _line(place: Place, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(*place.address, timeout=SECONDS)
    return http.client.HTTPSConnection(*place.address, timeout=SECONDS, context=context)


def _context(place: Place) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(place.ca))
    except OSError as error:
        raise BadInput(f"The CA certificate {shown(str(place.ca))} cannot be read: {error}.") from error


def _tls(place: Place) -> Finding:
    try:
        with (
            socket.create_connection(place.address, SECONDS) as plain,
            _context(place).wrap_socket(plain, server_hostname=place.address.host) as line,
        ):
            return Finding(True, f"TLS: {place.address} shows a certificate of your CA ({line.version()})")
    except OSError as error:
        return Finding(False, f"TLS: no certificate of your CA at {place.address}: {cut(str(error))}")


def _no_plain_text(place: Place) -> Finding:
    try:
        status = _asked(place, "/health", tls=False)
    except (OSError, http.client.HTTPException):
        return Finding(True, "without TLS: no answer")
    return Finding(status >= 400, f"without TLS: answered with {status}")


def _asked(
    place: Place, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, tls: bool = True
) -> int:
    """The status of an answer, which has to be there in time: a socket's own timeout is one for each of its bytes."""
    line = _line(place, _context(place) if tls else None)
    kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    ended: queue.SimpleQueue[int | OSError | http.client.HTTPException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            line.request("POST" if path.startswith("/v1/") else "GET", path, body, {**kind, **(headers or {})})
            ended.put(line.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            ended.put(error)
        finally:
            line.close()

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = ended.get(timeout=SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {SECONDS:g} s") from None
    if isinstance(found, int):
        return found
    raise found


def _wants_certificates(place: Place) -> bool:
    try:
        return _asked(place, "/") == UNCERTIFIED
    except (OSError, http.client.HTTPException):
        return False  # whatever it is, what is tried next says so


def _refused(what: str, asked: Callable[[], int], refused: Container[int]) -> Finding:
    try:
        status = asked()
    except TimeoutError:  # somebody listens, and may be at work
        return Finding(False, f"not known: {what} (no answer within {SECONDS:g} s)")
    except (OSError, http.client.HTTPException) as error:
        return Finding(True, f"closed: {what} ({cut(str(error) or type(error).__name__)})")
    good = status in refused
    return Finding(good, f"{'closed' if good else 'OPEN'}: {what} (answered with {status})")


def _strangers(place: Place, refused: Container[int]) -> Iterator[Finding]:
    """A key that nobody has registered: it may neither register itself nor be let in."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    private = ec.generate_private_key(ec.SECP384R1())
    key = public_key_to_bytes(private.public_key())

    def signed(path: str, request: Any) -> Callable[[], int]:
        time = now().isoformat()
        proof = {
            "flwr-public-key": base64.b64encode(key).decode(), "flwr-timestamp": time,
            "flwr-signature": base64.b64encode(sign_message(private, time.encode())).decode(),
        }  # fmt: skip
        return lambda: _asked(place, path, request.SerializeToString(), proof)

    register = signed("/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=key))
    yield _refused("/v1/fleet/register-node, by a new key", register, refused)
    try:
        status = signed("/v1/fleet/activate-node", ActivateNodeRequest(public_key=key, heartbeat_interval=30.0))()
    except (OSError, http.client.HTTPException) as error:
        yield Finding(False, f"/v1/fleet/activate-node: no answer, so that no node gets in ({cut(str(error))})")
        return
    if status in (403, 404):
        yield Finding(False, f"/v1/fleet/activate-node is not forwarded ({status}): no node gets in")
    else:
        word = "closed" if status >= 400 else "OPEN"
        yield Finding(status >= 400, f"{word}: a SuperNode with an unregistered key (answered with {status})")


def _port(place: Place) -> Finding:
    """The SuperLink itself, which should listen on loopback only."""
    if place.address.port == place.superlink:
        return Finding(False, f"OPEN: {place.address} has the SuperLink's own port; SuperNodes should meet the proxy")
    where = f"the SuperLink's own port, {place.address.host}:{place.superlink}"
    try:
        socket.create_connection((place.address.host, place.superlink), SECONDS).close()
    except OSError:
        return Finding(True, f"closed: {where}")
    return Finding(False, f"OPEN: {where}; start it with --host 127.0.0.1")


def _names(folder: Path) -> Iterator[Finding]:
    """Whether a name stays with its key: what the app's configuration says, and what the runs have kept."""
    path = folder / "pyproject.toml"
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding(False, f"names: {shown(str(path))} cannot be read ({type(error).__name__}: {cut(str(error))})")
        return
    bind = config.get("bind", True) is True
    yield Finding(bind, f"names: {'bound to keys' if bind else 'NOT bound to keys'} (bind in pyproject.toml)")
    kept = Path(str(config.get("out", ""))) / "names.json"
    if not kept.is_file():
        return
    try:
        bound = json.loads(kept.read_text(encoding="utf-8"))
        numbers = [name for name, key in bound.items() if not str(key).startswith("SHA256:")]
        text = f"names: {len(bound)} in {kept}, " + (
            f"without a key: {shown(numbers)}" if numbers else "each with a key"
        )
        yield Finding(not numbers, text)
    except (ValueError, AttributeError) as error:
        yield Finding(False, f"names: {kept} cannot be read ({cut(str(error))})")
