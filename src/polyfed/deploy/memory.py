"""What a client remembers, on its own disk: it outlives the process, which Flower starts anew for every message.

Files hold the bytes of `messages.encode`: no pickle. A state is a file named for the tick whose reply went with it; a
request names the tick that the server used last. A server that went back to a checkpoint names an older one, so the
states of the last rounds are kept, and those it knows nothing of are dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from polyfed.client.memory import Job, Memory
from polyfed.core.client import ClientState
from polyfed.core.errors import BadInput
from polyfed.core.messages import TICKS, Request, decode, encode
from polyfed.run.directory import spaced, write


class DiskMemory(Memory):
    """One client's memory of one run, in a directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def of(cls, home: Path, run: str, name: str, model: int = 0) -> DiskMemory:
        """Keyed by the run's id and the client's name; the id comes from outside and must not lead anywhere else."""
        if not re.fullmatch(r"[0-9a-f]{32}", run):
            raise BadInput(f"A run's id is 32 hexadecimal digits. Found {run!r}.")
        safe = re.sub(r"[^\w-]", "_", name)
        if safe != name:  # "a.b" and "a_b" are two clients; no name that stays as it is holds "~"
            safe += f"~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return cls(home / run / f"{safe}.{model}")

    # this round's arrays

    def recall(self, clients: Sequence[int], request: Request) -> list[Mapping[str, Tensor]]:
        if request.round != self._round:
            self._reread(clients[0], request.round)
        before = self._sent.get(clients[0])
        found = super().recall(clients, request)
        if request.shared or before is None:
            write(self.folder / "round", encode({"round": request.round}, found[0]))
        return found

    def _reread(self, client: int, round: int) -> None:
        path = self.folder / "round"
        head, arrays = decode(path.read_bytes()) if path.is_file() else ({}, {})
        if head.get("round") == round:
            self._round, self._sent = round, {client: arrays}

    # durable state

    def settle(self, client: int, request: Request) -> ClientState | None:
        used = -1 if request.folded is None else int(request.folded)
        ticks = self._ticks()
        for tick in _stale(ticks, used, request.round):
            self._path(tick).unlink()
        if used < 0:
            return None
        if used not in ticks:
            raise BadInput(f"This client no longer has the state that the server used last (tick {used}).")
        return decode(self._path(used).read_bytes())[1]

    def keep(self, job: Job, state: ClientState | None) -> None:
        if state is not None:
            write(self._path(job.request.tick), encode({}, state))

    def _ticks(self) -> list[int]:
        return sorted(int(path.suffix[1:]) for path in self.folder.glob("state.*"))

    def _path(self, tick: int) -> Path:
        return self.folder / f"state.{tick}"


def _stale(ticks: list[int], used: int, round: int) -> set[int]:
    """All but the state that was used last, and the last of each round that a checkpoint may go back to."""
    known = [tick for tick in ticks if tick <= used]
    ends = [max((t for t in known if t // TICKS <= end), default=-1) for end in spaced(round - 1)]
    return set(ticks) - {*known[-1:], *ends}
