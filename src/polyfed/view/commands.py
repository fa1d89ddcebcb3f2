"""What to type for a run: this page only reads, so it shows the command that would start, stop or resume one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Command = dict[str, str]  # 'what' it does, and the 'command' or the call in Python


def commands(path: Path, state: str, settings: Mapping[str, Any]) -> list[Command]:
    """What can be done with a run, the likeliest first.

    Args:
        path: its directory, as a person types it.
        state: 'done', 'running', 'stopped' or 'broken'.
        settings: of the run.
    """
    python = bool(settings.get("python"))
    again = path.with_name(f"{path.name}-again") if path.name else Path("..") / f"{path.resolve().name}-again"
    found = {"done": [_predict, _load], "running": [_stop], "stopped": [_resume], "broken": [_repair]}[state]
    shown = [make(path, settings) for make in found]
    if state == "broken":
        return shown
    shown.append(_command("See it as one file", "polyfed", "report", path, "-o", "report.html"))
    if not python:
        told = _command("Start it anew", "polyfed", "run", path / "experiment.toml", "--out", again)
        shown.append(told)
    return shown


def quoted(*words: Any) -> str:
    """A command line that is one command, whatever its paths are called."""
    text = [str(word) for word in words]
    return subprocess.list2cmdline(text) if os.name == "nt" else " ".join(map(_word, text))


def _word(word: str) -> str:
    """Quoted for a shell; what cannot be seen is written out, as a terminal obeys a pasted Ctrl-C even in quotes."""
    if word.isprintable():
        return shlex.quote(word)
    plain = {ord("'"): "\\'", ord("\\"): "\\\\"}
    seen = (c.translate(plain) if c.isprintable() else "".join(f"\\x{b:02x}" for b in os.fsencode(c)) for c in word)
    return f"$'{''.join(seen)}'"


def _command(what: str, *words: Any) -> Command:
    return {"what": what, "command": quoted(*words)}


def _predict(path: Path, settings: Mapping[str, Any]) -> Command:
    return _command("Use its model on new rows", "polyfed", "predict", path, "rows.csv")


def _load(path: Path, settings: Mapping[str, Any]) -> Command:
    return {"what": "Its model in Python", "command": f"polyfed.load({str(path)!r})"}


def _stop(path: Path, settings: Mapping[str, Any]) -> Command:
    holder = holder_of(path / ".lock")
    if holder is None:
        return {
            "what": "Stop it: press Ctrl-C where it runs. To go on later",
            "command": _resume(path, settings)["command"],
        }
    return _command("Stop it; all finished rounds are kept", "kill", "-INT", holder)


def _resume(path: Path, settings: Mapping[str, Any]) -> Command:
    if not settings.get("python"):
        return _command("Go on with it", "polyfed", "resume", path)
    call = "train_many" if "models" in settings else "train"
    return {"what": "Go on with it in Python", "command": f"polyfed.{call}(..., out={str(path)!r}, resume=True)"}


def _repair(path: Path, settings: Mapping[str, Any]) -> Command:
    return _command("Mend what can be mended; nothing is deleted", "polyfed", "runs", "repair", path)


def holder_of(lock: Path) -> int | None:
    """The process that holds a lock, where the system (Linux) tells of all locks; None where it does not.

    Args:
        lock: the lock's file.
    """
    try:
        found = os.stat(lock)
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    held = [line.split() for line in lines if f" {place} " in line and " FLOCK " in line]
    pids = [int(words[4]) for words in held if words[1:3] == ["FLOCK", "ADVISORY"] and words[4].isdecimal()]
    return next((pid for pid in pids if pid > 0), None)
