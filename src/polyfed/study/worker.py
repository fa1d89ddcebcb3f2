"""A process that runs cells for another: it starts once, and keeps the data of the cell before."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from polyfed.core.errors import Interrupted
from polyfed.run.callbacks import Callback, RunView
from polyfed.study.cells import OUTPUT, Cell
from polyfed.study.running import AGAIN, DataOnce, Line, Prepare, broken, run_cell


class _Messenger(Callback):
    """Sends each round's line to the process that asked for the run, and does as it says."""

    def __init__(self, pipe: Connection, asks: bool) -> None:
        self._pipe, self._asks = pipe, asks

    def on_round(self, run: RunView, line: Line) -> None:
        try:
            self._pipe.send(("line", dict(line)))
            while self._asks or self._pipe.poll():
                what, why = self._pipe.recv()
                if what == "interrupt":
                    raise Interrupted(f"Stopped after round {run.round} of {run.rounds}; {AGAIN}.")
                if what == "end":
                    run.stop(why)
                break
        except (OSError, EOFError):
            raise Interrupted("The process that asked for the run is gone.") from None


@dataclass(frozen=True)
class Worker:
    """A worker's life: cells come, lines and outcomes go.

    Args:
        study: the folder.
        name: the experiment's.
        folder: where the experiment's own functions lie.
        prepare: changes what is run.
        asks: whether it waits for an answer after each round.
    """

    study: Path
    name: str
    folder: str
    prepare: Prepare | None
    asks: bool

    def __call__(self, place: int, pipe: Connection) -> None:
        torch.set_num_threads(1)  # threads of the process before the fork are not here
        self._redirect()
        load = DataOnce()
        with suppress(EOFError, OSError):
            while True:
                what, cell = pipe.recv()
                if what != "cell":
                    continue  # a word to the cell before, which was done
                load.begin()
                pipe.send(self._outcome(cell, pipe, load))

    def _outcome(self, cell: Cell, pipe: Connection, load: DataOnce) -> tuple[str, Any]:
        try:
            callbacks = [_Messenger(pipe, self.asks)]
            found = run_cell(
                self.study, self.name, cell, folder=self.folder, load=load, callbacks=callbacks, prepare=self.prepare
            )
            return "done", found
        except (Interrupted, KeyboardInterrupt) as error:
            return "interrupted", str(error)
        except Exception as error:
            return "done", broken(self.study, cell, error)

    def _redirect(self) -> None:
        """What is printed here would spoil the table that the other process shows."""
        with (self.study / OUTPUT).open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
