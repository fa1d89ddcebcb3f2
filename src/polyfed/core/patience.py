"""Who is asked again when: a client that misses exchanges in a row is asked after growing pauses, not every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MISSES = 2  # in a row, before a client is given a pause
LONGEST = 64  # rounds between two attempts, at most


class Patience:
    """How long each client of one model is left alone: nothing but its misses in a row decides.

    The second miss in a row ends the client's round; the third leaves out one round more, then 3, 7, ... An answer
    forgives all.
    """

    def __init__(self) -> None:
        self._misses: dict[int, int] = {}
        self._next: dict[int, int] = {}  # client -> the round in which it is asked again

    def missed(self, client: int, round: int) -> None:
        """The client did not answer in time.

        Args:
            client: its number.
            round: the round it was asked in.
        """
        misses = self._misses[client] = self._misses.get(client, 0) + 1
        if misses >= MISSES:
            self._next[client] = round + min(2 ** min(misses - MISSES, 30), LONGEST)

    def answered(self, client: int) -> None:
        """The client answered, if only to say what went wrong.

        Args:
            client: its number.
        """
        self._misses.pop(client, None)
        self._next.pop(client, None)

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
        return f"missed {self._misses[client]} exchanges in a row; asked again in round {self._next[client]}"

    def tree(self) -> dict[str, Any]:
        """The misses as a tree of tensors, for the checkpoint; empty where there are none."""
        if not self._misses:
            return {}
        rows = [[c, n, self._next.get(c, -1)] for c, n in self._misses.items()]
        return {"missed": torch.tensor(rows, dtype=torch.int64)}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint.

        Args:
            tree: what `tree` gave.
        """
        rows = tree["missed"].tolist() if "missed" in tree else []
        self._misses = {c: n for c, n, _ in rows}
        self._next = {c: t for c, _, t in rows if t >= 0}
