"""Messages between a process and one that it forks: in memory that both see, a pipe says where.

A pipe takes a fraction of a model at a time and makes its two ends wait for each other.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from typing import Any

SLOT = 16 << 20  # bytes of the largest message in shared memory; larger ones go through the pipe
SMALL = 4096  # bytes that a pipe takes at once


class Channel:
    """One end. So many messages may be under way in each direction: who sends more overwrites what was not read.

    Args:
        pipe: this end of it.
        out: the memory that this end writes, the other reads.
        into: the memory that this end reads, the other writes.
        watched: entered while a large message is in the pipe: an end that is stopped would keep us waiting.
    """

    def __init__(
        self,
        pipe: Connection,
        out: mmap.mmap,
        into: mmap.mmap,
        watched: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.pipe, self._out, self._into, self._next = pipe, out, into, 0
        self._watched = watched

    @staticmethod
    def memory(there: int, back: int) -> tuple[mmap.mmap, mmap.mmap]:
        """For so many messages, to be made before the fork; pages that are never written take no memory."""
        return mmap.mmap(-1, there * SLOT), mmap.mmap(-1, back * SLOT)

    @classmethod
    def pair(cls, context: Any, there: int, back: int) -> tuple[Channel, Channel]:
        """Both ends, to be made before the fork."""
        out, into = cls.memory(there, back)
        ours, theirs = context.Pipe()
        return cls(ours, out, into), cls(theirs, into, out)

    def rewind(self) -> None:
        """All that was sent has been read: the first pages will do again."""
        self._next = 0

    def send(self, message: bytes) -> None:
        if len(message) <= SMALL:
            self.pipe.send_bytes(b"m" + message)
        elif len(message) <= SLOT:
            start, end = self._next, self._next + len(message)
            self._out[start:end] = message
            self._next = (start + SLOT) % len(self._out)
            self.pipe.send_bytes(b"s" + struct.pack("<qq", start, end))
        else:
            self.pipe.send_bytes(b"l")
            with self._watched():
                self.pipe.send_bytes(message)

    def receive(self) -> bytes:
        """The next message; EOFError when the other end is gone."""
        head = self.pipe.recv_bytes()
        if head[:1] == b"m":
            return head[1:]
        if head[:1] == b"l":
            with self._watched():
                return self.pipe.recv_bytes()
        start, end = struct.unpack("<qq", head[1:])
        return self._into[start:end]

    def close(self) -> None:
        """The other end is told; the memory goes with those that have it."""
        self.pipe.close()
