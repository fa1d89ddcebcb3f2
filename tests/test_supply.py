"""What comes with polyfed: nothing that calls home, nothing that imposes its licence."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "licences.py"))
DIRECT: list[Any] = list(TOOL["dependencies"]((ROOT / "pyproject.toml").read_text(encoding="utf-8")))

# An audit hook sees every way to a socket, not only those of the module's functions. What it raises stops the attempt;
# whoever swallows that is on the list nevertheless.
WATCHED = """
import atexit, json, sys

attempts = []

def near(host):
    return host in (None, "", "localhost", "::1") or str(host).startswith("127.")

def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        away = isinstance(address, tuple) and not near(address[0])  # a Unix socket's is a text
    else:
        away = event in ("socket.getaddrinfo", "socket.gethostbyname") and not near(arguments[0])
    if away:
        attempts.append(f"{event} {arguments[1:] if event == 'socket.connect' else arguments}")
        raise PermissionError("this process may not reach the network")

sys.addaudithook(watch)
atexit.register(lambda: print("attempts:" + json.dumps(attempts)))
"""
PUBLIC = """
import polyfed, polyfed.testing

for module in (polyfed, polyfed.testing):
    for name in module.__all__:
        getattr(module, name)
"""
COMMANDS = """
from polyfed.cli import app

for command in ("list", "data list", "run two-digits --rounds 1 --set data.examples=300 --set cohort=3"):
    app(command.split(), standalone_mode=False)
"""


def attempts(code: str) -> list[str]:
    """What a process that runs code tried to reach."""
    done = subprocess.run([sys.executable, "-c", WATCHED + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    found: list[str] = json.loads(last.removeprefix("attempts:"))
    return found


@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('192.0.2.1', 80))",
        "socket.socket().connect(('192.0.2.1', 80))",
        "socket.socket().connect_ex(('192.0.2.1', 80))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
        "socket.getaddrinfo('example.org', 80)",
        "http.client.HTTPConnection('example.org').request('GET', '/')",
    ],
)
def test_an_attempt_is_seen_even_where_its_failure_is_swallowed(call: str) -> None:
    code = f"import contextlib, http.client, socket\nwith contextlib.suppress(OSError): {call}\n"
    assert len(attempts(code)) == 1
    assert attempts(re.sub(r"192\.0\.2\.1|example\.org", "127.0.0.1", code)) == []


def test_nothing_calls_home() -> None:
    assert attempts(PUBLIC + COMMANDS) == []


def needed(requirement: Requirement, seen: set[tuple[str, ...]]) -> set[str]:
    """The packages that a requirement installs here, and what they require, without extras that nobody asks for."""
    name = canonicalize_name(requirement.name)
    if (name, *sorted(requirement.extras)) not in seen:
        seen.add((name, *sorted(requirement.extras)))
        for more in map(Requirement, requires(name) or []):
            if more.marker is None or any(more.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
                needed(more, seen)
    return {name for name, *_ in seen}


def copyleft(licence: str) -> bool:
    """GPL, LGPL, AGPL; not a compiler's runtime, whose exception lets any program be linked with it."""
    without = re.sub(r"\b[AL]?GPL-[\w.-]+ WITH GCC-exception-[\d.]+", "", licence)
    return bool(re.search(r"\b[AL]?GPL|General Public Licen", without, re.IGNORECASE))


def test_core_is_free_of_the_gpl_family() -> None:
    direct = [r for group, r, _ in DIRECT if group == "core" and (r.marker is None or r.marker.evaluate())]
    core = set().union(*(needed(requirement, set()) for requirement in direct))
    assert {"torch", "sympy", "joblib", "filelock"} <= core  # direct ones and those behind them
    found = {name: TOOL["licences"](name) for name in core}
    assert {name: texts for name, texts in found.items() if any(map(copyleft, texts))} == {}
    assert {name for name, texts in found.items() if texts == ["unknown"]} == set()


def test_moocore_is_lgpl_and_only_an_extras() -> None:
    assert any(map(copyleft, TOOL["licences"]("moocore")))
    assert {group for group, requirement, _ in DIRECT if requirement.name == "moocore"} == {"front"}


def test_every_dependency_has_a_row_with_its_licence() -> None:
    lines = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    licence = {(name, versions, group): text for name, versions, group, text, _ in rows[1:]}
    direct = {(requirement.name, TOOL["versions"](requirement), group) for group, requirement, _ in DIRECT}
    how = "python tools/licences.py > docs/licences.md"
    assert licence.keys() == direct, f"docs/licences.md is not that of pyproject.toml; {how}"
    assert [name for name, text in licence.items() if not text or "unknown" in text.lower()] == [], how
