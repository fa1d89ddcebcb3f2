"""The certificates that the app's scripts make: the server's is the server's, a client's is a client's and no more.

And what nginx hands on of what it was sent: the ten routes, as they are written, and nothing else.
"""

from __future__ import annotations

import http.client
import http.server
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from loopback import free_port

from polyfed.deploy import proxy
from polyfed.deploy.proxy import Address, write_proxy

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl here: make nginx")
SERVER = Address("fed.example.org", 9092)
ASKS_FOR_MORE = ("subjectAltName=DNS:fed.example.org,DNS:localhost", "extendedKeyUsage=serverAuth")


def done(command: str, folder: Path) -> str:
    ended = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder, in which two clients' requests lie beside their keys, each as <name>.key."""
    folder = tmp_path_factory.mktemp("certificates") / "proxy"
    write_proxy(folder, SERVER, True)
    done("sh certificates.sh", folder)
    for name in ("clinic-a", "clinic-b"):
        done(f"sh node.sh {name} && mv node.key {name}.key", folder)
    more = " ".join(f"-addext {one}" for one in ASKS_FOR_MORE)
    done(f"openssl req -new -key clinic-b.key -subj /CN=fed.example.org {more} -out clinic-b.csr", folder)
    done("sh proxy/certificates.sh proxy/clinic-a.csr proxy/clinic-b.csr", folder.parent)
    return folder


def serves_as(folder: Path, name: str, purpose: str) -> bool:
    words = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "-purpose", purpose, f"{name}.pem"]
    return subprocess.run(words, cwd=folder, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("name", "server", "client"), [("server", True, False), ("clinic-a", False, True), ("clinic-b", False, True)]
)
def test_a_certificate_is_for_one_purpose(made: Path, name: str, server: bool, client: bool) -> None:
    """A client's, whatever its request asked for, does not pass for the server's."""
    assert serves_as(made, name, "sslserver") == server
    assert serves_as(made, name, "sslclient") == client
    text = done(f"openssl x509 -in {name}.pem -noout -subject -ext subjectAltName", made)
    assert ("fed.example.org" in text) == server
    assert (f"client {name}" in text) == client


def test_every_client_has_a_key_of_its_own(made: Path) -> None:
    keys = {done(f"openssl x509 -in {name}.pem -noout -pubkey", made) for name in ("clinic-a", "clinic-b", "server")}
    assert len(keys) == 3


def greeted(made: Path, name: str) -> bool:
    """Whether a SuperNode that trusts the CA takes who shows this certificate for the server."""
    trusts, shows = ssl.create_default_context(cafile=str(made / "ca.crt")), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shows.load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusts.wrap_bio(down, up, server_hostname="localhost")
    server = shows.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            return True
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
    return False


def test_a_client_that_plays_the_server_is_found_out(made: Path) -> None:
    assert greeted(made, "server")
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        greeted(made, "clinic-a")


def test_a_name_that_is_no_word_is_refused(made: Path) -> None:
    shutil.copy(made / "clinic-a.csr", made / "a=b.csr")
    ended = subprocess.run(["sh", "certificates.sh", "a=b.csr"], cwd=made, capture_output=True, text=True)
    assert (ended.returncode, "letters, digits" in ended.stderr) == (2, True)
    assert not (made / "a=b.pem").exists()


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Stands in for Flower's: what it was asked for is what it answers."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Path]]:
    """nginx before something that stands in for the SuperLink: its port, and the folder of certificates."""
    if NGINX is None:
        pytest.skip("there is no nginx here: make nginx")
    behind, port, folder = free_port(), free_port(), tmp_path / "proxy"
    monkeypatch.setattr(proxy, "SUPERLINK", behind)
    write_proxy(folder, Address("127.0.0.1", port), True)
    for command in ("sh certificates.sh", "sh node.sh node", "sh certificates.sh node.csr"):
        done(command, folder)
    link = http.server.HTTPServer(("127.0.0.1", behind), SuperLink)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(folder / "server.pem", folder / "server.key")
    link.socket = own.wrap_socket(link.socket, server_side=True)
    thread = threading.Thread(target=link.serve_forever, args=[0.05], daemon=True)
    thread.start()
    nginx = subprocess.Popen([NGINX, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"])
    try:
        yield port, folder
    finally:
        nginx.terminate()
        nginx.wait()
        link.shutdown()
        link.server_close()


def asked(port: int, folder: Path, path: str, certificate: str | None = "node") -> tuple[int, str]:
    trusts = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if certificate:
        trusts.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    for _ in range(100):  # nginx may not listen yet
        line = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trusts)
        with suppress(ConnectionRefusedError):
            line.putrequest("POST", path)  # as it is written: nothing is put right here
            line.putheader("content-length", "0")
            line.endheaders()
            answer = line.getresponse()
            found = answer.status, answer.read().decode()
            line.close()
            return found
        time.sleep(0.05)
    raise TimeoutError("nginx does not listen")


def test_what_is_handed_on_is_the_route_and_not_what_was_sent(served: tuple[int, Path]) -> None:
    for path in ("get-run", "get-run?run=1", "/get-run", "./get-run", "../fleet/get-run", "%67et-run"):
        assert asked(*served, f"/v1/fleet/{path}") == (200, "/v1/fleet/get-run"), path
    for path in ("/v1/control/../fleet/get-run", "/v1/control/start-run/%2e%2e/%2e%2e/fleet/get-run"):
        assert asked(*served, path) == (200, "/v1/fleet/get-run"), path
    for path in ("/v1/fleet/../control/start-run", "/v1/fleet/get-run/../../control/start-run", "/v1/fleet/get-run/x"):
        assert asked(*served, path)[0] == 403, path


def test_a_client_shows_a_clients_certificate(served: tuple[int, Path]) -> None:
    assert asked(*served, "/v1/fleet/get-run", certificate=None)[0] == 400
    assert asked(*served, "/v1/fleet/get-run", certificate="server")[0] == 400  # the CA's, and no client's
    assert asked(*served, "/v1/fleet/get-run")[0] == 200
