"""Stop when nothing gets better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field

from polyfed.callbacks.checked import checked
from polyfed.callbacks.criterion import Combined, Preference, Reference, Split
from polyfed.callbacks.judging import Judging
from polyfed.core.settings import NotNegative, whole
from polyfed.run.callbacks import RunView, callbacks


@callbacks("early-stopping")
@checked
class EarlyStopping(Judging):
    """Ends the run when some evaluations in a row have not been better than the best before them.

    Args:
        patience: how many evaluations without improvement are one too many.
        min_delta: by how much a figure has to be better.
    """

    def __init__(
        self,
        *,
        objective: str = "",
        metric: str = "loss",
        preference: Preference | None = None,
        combined: Combined = "max",
        reference: Reference | None = None,
        split: Split = "",
        patience: Annotated[int, Field(ge=1), BeforeValidator(whole)] = 10,
        min_delta: NotNegative = 0.0,
    ) -> None:
        super().__init__(
            objective=objective, metric=metric, preference=preference, combined=combined, reference=reference,
            split=split,
        )  # fmt: skip
        self.patience, self.min_delta = patience, min_delta

    def _forget(self) -> None:
        super()._forget()
        self.since = 0  # evaluations

    def on_start(self, run: RunView) -> None:
        super().on_start(run)
        self._stop_if_due(run)

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.since = 0 if self.improves(run, line, self.min_delta) else self.since + 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: RunView) -> None:
        if self.since >= self.patience:
            run.stop(
                f"Stopped early after round {run.round}: {self.criterion} has not got better for {self.since} "
                f"evaluations; {self._best()}.",
                for_good=False,
            )

    def _best(self) -> str:
        if math.isnan(self.value):
            return "it was never a number"
        return f"the best was {self.value:.6g} in round {self.round}"

    def tree(self) -> dict[str, Any]:
        return {**super().tree(), "since": torch.tensor(self.since)}

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)
        self.since = int(tree["since"])
