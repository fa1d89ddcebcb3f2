"""The protocol: what a server asks, what a client answers, and the bytes both travel as.

A request holds arrays shared by everyone (the model), arrays with one row per client, and options (plain numbers,
words and lists). A reply holds named arrays; a scalar is an array without axes. What is not in a reply, the server
cannot know. The bytes are a length, a JSON head, then the raw arrays: no pickle, and a size that follows from the
schema alone, so that communication can be counted without serialising.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import PolyfedError, cut, shown

Arrays = Mapping[str, Tensor]
Option = int | float | str | bool | None | list[Any] | Mapping[str, Any]
Options = Mapping[str, Option]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_READ = {**_NAMES, torch.bool: "uint8", torch.bfloat16: "int16"}  # as what bytes are read: numpy has no bfloat16
_MAGIC = b"PF01"
_PREFIX = struct.Struct("<4sI")  # magic, length of the head
TICKS = 1 << 20  # exchanges a round has room for

# What anyone accepts. A head is a few hundred bytes, and as JSON it takes up to 20 times its length: so it is bounded
# by itself, and read before anything that it claims.
LIMIT = 1 << 32  # bytes of a message
HEAD = 1 << 20  # bytes of its head: some 20 MB at worst, a tenth of a second
ARRAYS = 1 << 12  # arrays in a message
AXES = 16  # axes of an array
NAME = 256  # characters of a name
ERROR = 4000  # characters of an error's text; more is cut off
DEPTH = 16  # lists and tables inside each other
WHOLE = (1 << 63) - 1  # the largest whole number


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
        known: arrays for the server's own checks of the replies (`Field.lengths`, `Field.slack`), which are not sent.
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
    known: Arrays = field(default_factory=dict)

    @property
    def tick(self) -> int:
        """Rounds and exchanges in one number, growing with time."""
        return self.round * TICKS + self.exchange

    def row(self, i: int) -> Request:
        """The request as the i-th of the clients asked gets it."""
        each = {name: rows[i] for name, rows in self.each.items()}
        return replace(self, each=each, folded=None if self.folded is None else self.folded[i], known={})

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
        missing = [name for name in ("work", "options", "each") if name not in head]
        if missing or "when" not in arrays:
            raise BadMessage(f"A request needs 'work', 'options', 'each' and 'when'. Missing: {missing or 'when'}.")
        work, options, each = head["work"], head["options"], head["each"]
        part, weighed = head.get("part", ""), head.get("weighed", False)
        if not isinstance(options, dict) or not isinstance(weighed, bool) or not isinstance(each, list):
            raise BadMessage("A request's 'options' are a table, 'each' is a list of names, 'weighed' true or false.")
        when = arrays.pop("when")
        if when.dtype != torch.int64 or when.shape != (4,):
            raise BadMessage(f"A request's 'when' is four int64; found {when.dtype} of shape {tuple(when.shape)}.")
        if stray := [name for name in each if not isinstance(name, str) or name not in arrays]:
            raise BadMessage(f"A request's 'each' names arrays that it carries; found {shown(stray[0])}.")
        own = {name: arrays.pop(name) for name in dict.fromkeys(each)}
        seed, round, exchange, folded = when.tolist()
        named = short_text(work, "work"), short_text(part, "part", least=0)
        time = seed, round, exchange, torch.tensor(folded)
        return cls(named[0], arrays if shared is None else shared, own, options, *time, named[1], weighed)


@dataclass(frozen=True)
class Reply:
    """One client's answer: named arrays, or the reason why there are none."""

    arrays: Arrays = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        if self.error:  # whoever wrote it, it will be shown
            object.__setattr__(self, "error", readable(self.error, ERROR))

    def head(self) -> dict[str, Any]:
        return {"error": self.error} if self.error else {}

    def encode(self) -> bytes:
        return encode(self.head(), self.arrays)

    @classmethod
    def decode(cls, data: bytes | memoryview, limit: int = LIMIT) -> Reply:
        head, arrays = decode(data, limit)
        error = head.get("error", "")
        if not isinstance(error, str):
            raise BadMessage(f"A reply's error is a text; found {type(error).__name__}.")
        return cls(arrays, error)

    @classmethod
    def received(cls, data: bytes | memoryview, limit: int = LIMIT) -> Reply:
        """What came from a client: bytes that are no reply are its failure, not the server's."""
        try:
            return cls.decode(data, limit)
        except BadMessage as error:
            return cls(error=f"its reply was rejected: {error}")

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
    plain = (a.detach().cpu().contiguous() for a in arrays.values())
    return b"".join((a.view(torch.int16) if a.dtype == torch.bfloat16 else a).numpy().tobytes() for a in plain)


def size(head: Mapping[str, Any], arrays: Arrays) -> int:
    """Length of `encode(head, arrays)`, from the schema alone."""
    return _PREFIX.size + len(_text(head, arrays)) + sum(a.numel() * a.element_size() for a in arrays.values())


def decode(
    data: bytes | memoryview, limit: int = LIMIT, *, ours: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The head and the arrays of a message; anything malformed is a `BadMessage`, before memory is taken for it.

    Args:
        data: the message.
        limit: how many bytes it may have.
        ours: whether this program wrote it itself, as it does what clients remember: then the head may be long, and
            there may be any number of arrays.
    """
    data = memoryview(data)
    if len(data) > limit:
        raise BadMessage(f"A message may have at most {limit} bytes; found {len(data)}.")
    if len(data) < _PREFIX.size or bytes(data[:4]) != _MAGIC:
        raise BadMessage("A message starts with the mark PF01; found something else.")
    length = _PREFIX.unpack_from(data)[1]
    end = _PREFIX.size + length
    if length > HEAD and not ours:
        raise BadMessage(f"The head of a message may have at most {HEAD} bytes; found {length}.")
    if end > len(data):
        raise BadMessage(f"The head of a message is JSON; it claims {length} bytes and has {len(data) - _PREFIX.size}.")
    head, listed = _head(bytes(data[_PREFIX.size : end]))
    if len(listed) > ARRAYS and not ours:
        raise BadMessage(f"A message may have at most {ARRAYS} arrays; found {len(listed)}.")
    return head, _arrays(data[end:], [_claim(one) for one in listed])


def _head(text: bytes) -> tuple[dict[str, Any], list[Any]]:
    try:
        head = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:  # a ValueError also where it is not UTF-8
        raise BadMessage(f"The head of a message is JSON; {cut(str(error))}.") from None
    if not isinstance(head, dict) or not isinstance(listed := head.pop("arrays", None), list):
        raise BadMessage("The head of a message is JSON, a table with a list of arrays; found something else.")
    level: list[Any] = [head]
    for _ in range(DEPTH):
        level = [v for one in level for v in (one.values() if isinstance(one, dict) else one)
                 if isinstance(v, dict | list)]  # fmt: skip
    if level:
        raise BadMessage(f"In the head of a message, lists and tables may be {DEPTH} deep; these are deeper.")
    return head, listed


def _claim(one: Any) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """What the head says of one array: its name, type and shape, each within bounds."""
    if not isinstance(one, list) or len(one) != 3 or not isinstance(one[2], list):
        raise BadMessage(f"The list of arrays has a name, a type and a shape for each; found {shown(one)}.")
    name, kind, shape = short_text(one[0], "name of an array"), one[1], one[2]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise BadMessage(f"The list of arrays has types such as {', '.join(DTYPES)}; {name!r} is {shown(kind)}.")
    if len(shape) > AXES:
        raise BadMessage(f"An array may have at most {AXES} axes; {name!r} has {len(shape)}.")
    return name, DTYPES[kind], tuple(whole_number(k, f"size of {name!r}") for k in shape)


def _arrays(data: memoryview, schema: list[tuple[str, torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    arrays: dict[str, Tensor] = {}
    for name, dtype, shape in schema:
        length = math.prod(shape) * dtype.itemsize
        if length > len(data) or math.prod(max(k, 1) for k in shape) > LIMIT:  # of empty ones, torch multiplies, too
            raise BadMessage(f"The array {name!r} claims {shown(length)} bytes; the message holds {len(data)} more.")
        if name in arrays:
            raise BadMessage(f"The array {name!r} is there twice; names should differ.")
        raw = np.frombuffer(data[:length], dtype=_READ[dtype])
        if dtype == torch.bool and (raw > 1).any():
            raise BadMessage(f"The array {name!r} is one of bool, whose bytes are 0 or 1; found others.")
        # a copy: aligned, writable, the message can go
        arrays[name] = torch.from_numpy(raw.copy()).reshape(shape).view(dtype)
        data = data[length:]
    if len(data):
        raise BadMessage(f"{len(data)} bytes follow the last array of the message; there should be none.")
    return arrays


def whole_number(value: object, what: str, *, least: int = 0, most: int = WHOLE) -> int:
    """A stranger's whole number, a plain one or an array with one entry; a `BadMessage` where it is something else.

    Args:
        value: what came.
        what: what it should be, for the sentence.
        least, most: its bounds, both included.
    """
    if isinstance(value, Tensor):
        known = value.numel() == 1 and value.dtype not in (torch.bool, torch.float16, torch.bfloat16)
        value = value.item() if known else tuple(value.shape)
        value = int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= WHOLE else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadMessage(f"The {what} should be a whole number from {least} to {most}; found {shown(value)}.")
    return value


def short_text(value: object, what: str, *, least: int = 1, most: int = NAME) -> str:
    """A stranger's short text, a plain one or an array of UTF-8 bytes; a `BadMessage` where it is something else.

    Args:
        value: what came.
        what: what it should be, for the sentence.
        least, most: bounds of its number of characters.
    """
    if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1 and len(value) <= 4 * most:
        value = bytes(value.tolist()).decode(errors="surrogateescape")  # which are not printable
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        found = tuple(value.shape) if isinstance(value, Tensor) else value
        raise BadMessage(f"The {what} should be {least} to {most} printable characters; found {shown(found)}.")
    return value


def readable(text: str, most: int) -> str:
    """A stranger's text as it may be shown: so many characters, none that steers a terminal or is not text."""
    kept = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in kept)


def _whole(digits: str) -> int:
    if len(digits) > 20 or abs(number := int(digits)) > WHOLE + 1:
        raise ValueError(f"a whole number has at most 63 bits: {shown(digits)}")
    return number


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"numbers are finite: {shown(digits)}")
    return number


def _text(head: Mapping[str, Any], arrays: Arrays) -> bytes:
    try:
        schema = [[name, _NAMES[a.dtype], list(a.shape)] for name, a in arrays.items()]
    except KeyError as error:
        raise BadMessage(f"Arrays travel as one of {', '.join(DTYPES)}; found {error.args[0]}.") from error
    return json.dumps({**head, "arrays": schema}, separators=(",", ":"), allow_nan=False).encode()
