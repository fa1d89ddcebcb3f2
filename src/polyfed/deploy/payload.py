"""Our message bytes inside Flower's records: uint8 arrays, never unpacked by anyone but us.

A request travels in pieces that, put together, are exactly its bytes: what all clients get alike (the model) is one
array record, which Flower uploads once however many messages hold it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord, RecordDict

    from polyfed.core.messages import Request

SLACK = 1 << 16  # bytes beyond what the schema says: room for an error's text


_LONGEST = 256  # bytes of a header
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d+),\), \} *\n", re.DOTALL
)


class BadPayload(Exception):
    """A record that does not hold a message."""


def to_array(data: bytes) -> Array:
    from flwr.app import Array

    return Array(np.frombuffer(data, dtype=np.uint8))


def from_array(array: Array, limit: int) -> memoryview:
    """The bytes of a uint8 array, checked against the limit and against what it claims before memory is taken."""
    data = memoryview(array.data)
    if len(data) > limit + SLACK:
        raise BadPayload(f"a message may have at most {limit + SLACK} bytes here; found {len(data)}")
    start, claimed = _header(data)
    if claimed != len(data) - start:
        raise BadPayload(f"an array claims {claimed} bytes; the record holds {len(data) - start}")
    return data[start:]


def length(array: Array) -> int:
    """How many bytes of ours an array holds."""
    return _header(memoryview(array.data))[1]


def _header(data: memoryview) -> tuple[int, int]:
    """Where the values of an .npy begin, and how many bytes it says there are."""
    found = _NPY.match(data[:_LONGEST])
    if not found:
        raise BadPayload(f"arrays travel as .npy 1.0, one row of uint8; found {bytes(data[:64])!r}")
    return found.end(), int(found[1])


def shared_record(request: Request) -> ArrayRecord:
    """What all clients get alike: make it once, put it into every message."""
    from flwr.app import ArrayRecord

    from polyfed.core.messages import raw

    return ArrayRecord({"shared": to_array(b"" if _mixed(request) else raw(request.shared))})


def own_record(row: Request) -> ArrayRecord:
    """What one client gets (see `Request.row`): the head of the message, and its own arrays."""
    from flwr.app import ArrayRecord

    from polyfed.core.messages import preface, raw

    arrays = row.arrays()
    head = row.encode() if _mixed(row) else preface(row.head(), arrays) + raw({"when": arrays["when"]})
    return ArrayRecord({"head": to_array(head), "each": to_array(b"" if _mixed(row) else raw(row.each))})


def _mixed(request: Request) -> bool:
    """Whether a client's own array stands in for a shared one, so that no stretch of bytes is everybody's."""
    return bool(set(request.shared) & set(request.each))


def join(content: RecordDict, limit: int) -> bytes:
    """The bytes of a request from its pieces."""
    own, shared = content.array_records["own"], content.array_records["shared"]
    return b"".join(from_array(piece, limit) for piece in (own["head"], shared["shared"], own["each"]))
