"""What `polyfed flower init` writes, and what `polyfed flower check` says where there is nothing to check."""

from __future__ import annotations

import re
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback import free_port
from typer.testing import CliRunner

from polyfed.cli import app as cli
from polyfed.core.errors import BadInput
from polyfed.deploy import check
from polyfed.deploy.proxy import ROUTES, Address

NODES = """
rounds = 1
cohort = "all"
[data]
name = "nodes"
clients = 2
shape = [4]
objectives = {click = "binary"}
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""


def written(*words: str) -> Path:
    done = CliRunner().invoke(cli, ["flower", "init", "app", *words])
    assert done.exit_code == 0, done.stderr
    return Path("app")


def test_data_of_the_nodes_are_not_parts_of_anything() -> None:
    """F3: the README suggested a partition-id."""
    Path("mine.toml").write_text(NODES)
    text = (written("--experiment", "mine.toml") / "README.md").read_text()
    assert "partition-id" not in text
    assert text.count('name="0" data="/data/0.npz"') == 1


def test_a_trial_has_parts() -> None:
    assert "--node-config 'partition-id=2'" in (written() / "README.md").read_text()


def test_the_readme_says_what_flower_takes() -> None:
    """R2: `register KEY NAME` takes the connection's name, and nobody could reach 127.0.0.1."""
    folder = written("--address", "fed.example.org:9092")
    text = (folder / "README.md").read_text()
    links = tomllib.loads((folder / ".flwr/config.toml").read_text())["superlink"]
    (link,) = re.findall(r"flwr supernode register clinic-a\.pub (\S+) --name clinic-a", text)
    assert links[link]["address"] == "127.0.0.1:8000"
    assert links["outside"]["address"] == "fed.example.org:9092"
    assert "flower-supernode --superlink fed.example.org:9092 " in text
    assert text.count("--host 127.0.0.1 --port 8000") == 2


def test_the_proxy_forwards_the_fleet_api_alone() -> None:
    routing = pytest.importorskip("flwr.superlink.routers.fleet.router", reason="Flower is not installed")
    served = {route.path.rpartition("/")[2] for route in routing.router.routes}
    assert set(ROUTES) == served - {"register-node", "unregister-node"}  # which the operator does
    text = (written() / "proxy/nginx.conf").read_text()
    assert re.findall(r"location (.*) \{", text) == [f"~ ^/v1/fleet/(?<route>{'|'.join(ROUTES)})$", "/"]
    assert "location / { return 403; }" in text


def test_what_is_not_for_clients_is_not_sent_to_them() -> None:
    ignored = (written() / ".gitignore").read_text().splitlines()
    assert {".flwr/", "proxy/", "runs/", "roster.toml", "*.db"} <= set(ignored)


@pytest.mark.parametrize(
    "text", ["", "host", "host:0", "host:65536", "ho st:1", "host:1;evil", "-a:1", "a" * 300 + ":1", "h:²"]
)
def test_an_address_that_is_none_is_a_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="--address should be HOST:PORT"):
        Address.of(text)


def test_a_check_of_nothing_is_a_sentence() -> None:
    done = CliRunner().invoke(cli, ["flower", "check", "nowhere"])
    assert done.exit_code == 2
    assert "[superlink.outside]" in done.stderr


@contextmanager
def trickling() -> Iterator[check.Place]:
    """A server that sends an answer without end, a byte at a time."""
    over = threading.Event()

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not over.wait(0.02):
                line.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield check.Place(Address("127.0.0.1", listener.getsockname()[1]), Path("ca.crt"), 8000)
        over.set()
        thread.join()


def test_a_check_ends_in_time_and_takes_silence_for_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 0.3)
    begun = time.monotonic()
    with trickling() as place:
        found = check._refused("/v1/x", lambda: check._asked(place, "/v1/x", tls=False), check.REFUSED)
    assert time.monotonic() - begun < 3
    assert found == (False, "not known: /v1/x (no answer within 0.3 s)")


def test_a_proxy_that_hangs_up_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question, whether certificates are asked for, ended in a traceback."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

    def hung_up(*_: object, **__: object) -> int:
        raise TimeoutError("timed out")

    monkeypatch.setattr(check, "_asked", hung_up)
    monkeypatch.setattr(check, "_tls", lambda place: check.Finding(True, "TLS"))
    folder = written("--address", f"127.0.0.1:{free_port()}")
    done = CliRunner().invoke(cli, ["flower", "check", str(folder)])
    assert done.exit_code == 1, done.exception
    assert "BAD  not known: /v1/control/start-run (no answer within 10 s)" in done.output


def test_a_check_where_nobody_listens_fails() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
    folder = written("--address", f"127.0.0.1:{free_port()}")
    (folder / "proxy/ca.crt").write_text("")
    done = CliRunner().invoke(cli, ["flower", "check", str(folder)])
    assert done.exit_code == 1
    assert "BAD  TLS: no certificate of your CA" in done.output
