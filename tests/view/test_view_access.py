"""Who gets into the live page: by its own names, from its own pages, with the token where others reach the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyfed.view.access import Door, is_loopback
from rundirs import write_run
from served import Served, served

PATHS = ("/", "/web/view.js", "/api/events", "/api/runs?run=a", "/api/front?front=a", "/nothing")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", rounds=2)
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("open")
    write_run(folder / "a", rounds=2)
    with served(folder, host="0.0.0.0") as found:
        yield found


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_the_machines_own_names_get_in(here: Served, name: str) -> None:
    assert here.get("/", {"Host": f"{name}:{here.port}"}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost", "127.0.0.1:1", "evil.example", "",
        "127.0.0.1:{port}@evil.example", "evil.example/127.0.0.1:{port}", "localhost:{port}/x", "[::1",
        "10.0.0.7:{port}", "user@localhost:{port}", "localhost.:{port}",
        "localhost:{port}?evil", "localhost:{port}#evil",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/runs?run=a"])
def test_other_hosts_names_are_refused(here: Served, host: str, path: str) -> None:
    answer = here.get(path, {"Host": host.format(port=here.port)})
    assert answer.status in (400, 403)
    assert b"metrics" not in answer.body
    assert b"two-digits" not in answer.body


def test_two_host_headers_are_refused(here: Served) -> None:
    answer = here.get("/", {"host": "evil.example"})  # besides the right one
    assert answer.status in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1", "file://"]
)
def test_other_origins_are_refused(here: Served, origin: str) -> None:
    assert here.get("/api/runs?run=a", {"Origin": origin}).status == 403
    assert here.get("/api/runs?run=a", {"Origin": f"http://127.0.0.1:{here.port}"}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_pages_reach_nothing_but_the_first_page(here: Served, site: str) -> None:
    fetched = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    for path in PATHS:
        assert here.get(path, fetched).status == 403
        assert here.get(path, framed).status == 403
    assert here.get("/", opened).status == 200
    assert here.get("/api/runs?run=a", opened).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_it_only_reads(here: Served, method: str) -> None:
    answer = here.get("/api/runs?run=a", method=method)
    assert answer.status in (400, 405)
    if answer.status == 405:
        assert answer.headers["allow"] == "GET, HEAD"


def test_head_has_no_body(here: Served) -> None:
    answer = here.get("/", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/api/events"])
def test_every_answer_has_its_headers(here: Served, path: str) -> None:
    _check_headers(here.get(path).headers)
    _check_headers(here.get(path, {"Host": "evil.example"}).headers)


def _check_headers(headers: dict[str, str]) -> None:
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_the_first_page_has_no_script_in_it(here: Served) -> None:
    page = here.get("/").body.decode()
    assert re.findall(r"<script([^>]*)>([^<]*)</script>", page)
    assert all("src=" in head and not body for head, body in re.findall(r"<script([^>]*)>([^<]*)</script>", page))
    assert not re.search(r"\son\w+=|javascript:|style=", page)


def test_an_unchanged_file_is_not_sent_again(here: Served) -> None:
    first = here.get("/web/plotly.js")
    again = here.get("/web/plotly.js", {"If-None-Match": first.headers["etag"]})
    assert len(first.body) > 1_000_000
    assert (again.status, again.body) == (304, b"")


def test_a_browser_that_asks_for_an_icon_of_its_own_accord_gets_one(here: Served) -> None:
    """It may before it has read the page; what is not found, its console says."""
    found = here.get("/favicon.ico")
    assert (found.status, found.headers["content-type"]) == (200, "image/svg+xml")
    assert found.body == here.get("/web/icon.svg").body


# a token


def test_loopback_needs_no_token_and_all_else_has_one() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.7", "lab.example", "")] == [False] * 5
    assert Door.at("127.0.0.1", 8181).token == ""
    tokens = {Door.at("0.0.0.0", 8181).token for _ in range(20)}
    assert len(tokens) == 20
    assert min(len(token) for token in tokens) >= 32


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nobody_gets_in(everywhere: Served, path: str) -> None:
    cookie = everywhere.view.door.cookie
    token = everywhere.view.door.token
    wrong = [{}, *({"Cookie": f"{cookie}={value}"} for value in ("", "x", token[:-1], f"{token}x", token.lower(), "é"))]
    wrong += [{"Cookie": f"other={token}"}, {"Cookie": "\x00;=;"}, {"Authorization": f"Bearer {token}"}]
    for headers in wrong:
        answer = everywhere.get(path, {k: v.encode().decode("latin-1") for k, v in headers.items()})
        assert answer.status in (400, 403)
        assert b"two-digits" not in answer.body
    for given in ("token=", "token=x", f"token={token}x", f"token=x&token={token}", f"token={token}&token=x"):
        assert everywhere.get(f"/?{given}").status == 403


@pytest.mark.parametrize("other", ['a={"b": 1}', "a=b c", "é=ü", "=", 'a="b', "a[0]=1, x"])
def test_cookies_of_the_machines_other_pages_do_not_hide_ours(everywhere: Served, other: str) -> None:
    door = everywhere.view.door
    for sent in (f"{other}; {door.cookie}={door.token}", f"{door.cookie}={door.token}; {other}"):
        assert everywhere.get("/", {"Cookie": sent.encode().decode("latin-1")}).status == 200


def test_the_token_of_the_address_becomes_a_cookie(everywhere: Served) -> None:
    door = everywhere.view.door
    first = everywhere.get(f"/?token={door.token}")
    assert first.status == 200
    assert door.token.encode() not in first.body  # what is shown next has no token in its address
    flags = [part.strip().lower() for part in first.headers["set-cookie"].split(";")]
    assert flags[0] == f"{door.cookie}={door.token}".lower()
    assert {"httponly", "samesite=strict", "path=/"} <= set(flags)
    sent = {"Cookie": f"{door.cookie}={door.token}"}
    assert everywhere.get("/", sent).status == 200
    assert everywhere.get("/api/runs?run=a", sent).status == 200
    assert everywhere.get(f"/api/runs?run=a&token={door.token}").status == 403  # only the first page takes it


def test_with_a_token_addresses_are_known_and_other_names_are_not(everywhere: Served) -> None:
    door = everywhere.view.door
    sent = {"Cookie": f"{door.cookie}={door.token}"}
    assert everywhere.get("/", {**sent, "Host": f"10.0.0.7:{door.port}"}).status == 200
    assert everywhere.get("/", {**sent, "Host": f"evil.example:{door.port}"}).status == 403
    assert everywhere.get("/", {**sent, "Origin": "http://evil.example"}).status == 403


def test_the_address_that_is_printed() -> None:
    assert Door("127.0.0.1", 8181).url == "http://127.0.0.1:8181/"
    assert Door("::1", 8181).url == "http://[::1]:8181/"
    assert Door("10.0.0.7", 80, "abc").url == "http://10.0.0.7:80/?token=abc"


def test_where_it_listens_by_name_that_name_is_known(tmp_path: Path) -> None:
    door = Door("lab.example", 8181, "abc")
    assert door.knows("lab.example:8181")
    assert not door.knows("other.example:8181")
