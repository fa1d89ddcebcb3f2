"""Whose name is whose: a client's name belongs to one SuperNode's key, and a key to one name.

The operator decides, by registering a key with `--name` or by a roster file; otherwise whoever says a name first has
it, until somebody comes whom the operator registered under that name. What was decided is kept with the run, so that a
server that starts again decides no differently.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import threading
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from polyfed.core.errors import BadInput, shown
from polyfed.run.directory import write

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo


class Who(NamedTuple):
    """A node as the SuperLink knows it, not as it says: its number, its key's fingerprint, the name that the operator
    registered it by, and since when it is there (a SuperNode that was restarted has lost what it was sent)."""

    node: int
    key: str
    registered: str = ""
    since: str = ""

    @classmethod
    def of(cls, info: NodeInfo) -> Who:
        """Where a Grid knows no keys (all in one process), a node's number stands for its key."""
        key = _known_by(info.public_key) if info.public_key else f"node {info.node_id}"
        return cls(info.node_id, key, info.name, info.last_activated_at)

    def __str__(self) -> str:
        return self.key if self.key.startswith("node ") else f"node {self.node} (key {self.key})"


@lru_cache(1 << 12)
def _known_by(key: bytes) -> str:
    """A registered key's fingerprint; bytes that are no key are a stranger's, who is known by them all the same."""
    try:
        return fingerprint(key)
    except Exception:
        return f"bytes {hashlib.sha256(key).hexdigest()}"


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -lf KEY.pub` shows it: of a public key as PEM (Flower's form) or as an OpenSSH line."""
    words = key.split()
    try:
        if key.startswith(b"-----"):
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

            words = load_pem_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()
        blob = base64.b64decode(words[1], validate=True)
    except (ValueError, IndexError, binascii.Error) as error:
        raise BadInput(f"A public key is PEM or a line such as 'ecdsa-sha2-nistp384 AAAA...'; {error}.") from error
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


@dataclass(frozen=True)
class Entry:
    """What the operator says of a client: its key's fingerprint or 'node N', and how many examples it has at most."""

    key: str
    examples: int | None = None


def read_roster(path: Path) -> dict[str, Entry]:
    """The operator's roster, a TOML file with a table for each client's name.

    Args:
        path: the file; keys that are files (`key = "clinic-a.pub"`) are looked for beside it.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"The roster {shown(str(path))} cannot be read as TOML: {error}.") from error
    return {name: _entry(name, one, path.parent) for name, one in table.items()}


def _entry(name: str, table: object, folder: Path) -> Entry:
    if not isinstance(table, Mapping) or not table.keys() <= {"key", "node", "examples"}:
        raise BadInput(f"The roster has for each client [NAME] with key or node, and examples; look at {shown(name)}.")
    key, node, examples = table.get("key"), table.get("node"), table.get("examples")
    if (key is None) == (node is None) or not isinstance(key, str | None) or not _count(node) or not _count(examples):
        raise BadInput(
            f"In the roster, {shown(name)} should have key = 'SHA256:...' or a .pub file, or node = its number at "
            f"Flower; and examples, a whole number. Found {shown(dict(table))}."
        )
    return Entry(f"node {node}" if key is None else _key(name, key, folder), examples)


def _count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _key(name: str, key: str, folder: Path) -> str:
    if key.startswith("SHA256:"):
        return key
    try:
        return fingerprint(key.encode() if " " in key else (folder / key).read_bytes())
    except (OSError, BadInput) as error:
        raise BadInput(f"In the roster, the key of {shown(name)} cannot be read: {error}.") from error


class Names:
    """Who has which name.

    Args:
        kept: the file in which bindings outlive the server; None to keep nothing.
        roster: what the operator says of the clients: nobody else takes part.
        bind: whether a name stays with its key. False is for trials, where SuperNodes have no keys of their own and
            make a new one at each start: then whoever says a name last has it.
    """

    def __init__(
        self, kept: Path | None = None, roster: Mapping[str, Entry] | None = None, *, bind: bool = True
    ) -> None:
        self.kept, self.roster, self.bind = kept, roster, bind
        self.taken: set[str] | None = None  # the names of the run's clients, once they are all known
        self.key = _load(kept)
        self._registered: dict[str, str] = {}  # the names that the operator gave, and the keys of theirs that were seen
        self._lock = threading.Lock()

    def claim(self, name: str, who: Who, examples: int = 0) -> str:
        """Why a node may not have a name; an empty text when it has it now.

        Args:
            name: the name that it says.
            who: what the SuperLink knows of it.
            examples: how many it says it has, of the split with the most.
        """
        with self._lock:
            why = self._refusal(name, who, examples)
            if not why and self.key.get(name) != who.key:
                self.key[name] = who.key
                if self.taken is not None:
                    self._save()
            return why

    def see(self, nodes: Iterable[Who]) -> None:
        """Take note of who is connected: a name that the operator gave to one of them is nobody else's to say.

        Args:
            nodes: as the SuperLink knows them.
        """
        with self._lock:
            for who in nodes:
                if who.registered:
                    self._registered.setdefault(who.registered, who.key)

    def _refusal(self, name: str, who: Who, examples: int) -> str:
        if who.registered and who.registered != name:
            return f"its key was registered under the name {shown(who.registered)}"
        if self.roster is not None:
            return self._by_roster(name, who, examples)
        if self.taken is not None and name not in self.taken:
            return "no client of this run has that name"
        given = self._registered.get(name, who.key)
        if given != who.key:
            return f"that name was registered for {_holder(given)}"
        holder = self.key.get(name, who.key)
        if holder != who.key and self.bind and not who.registered:
            return f"that name belongs to {_holder(holder)}"
        other = next((n for n, key in self.key.items() if key == who.key and n != name), None)
        return f"its key has the name {shown(other)}" if other is not None else ""

    def _by_roster(self, name: str, who: Who, examples: int) -> str:
        entry = (self.roster or {}).get(name)
        if entry is None:
            return "the roster has no such name"
        if entry.key not in (who.key, f"node {who.node}"):
            return f"in the roster that name belongs to {entry.key}"
        if entry.examples is not None and examples > entry.examples:
            return f"it says it has {examples} examples; the roster allows {entry.examples}"
        return ""

    def has(self, name: str, who: Who) -> bool:
        """Whether a name is a node's own, and nobody has come whom the operator gave it to."""
        return self.key.get(name) == who.key == self._registered.get(name, who.key)

    def may_be(self, name: str, who: Who) -> bool:
        """Whether a node that has not said its name may turn out to have this one."""
        if who.registered or self.roster is not None:
            return not self._refusal(name, who, 0)
        given = self._registered.get(name, who.key)
        return given == who.key and (self.key.get(name, who.key) == who.key or not self.bind)

    def close(self, names: Iterable[str]) -> None:
        """These are the run's clients: nobody else takes part, and what is bound is kept."""
        with self._lock:
            self.taken = set(names)
            self.key = {name: key for name, key in self.key.items() if name in self.taken}
            self._save()

    def _save(self) -> None:
        if self.kept is not None:
            write(self.kept, json.dumps(self.key, indent=1).encode() + b"\n")


def _holder(key: str) -> str:
    return key if key.startswith("node ") else f"the key {key}"


def _load(path: Path | None) -> dict[str, str]:
    if path is None or not path.is_file():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(key) for name, key in table.items()}
    except (ValueError, AttributeError) as error:
        raise BadInput(f"{path} is not a table of names and keys as a run writes it; {error}.") from error
