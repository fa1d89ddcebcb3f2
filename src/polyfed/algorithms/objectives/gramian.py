"""What the methods that find weights from a Gram matrix share: the weighting, what G is taken over, what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor

from polyfed.algorithms import State
from polyfed.algorithms.base import STRICT, LocalTraining, Rate
from polyfed.core.fleet import Door
from polyfed.core.keys import key
from polyfed.core.problem import Problem
from polyfed.core.settings import build
from polyfed.weights import Weighting, frank_wolfe_gap, restrict, weigh, weightings

Found = tuple[NDArray[np.float64], State, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Gramian(LocalTraining):
    """weighting: from G to weights, by name, with its options; gram_over: 'all' parameters or those that are 'shared'.

    gram_over is 'shared' by default: each head has gradients of its own objective only, so that heads add a diagonal to
    G and say nothing of conflict. A model that names no heads is all shared.
    """

    server_lr: Rate = 1.0
    weighting: str = "min-norm"
    weighting_options: Mapping[str, Any] = field(default_factory=dict)
    gram_over: Literal["all", "shared"] = "shared"

    def rule(self) -> Weighting:
        made: Weighting = build(weightings[self.weighting], dict(self.weighting_options), "algorithm")[0]
        return made

    def init(self, problem: Problem) -> State:
        remembered = self.rule().init(len(problem.names))
        return {**problem.initial(), "weighting": {name: torch.from_numpy(a) for name, a in remembered.items()}}

    def columns(self, problem: Problem) -> Tensor:
        """Which entries of x the Gram matrix is taken over."""
        parts = problem.parts
        return parts["shared"] if self.gram_over == "shared" and "shared" in parts else torch.arange(problem.dim)

    def find_weights(self, gram: Tensor, heard: Tensor, losses: Tensor, state: State, fleet: Door) -> Found:
        """Weights of this round (0 for what nobody answered for), the weighting's next state, and what to log."""
        here = (heard > 0).numpy()
        before = {name: a.numpy() for name, a in state.get("weighting", {}).items()}
        lam, after = weigh(self.rule(), gram.numpy(), before, key(fleet.seed, fleet.round, "weighting"), present=here)
        gap = frank_wolfe_gap(restrict(gram.numpy(), here), lam[here])
        return lam, {name: torch.from_numpy(np.asarray(a)) for name, a in after.items()}, {"gap": gap}


def mean_by(total: Tensor, heard: Tensor) -> Tensor:
    """Row s of a sum over clients, divided by the sum of a_i over those heard for s; 0 where nobody was."""
    return total / torch.where(heard > 0, heard, 1.0).unsqueeze(1)
