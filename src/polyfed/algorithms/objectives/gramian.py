"""What the methods that find weights from a Gram matrix share: the weighting, what G is taken over, what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.algorithms.base import LocalTraining, ServerRate
from polyfed.core.algorithm import Algorithm, State
from polyfed.core.door import Door
from polyfed.core.errors import BadInput
from polyfed.core.keys import key
from polyfed.core.problem import Problem
from polyfed.core.settings import choose, settings
from polyfed.weights import Weighting, frank_wolfe_gap, restrict, weigh, weightings


class WeightingResult(NamedTuple):
    """Weights of this round's objectives, what the weighting remembers, and what to log."""

    weights: NDArray[np.float64]
    state: State
    found: dict[str, Any]


@settings
class Gramian(LocalTraining, Algorithm):
    """Weights from a Gram matrix G of the objectives' gradients or updates.

    Args:
        server_lr: the server's step size, a number or a schedule.
        weighting: from G to weights: a name, a dict with a name and settings, or a `polyfed.Weighting`.
        weighting_options: settings of a weighting that is given by its name.
        gram_over: G of 'all' parameters, or of those that are 'shared': each head has gradients of its own objective
            only, so that heads add a diagonal to G and say nothing of conflict. A model without heads is all shared.
    """

    server_lr: ServerRate = 1.0
    weighting: str | Mapping[str, Any] | Weighting = "min-norm"
    weighting_options: Mapping[str, Any] = field(default_factory=dict)
    gram_over: Literal["all", "shared"] = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting_options and not isinstance(self.weighting, str):
            raise BadInput("algorithm.weighting_options are for a weighting by its name; put them into its table.")
        if "name" in self.weighting_options:
            raise BadInput("algorithm.weighting_options are for its settings; its name is algorithm.weighting.")
        _ = self.rule

    @cached_property
    def rule(self) -> Weighting:
        """The weighting, built once."""
        named = isinstance(self.weighting, str)
        table = {"name": self.weighting, **self.weighting_options} if named else self.weighting
        made: Weighting = choose(weightings, table, "algorithm.weighting", Weighting)
        return made

    @property
    def needs(self) -> Literal["sums", "replies"]:
        return "sums"

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse a weighting that does not go with so many objectives: it is tried once, without conflict."""
        M = len(problem.names)
        try:
            start = self.rule.init(M)
            if self.rule.during(M, 1) is self.rule:  # not one whose settings wait for the run
                weigh(self.rule, np.eye(M), start)
        except BadInput as error:
            raise BadInput(f"algorithm.weighting: {error}") from error

    def init(self, problem: Problem) -> State:
        remembered = self.rule.init(len(problem.names))
        return {**problem.initial(), "weighting": {name: torch.from_numpy(a) for name, a in remembered.items()}}

    def columns(self, problem: Problem) -> Tensor:
        """Which entries of x the Gram matrix is taken over."""
        parts = problem.parts
        return parts["shared"] if self.gram_over == "shared" and "shared" in parts else torch.arange(problem.dim)

    def length(self, t: int, fleet: Door) -> float:
        """eta_s eta_c tau: how far a round goes along its direction, as long as the direction stays the same."""
        by_momentum = 1 / (1 - self.momentum)
        eta = self.at_server(self.server_lr, t, fleet) * self.client_lr(t, fleet)
        return eta * self.steps_a_round(t, fleet) * by_momentum

    def find_weights(self, gram: Tensor, heard: Tensor, losses: Tensor, state: State, fleet: Door) -> WeightingResult:
        """Weights of this round (0 for what nobody answered for), the weighting's next state, and what to log."""
        here = (heard > 0).numpy()
        before = {name: a.numpy() for name, a in state.get("weighting", {}).items()}
        rule = self.rule.during(len(here), fleet.rounds)
        lam, after = weigh(rule, gram.numpy(), before, key(fleet.seed, fleet.round, "weighting"), present=here)
        gap = frank_wolfe_gap(restrict(gram.numpy(), here), lam[here])
        kept = {name: torch.from_numpy(np.asarray(a)) for name, a in after.items()}
        return WeightingResult(lam, kept, {"gap": gap})


def mean_by(total: Tensor, heard: Tensor) -> Tensor:
    """Row s of a sum over clients, divided by the sum of a_i over those heard for s; 0 where nobody was."""
    return total / torch.where(heard > 0, heard, 1.0).unsqueeze(1)
