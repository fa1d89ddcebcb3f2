"""A Flower deployment of the tests' own: processes on loopback, on free ports, stopped by their ids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
NODES = 3


def end_with_parent() -> None:
    """Have the kernel end this process when the tests' own is killed, and cannot stop what it started any more."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    """Below the range that outgoing connections come from: a node that looks for a SuperLink that is down could
    otherwise be given the very port that it looks for, find itself there, and keep the SuperLink from coming back."""
    while True:
        port = random.randint(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


class Loopback:
    """A SuperLink and SuperNodes, each with its own port, and what they started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }  # fmt: skip
        (folder / "flwr").mkdir(parents=True, exist_ok=True)
        self.configure("insecure = true")

    def configure(self, security: str) -> None:
        text = f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\n{security}\n'
        (self.folder / "flwr" / "config.toml").write_text(text)

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        self.started[name] = subprocess.Popen(
            command,
            env=env or self.env,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        log.close()
        return self.started[name]

    def superlink(self, *security: str) -> None:
        self.start(
            "superlink", "flower-superlink", *(security or ("--insecure",)), "--isolation", "subprocess",
            "--disable-runtime-dependency-installation", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.folder / "state.db"),
        )  # fmt: skip
        scheme = "https" if security else "http"
        self.until(lambda: answers(f"{scheme}://127.0.0.1:{self.port}/health", self.folder), 60, "the SuperLink")

    def supernode(
        self, i: int, config: str, *security: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return self.start(
            f"node-{i}", "flower-supernode", *(security or ("--insecure",)), "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(free_port()), "--node-config", config, env=env,
        )  # fmt: skip

    def connected(self, i: int, start: Callable[[], Any]) -> None:
        """Start SuperNode i and wait until it is there. On a busy machine Flower gives its start up: then once more."""
        for _ in range(4):
            log = self.folder / f"node-{i}.log"
            start_of = log.stat().st_size if log.exists() else 0
            start()
            node = self.started[f"node-{i}"]

            def there(log: Path = log, since: int = start_of) -> bool:
                return b"SuperNode ID" in log.read_bytes()[since:]

            self.until(lambda there=there, node=node: there() or node.poll() is not None, 90, f"SuperNode {i}")
            if there():
                return
        raise RuntimeError(f"SuperNode {i} did not start\n{self.logs()}")

    def flwr(self, *arguments: str, timeout: float = 120) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments], env=self.env, cwd=self.folder, capture_output=True, timeout=timeout
        )
        text = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, text
        return text

    def run(self, app: Path, config: dict[str, Any]) -> None:
        """Start a run of an app, and return at once."""
        pairs = " ".join(f"{key}={toml(value)}" for key, value in config.items())
        self.flwr("run", str(app), "loop", "-c", pairs)

    def until(self, true: Any, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))

    def kill(self, name: str) -> None:
        """End a process that was started here, and all that it started, some of which lead groups of their own."""
        process = self.started.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=20)

    def children(self, name: str, containing: str) -> list[int]:
        """Ids of the processes that a started process has started, whose command line holds a text."""
        return [pid for pid in descendants(self.started[name].pid) if containing in _read(pid, "cmdline")]

    def stop(self) -> None:
        for name in list(self.started):
            self.kill(name)


def descendants(pid: int) -> list[int]:
    """Ids of all processes that this one has started, directly or not."""
    parents = {int(p.name): _read(int(p.name), "stat").rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*")}
    own = [child for child, fields in parents.items() if fields[1:2] == [str(pid)]]
    return [*own, *(grandchild for child in own for grandchild in descendants(child))]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def answers(url: str, folder: Path) -> bool:
    import ssl

    context = None
    if url.startswith("https"):
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2, context=context) as response:
        return bool(response.status == 200)
    return False


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@contextlib.contextmanager
def loopback(folder: Path) -> Iterator[Loopback]:
    made = Loopback(folder)
    try:
        yield made
    finally:
        made.stop()
