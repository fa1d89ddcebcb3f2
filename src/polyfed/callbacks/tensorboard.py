"""The numbers of every round as TensorBoard's scalars."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from polyfed.callbacks.checked import checked
from polyfed.callbacks.tracker import Tracker, place
from polyfed.run.callbacks import RunView, callbacks


@callbacks("tensorboard")
@checked
class TensorBoard(Tracker):
    """Scalars for TensorBoard, a step a round (extra 'tensorboard').

    Args:
        folder: where, in the run's directory unless the path is absolute.
    """

    package = extra = "tensorboard"

    def __init__(self, *, folder: str = "tensorboard", optional: bool = True) -> None:
        super().__init__(optional=optional)
        self.folder = folder
        self._writer: Any = None

    def begin(self, run: RunView) -> None:
        module: Any = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(place(run, self.folder)), purge_step=run.round + 1)

    def log(self, run: RunView, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, run.round)
        self._writer.flush()  # before the round's checkpoint: what is not written now would not be logged again

    def close(self, *, complete: bool) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
