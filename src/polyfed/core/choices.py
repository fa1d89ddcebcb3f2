"""Choices made by a trial: how work is done where several ways give the same result, and one is the fastest here.

A choice is known by its kind and by all that it depends on (the model, the work, the device, ...). It belongs to the
run, whose checkpoint has it, and lies on disk for the next run: `choices.json` in the cache folder. Who may set it does
so before anybody looks here; then the run's own counts, then the disk's, and only then is something tried.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyfed.core.cachefolder import cache

MOST = 1000  # choices on disk; the oldest go first


class Choices:
    """What trials have chosen for a run, by kind and by what it depends on."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, Any]] = {}  # 'kind-checksum' -> its value and the sentence on it
        self._unsaid: dict[str, str] = {}  # of those that nobody has been told, the sentences
        self._lock = threading.Lock()  # several shards of a run may choose at once

    def known(self, kind: str, about: Mapping[str, Any], fits: Callable[[Any], bool]) -> Any:
        """What was chosen before, in this run or in another one here; None where nothing was.

        Args:
            kind: what is chosen.
            about: all that the choice depends on, plain values.
            fits: whether a value is one that can be chosen: files may hold anything.
        """
        name = _name(kind, about)
        with self._lock:
            own = self._made.get(name)
            if own is not None and fits(own.get("value")):
                return own["value"]
            found = _read().get(name)
            if not isinstance(found, dict) or not fits(found.get("value")):
                return None
            self._note(name, found["value"], f"{found.get('said', '')} Found by an earlier run.")
            return found["value"]

    def make(self, kind: str, about: Mapping[str, Any], value: Any, said: str, *, lasting: bool = True) -> None:
        """Keep a choice for this run, and for others.

        Args:
            kind: what is chosen.
            about: all that the choice depends on, plain values.
            value: what was chosen, a plain value.
            said: a sentence for whoever wants to know.
            lasting: whether other runs are to have it, too.
        """
        name = _name(kind, about)
        with self._lock:
            self._note(name, value, said)
            if lasting:
                _write(name, {"value": value, "said": said})

    def _note(self, name: str, value: Any, said: str) -> None:
        self._made[name] = {"value": value, "said": said}
        self._unsaid[name] = said

    def share(self, other: Choices) -> None:
        """From now on these are another one's, too: of a run whose engine has several others inside."""
        self._made, self._unsaid, self._lock = other._made, other._unsaid, other._lock

    def news(self) -> list[str]:
        """The sentences on what was chosen since this was last asked."""
        with self._lock:
            said = list(dict.fromkeys(self._unsaid.values()))
            self._unsaid.clear()
        return said

    def sentences(self) -> list[str]:
        """What is to be said of all choices of this run."""
        return list(dict.fromkeys(str(one["said"]) for one in self._made.values()))

    def tree(self) -> dict[str, dict[str, Any]]:
        """All of them as plain values, for a checkpoint."""
        return dict(self._made)

    def load(self, tree: Any) -> None:
        """Back to a checkpoint's."""
        self._made.clear()
        self._unsaid.clear()
        if isinstance(tree, dict):
            self._made |= {str(name): one for name, one in tree.items() if isinstance(one, dict) and "said" in one}


def _name(kind: str, about: Mapping[str, Any]) -> str:
    text = json.dumps(about, sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _path() -> Path:
    return cache() / "choices.json"


def _read() -> dict[str, Any]:
    """What the file holds; nothing where it is missing, damaged or of another kind: it is only a cache."""
    with suppress(OSError, ValueError, RuntimeError):  # the last: no home folder, or lists without end
        found = json.loads(_path().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _write(name: str, choice: Mapping[str, Any]) -> None:
    """Add one to the file, the newest last, which is replaced whole; not, where that cannot be done."""
    every = {**{n: one for n, one in _read().items() if n != name}, name: choice}
    kept = dict(list(every.items())[-MOST:])
    with suppress(OSError, RuntimeError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".choices-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=0)
            os.replace(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
