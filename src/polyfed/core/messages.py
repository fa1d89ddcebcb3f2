"""The protocol: what a server asks, what a client answers, and the bytes both travel as.

A request holds arrays shared by everyone (the model), arrays with one row per client, and options (plain numbers,
words and lists). A reply holds named arrays; a scalar is an array without axes. What is not in a reply, the server
cannot know. The bytes are a length, a JSON head, then the raw arrays: no pickle, and a size that follows from the
schema alone, so that communication can be counted without serialising.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import PolyfedError

Arrays = Mapping[str, Tensor]
Option = int | float | str | bool | None | list[Any] | Mapping[str, Any]
Options = Mapping[str, Option]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAGIC = b"PF01"
_PREFIX = struct.Struct("<4sI")  # magic, length of the head
TICKS = 1 << 20  # exchanges a round has room for
LIMIT = 1 << 32  # bytes: the largest message anyone accepts


class BadMessage(PolyfedError):
    """Bytes that are not a message, or not one that may be accepted."""


@dataclass(frozen=True)
class Request:
    """Some work to do: its name in the registry of work, and what it needs.

    seed and round, with the client, key all its randomness; exchange counts the requests of a round. folded[i] is
    the last tick whose reply of client i the server used, -1 for none: the client commits or discards what it was
    keeping accordingly.

    Args:
        work: the name of the work.
        shared: arrays that all clients get alike (the model).
        each: arrays with one row per client asked.
        options: plain values, the fields of the work's options.
        part: which of several models this is about, where clients train more than one.
        weighed: whether replies are multiplied by their weights where they are made, so that they only need adding up.
    """

    work: str
    shared: Arrays = field(default_factory=dict)
    each: Arrays = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    seed: int = 0
    round: int = 0
    exchange: int = 0
    folded: Tensor | None = None
    part: str = ""
    weighed: bool = False

    @property
    def tick(self) -> int:
        """Rounds and exchanges in one number, growing with time."""
        return self.round * TICKS + self.exchange

    def row(self, i: int) -> Request:
        """The request as the i-th of the clients asked gets it."""
        each = {name: rows[i] for name, rows in self.each.items()}
        return replace(self, each=each, folded=None if self.folded is None else self.folded[i])

    def __getitem__(self, name: str) -> Tensor:
        """A named array, the client's own row before the shared one."""
        found = self.each.get(name, self.shared.get(name))
        if found is None:
            raise KeyError(f"the request {self.work!r} carries no array {name!r}")
        return found

    def head(self) -> dict[str, Any]:
        about: dict[str, Any] = {"part": self.part} if self.part else {}
        if self.weighed:
            about["weighed"] = True
        return {"work": self.work, "options": dict(self.options), "each": sorted(self.each), **about}

    def __post_init__(self) -> None:
        if "when" in self.shared or "when" in self.each:
            raise ValueError("The name 'when' is the protocol's own; call the array something else.")

    def when(self) -> Tensor:
        """Seed, round, exchange and what was folded, in one array of fixed size."""
        folded = -1 if self.folded is None else int(self.folded)
        return torch.tensor([self.seed, self.round, self.exchange, folded], dtype=torch.int64)

    def arrays(self) -> dict[str, Tensor]:
        return {"when": self.when(), **self.shared, **self.each}

    def own_arrays(self) -> dict[str, Tensor]:
        """What is this client's own: all but the arrays that everybody gets."""
        return {"when": self.when(), **self.each}

    def encode(self) -> bytes:
        """The bytes of a request for one client (see `row`)."""
        return encode(self.head(), self.arrays())

    @classmethod
    def decode(cls, data: bytes | memoryview, limit: int = LIMIT) -> Request:
        return cls.of(*decode(data, limit))

    @classmethod
    def of(cls, head: dict[str, Any], arrays: dict[str, Tensor], shared: Arrays | None = None) -> Request:
        """From a decoded message; shared: the arrays that all clients get, where they came apart from it."""
        try:
            seed, round, exchange, folded = arrays.pop("when").tolist()
            each = {name: arrays.pop(name) for name in head["each"]}
            when = seed, round, exchange, torch.tensor(folded)
            rest = str(head.get("part", "")), bool(head.get("weighed", False))
            return cls(head["work"], arrays if shared is None else shared, each, head["options"], *when, *rest)
        except (KeyError, ValueError, TypeError) as error:
            raise BadMessage(f"A request needs 'work', 'options', 'each' and 'when'; {error!r}.") from error


@dataclass(frozen=True)
class Reply:
    """One client's answer: named arrays, or the reason why there are none."""

    arrays: Arrays = field(default_factory=dict)
    error: str = ""

    def head(self) -> dict[str, Any]:
        return {"error": self.error} if self.error else {}

    def encode(self) -> bytes:
        return encode(self.head(), self.arrays)

    @classmethod
    def decode(cls, data: bytes | memoryview, limit: int = LIMIT) -> Reply:
        head, arrays = decode(data, limit)
        return cls(arrays, str(head.get("error", "")))

    @property
    def nbytes(self) -> int:
        """Length of `encode()`, without encoding."""
        return size(self.head(), self.arrays)


def encode(head: Mapping[str, Any], arrays: Arrays) -> bytes:
    """A head and named arrays as bytes."""
    return preface(head, arrays) + raw(arrays)


def preface(head: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The first part of a message: all but the arrays' own bytes."""
    text = _text(head, arrays)
    return _PREFIX.pack(_MAGIC, len(text)) + text


def raw(arrays: Arrays) -> bytes:
    """The second: the arrays' bytes one after another."""
    return b"".join(a.detach().cpu().contiguous().numpy().tobytes() for a in arrays.values())


def size(head: Mapping[str, Any], arrays: Arrays) -> int:
    """Length of `encode(head, arrays)`, from the schema alone."""
    return _PREFIX.size + len(_text(head, arrays)) + sum(a.numel() * a.element_size() for a in arrays.values())


def decode(data: bytes | memoryview, limit: int = LIMIT) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The head and the arrays of a message; anything malformed is a `BadMessage`, before memory is taken for it."""
    data = memoryview(data)
    if len(data) > limit:
        raise BadMessage(f"A message may have at most {limit} bytes; found {len(data)}.")
    if len(data) < _PREFIX.size or bytes(data[:4]) != _MAGIC:
        raise BadMessage("A message starts with the mark PF01; found something else.")
    end = _PREFIX.size + _PREFIX.unpack_from(data)[1]
    try:
        head = json.loads(bytes(data[_PREFIX.size : end]))
        schema = [(str(n), DTYPES[t], tuple(int(k) for k in shape)) for n, t, shape in head.pop("arrays")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadMessage(f"The head of a message is JSON with a list of arrays; {error!r}.") from error
    return head, _arrays(data[end:], schema)


def _arrays(data: memoryview, schema: list[tuple[str, torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    arrays: dict[str, Tensor] = {}
    for name, dtype, shape in schema:
        if any(k < 0 for k in shape):
            raise BadMessage(f"The array {name!r} claims the shape {shape}; sizes are not negative.")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        length = count * dtype.itemsize
        if length > len(data):
            raise BadMessage(f"The array {name!r} claims {length} bytes; the message holds {len(data)} more.")
        raw = np.frombuffer(data[:length], dtype=_NAMES[dtype])
        arrays[name] = torch.from_numpy(raw.copy()).reshape(shape)  # a copy: aligned, writable, the message can go
        data = data[length:]
    if len(data):
        raise BadMessage(f"{len(data)} bytes follow the last array of the message; there should be none.")
    return arrays


def _text(head: Mapping[str, Any], arrays: Arrays) -> bytes:
    try:
        schema = [[name, _NAMES[a.dtype], list(a.shape)] for name, a in arrays.items()]
    except KeyError as error:
        raise BadMessage(f"Arrays travel as one of {', '.join(DTYPES)}; found {error.args[0]}.") from error
    return json.dumps({**head, "arrays": schema}, separators=(",", ":"), allow_nan=False).encode()
