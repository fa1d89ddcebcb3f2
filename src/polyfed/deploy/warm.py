"""A client's work in a process that stays, so that torch and the data are loaded once and not for every message.

Flower starts a fresh process for each message to a SuperNode. The first starts this one, which answers over a socket
that only the same user can open; it ends when nothing was asked for a while, when another app's takes its place, and
when its SuperNode has ended.

    python -m polyfed.deploy.warm SOCKET FOLDER SUPERNODE IDLE
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IDLE = 300.0  # seconds; node config `keep-warm`, 0 for never
START = 60.0  # seconds that a process may take to be there
_FRAME = struct.Struct("<Q")


def possible() -> bool:
    """Not on Windows: there, no socket is one user's alone, and asking whether a process lives would end it."""
    return hasattr(socket, "AF_UNIX") and hasattr(os, "getuid")


class Warm:
    """The way to the process that stays, for one app on one node."""

    def __init__(self, folder: Path, run: Mapping[str, Any], node: Mapping[str, Any]) -> None:
        self.folder, self.idle = folder, float(node.get("keep-warm", IDLE))
        self.head = json.dumps({"run": dict(run), "node": dict(node)}, sort_keys=True).encode()
        self.supernode = os.getppid()  # the one that starts its messages' processes, and ends with it
        of = f"{folder.resolve()} {self.supernode} ".encode() + self.head
        self.path = _private() / f"{self.supernode}-{hashlib.sha256(of).hexdigest()[:16]}.sock"

    def ask(self, to: tuple[Any, ...], message: bytes) -> bytes:
        """Have a message answered, by a new process when there is none or when it ended over this message.

        Asking twice does no harm: work starts from the state that the server used last, however often it is done.
        """
        try:
            return self._asked(to, message)
        except OSError:
            return self._asked(to, message)

    def _asked(self, to: tuple[Any, ...], message: bytes) -> bytes:
        with self._connected() as line:
            for frame in (self.head, json.dumps(to).encode(), message):
                _send(line, frame)
            return _receive(line)

    def _connected(self) -> socket.socket:
        line = _reach(self.path)
        if line is not None:
            return line
        self.path.unlink(missing_ok=True)
        process = self._started()
        deadline = time.monotonic() + START
        while (line := _reach(self.path)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"the process that does this node's work did not start; see {self._log}")
            time.sleep(0.02)
        return line

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", __name__, self.path, self.folder, self.supernode, self.idle]
        with self._log.open("wb") as log:
            words = [str(part) for part in command]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def _log(self) -> Path:
        return self.path.with_suffix(".log")


def _private() -> Path:
    """A folder that is this user's alone; short, as a socket's path must be."""
    folder = Path(tempfile.gettempdir()) / f"polyfed-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} should belong to this user alone")
    return folder


def _reach(path: Path) -> socket.socket | None:
    line = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        line.connect(str(path))
        return line
    line.close()
    return None


def _send(line: socket.socket, data: bytes) -> None:
    line.sendall(_FRAME.pack(len(data)))
    line.sendall(data)


def _receive(line: socket.socket) -> bytes:
    (length,) = _FRAME.unpack(_exactly(line, _FRAME.size))
    return _exactly(line, length)


def _exactly(line: socket.socket, length: int) -> bytes:
    parts, left = [], length
    while left:
        part = line.recv(min(left, 1 << 20))
        if not part:
            raise OSError("the process that does this node's work has ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def serve(path: Path, folder: Path, supernode: int, idle: float) -> None:
    """Answer until nobody asks any more."""
    from polyfed.core.heap import keep_freed_memory
    from polyfed.deploy.client import Sites

    keep_freed_memory()
    sites = Sites(folder)
    _replace(path, supernode)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        path.chmod(0o600)
        door.listen()
        door.settimeout(1.0)
        last = time.monotonic()
        while time.monotonic() - last < idle and _alive(supernode):
            with contextlib.suppress(OSError):  # nobody came, or went before the answer
                if not _answer(door, sites):
                    break
                last = time.monotonic()
    path.unlink(missing_ok=True)
    path.with_suffix(".log").unlink(missing_ok=True)


def _replace(path: Path, supernode: int) -> None:
    """Have the processes of this node's earlier apps leave: an empty head asks for that."""
    for other in path.parent.glob(f"{supernode}-*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.connect(str(other))
            _send(line, b"")


def _answer(door: socket.socket, sites: Any) -> bool:
    """Answer one message; false when this process should leave."""
    from polyfed.deploy.app import To

    line, _ = door.accept()
    with line:
        line.settimeout(None)
        head = _receive(line)
        if not head:
            return False
        configs, to, message = json.loads(head), To(*json.loads(_receive(line))), _receive(line)
        _send(line, sites.answer(configs["run"], configs["node"], to, message))
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
