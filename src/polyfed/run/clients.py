"""clients.jsonl: every client's own figures, one line an evaluation, where they are asked for."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ByClient = dict[str, dict[str, NDArray[np.float64]]]  # objective -> figure -> an entry for each client


class ClientLog:
    """Reads and writes the file; it is there once something has been logged.

    Args:
        folder: the run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "clients.jsonl"

    def add(self, line: Mapping[str, Any]) -> None:
        """Append one evaluation's line, in one write: 'round', 'split' and 'clients'."""
        with self.path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def rewind(self, round: int) -> None:
        """Forget what comes after a checkpoint's round, and a line that a crash cut short."""
        if self.path.is_file():
            with self.path.open("r+b") as file:
                file.truncate(self._end(round))

    def reaches_beyond(self, round: int) -> bool:
        """Whether `rewind` to that round would forget anything."""
        return self.path.is_file() and self.path.stat().st_size > self._end(round)

    def _end(self, round: int) -> int:
        """Where the lines up to a round end."""
        return max((end for line, end in self._lines() if line["round"] <= round), default=0)

    def last(self) -> ByClient:
        """The figures of the last evaluation, NaN where there is none; empty where nothing was logged."""
        newest = deque(self._lines() if self.path.is_file() else (), maxlen=1)  # a million clients' lines are long
        every = newest[0][0].get("clients", {}) if newest else {}
        return {o: {name: np.array(v, dtype=np.float64) for name, v in row.items()} for o, row in every.items()}

    def _lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The lines that are whole, and where each ends."""
        end = 0
        with self.path.open("rb") as file:
            for text in file:
                end += len(text)
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    return
                if not text.endswith(b"\n") or not isinstance(line, dict) or not isinstance(line.get("round"), int):
                    return
                yield line, end
