"""[evaluate] personalise: every client fine-tunes the server's model on its own rows before it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.algorithms.base import LocalTraining
from polyfed.algorithms.objectives.scalarised import Scalarised, fixed
from polyfed.core.algorithm import Algorithm
from polyfed.core.door import Door
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.messages import Option
from polyfed.core.part import Part, Parts
from polyfed.core.problem import Problem


@dataclass(frozen=True)
class FineTuning:
    """How the clients of one model fine-tune, and on which rows they are measured.

    Args:
        method: the model's: clients step as they do for it, and objectives have the weights that its settings give.
        steps: how many local steps.
        lr: their size; None for the method's own in the round.
        split: 'test' or 'valid', the rows that clients have kept aside.
    """

    method: Algorithm | None
    steps: int
    lr: float | None
    split: str

    def options(self, fleet: Door) -> dict[str, Option]:
        """The options of local work (`work.sgd.LocalSteps`), at the fleet's round."""
        own: dict[str, Option] = {"batch_size": 32}
        if isinstance(self.method, LocalTraining):
            own = self.method.local_options(max(fleet.round, 1), fleet)
        if self.lr is not None:
            own["lr"] = self.lr
        return {**own, "steps": self.steps, "epochs": 0}

    def weights(self, problem: Problem) -> Tensor:
        """Of the objectives: those that the method's settings fix, else all alike."""
        lam = fixed(self.method.weights if isinstance(self.method, Scalarised) else {}, problem.names)
        return torch.as_tensor(np.asarray(lam), dtype=problem.dtype)


def fine_tuning(table: Mapping[str, Any], parts: Parts) -> dict[str, FineTuning]:
    """Every model's fine-tuning, from the table of settings; what cannot be is refused here."""
    found = {}
    for name, part in parts.items():
        try:
            lr, split = _checked(table["lr"], part), _kept_aside(part.federation)
        except BadInput as error:
            raise BadInput(f"Model {name!r}: {error}" if name else str(error)) from error
        found[name] = FineTuning(part.algorithm, table["steps"], lr, split)
    return found


def _checked(lr: float | None, part: Part) -> float | None:
    method = part.algorithm
    if method is not None and type(method).personal is not Algorithm.personal:
        raise BadInput(
            f"evaluate.personalise fine-tunes one model, and {method.title!r} learns a model for every client; leave "
            "it out."
        )
    if lr is None and not isinstance(method, LocalTraining):
        raise BadInput("The key 'evaluate.personalise.lr' is needed: the method has no local steps to take one from.")
    return lr


def _kept_aside(federation: Federation) -> str:
    for split in ("test", "valid"):
        if getattr(federation, split) is not None:
            return split
    raise BadInput(
        "evaluate.personalise measures on rows that clients have kept aside, and they have none; set data.test or "
        "data.valid to the fraction that they keep."
    )
