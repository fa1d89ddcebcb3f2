"""Who is asked again when: a client that keeps missing exchanges is asked after growing pauses, not every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MISS, ANSWER = 2, 1  # points that a miss costs, and that an answer gives back
PAUSE = 2 * MISS  # points at which a client is given a pause: two misses in a row, or every second exchange for long
LONGEST = 64  # rounds between two attempts, at most
MOST = PAUSE + 6 * MISS  # points: 2 ** 6 rounds is the longest pause


class Patience:
    """How long each client of one model is left alone: nothing but what it missed and answered decides.

    The second miss in a row ends the client's round; the third leaves out one round more, then 3, 7, ... An answer ends
    the pause and forgives half a miss: were all forgiven, a client that is late every second time would cost a deadline
    each time, for ever. Who misses fewer than one exchange in three is forgiven everything in the end.
    """

    def __init__(self) -> None:
        self._points: dict[int, int] = {}
        self._next: dict[int, int] = {}  # client -> the round in which it is asked again

    def missed(self, client: int, round: int) -> None:
        """The client did not answer in time.

        Args:
            client: its number.
            round: the round it was asked in.
        """
        points = self._points[client] = min(self._points.get(client, 0) + MISS, MOST)
        if points >= PAUSE:
            self._next[client] = round + min(2 ** ((points - PAUSE) // MISS), LONGEST)

    def answered(self, client: int) -> None:
        """The client answered, if only to say what went wrong.

        Args:
            client: its number.
        """
        self._next.pop(client, None)
        left = self._points.pop(client, 0) - ANSWER
        if left > 0:
            self._points[client] = left

    def due(self, client: int, round: int) -> bool:
        """Whether the client is to be asked.

        Args:
            client: its number.
            round: the round that is under way.
        """
        return round >= self._next.get(client, round)

    def among(self, clients: Sequence[int], round: int) -> list[int]:
        """Those to ask; everybody where nobody is due, since a round without clients would end the run.

        Args:
            clients: whom the exchange is with.
            round: the round that is under way.
        """
        due = [client for client in clients if self.due(client, round)]
        return due or list(clients)

    def why(self, client: int) -> str:
        """What the run says of a client that is not asked.

        Args:
            client: its number.
        """
        return f"missed too many exchanges; asked again in round {self._next[client]}"

    def tree(self) -> dict[str, Any]:
        """The points as a tree of tensors, for the checkpoint; empty where there are none."""
        if not self._points:
            return {}
        rows = [[c, n, self._next.get(c, -1)] for c, n in self._points.items()]
        return {"missed": torch.tensor(rows, dtype=torch.int64)}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint.

        Args:
            tree: what `tree` gave.
        """
        rows = tree["missed"].tolist() if "missed" in tree else []
        self._points = {c: n for c, n, _ in rows}
        self._next = {c: t for c, _, t in rows if t >= 0}
