"""A file of JSON lines that somebody appends to: only what is new is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyfed.report.opening import opened

LAST_ROUND = 1 << 53  # beyond it, numbers of rounds are not exact
LAST = 1 << 16  # bytes at the end in which the last line is looked for first


class Tail:
    """Reads the whole lines of a file, then those that were appended; a line that is being written waits.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began_again = False  # whether the last `read` found another or a shorter file, and read it all
        self._end = 0
        self._file = (0, 0)

    def read(self) -> list[dict[str, Any]]:
        """The lines that are new, each a round or an evaluation; those that are no such thing are left out."""
        try:
            with opened(self.path) as file:
                status = os.fstat(file.fileno())
                same = self._file in ((0, 0), (status.st_dev, status.st_ino)) and status.st_size >= self._end
                self.began_again, self._file = not same, (status.st_dev, status.st_ino)
                self._end = self._end if same else 0
                file.seek(self._end)
                data = file.read()
        except OSError:
            self.began_again, self._end, self._file = self._end > 0, 0, (0, 0)
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        return list(_parsed(whole))

    def one_by_one(self) -> Iterator[dict[str, Any]]:
        """The whole lines of the file from its beginning, only one of them in memory at a time."""
        try:
            with opened(self.path) as file:
                for text in file:
                    if text.endswith(b"\n"):
                        yield from _parsed(text)
        except OSError:
            return

    def last(self) -> dict[str, Any] | None:
        """The newest whole line alone, from the end of the file."""
        size = LAST
        while True:
            try:
                with opened(self.path) as file:
                    file.seek(0, os.SEEK_END)
                    there = file.tell()
                    file.seek(max(0, there - size))
                    data = file.read()
            except OSError:
                return None
            whole = data[: data.rfind(b"\n") + 1]
            if size < there:  # the first line of what was read may be cut
                whole = whole[whole.find(b"\n") + 1 :]
            if whole or size >= there:
                return next(iter([*_parsed(whole[whole[:-1].rfind(b"\n") + 1 :])]), None)
            size *= 8


def _parsed(data: bytes) -> Iterator[dict[str, Any]]:
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and _is_round(line.get("round")):
            yield line


def _is_round(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < LAST_ROUND
