"""FMGDA and FSMGDA (Yang, Liu, Liu, Dong, Momma, "Federated Multi-Objective Learning", 2023), Algorithm 1.

Client i, for every objective s it holds separately: x_si <- x, K local steps on f_si, Delta_si = x - x_si.
Server: Delta_s = mean over those heard for s; lambda = argmin |sum_s lambda_s Delta_s|^2 over the simplex (their (3));
x <- x - eta_s sum_s lambda_s Delta_s.

FMGDA takes full batches, FSMGDA minibatches; the two are one class. The paper's eta_t is eta_s eta_c here. Ours is
upload = "combined": sketches of Delta_si go up, omega_s = lambda_s / W_s comes down, one vector goes up: the same
direction for Theta(d) instead of Theta(M d). A client lost between the two cannot be corrected for, and is counted.
`output = "random"` keeps the iterate of a round drawn beforehand with p_t proportional to (1 - mu eta / 2)^-t, the
theorem's eta being eta_s eta_c K: its updates are divided by eta_c K, ours are not.

The Gram matrix is over the parameters that the objectives share where the model names its heads; Algorithm 1's is over
all of them, `gram_over = "all"`. In a model without heads the two are one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import descended
from polyfed.algorithms.objectives.gramian import Gramian, mean_by
from polyfed.compress.sketch import DEFAULT_WIDTH
from polyfed.core.door import Door
from polyfed.core.errors import BadInput
from polyfed.core.keys import generator
from polyfed.core.messages import Request
from polyfed.core.problem import Problem
from polyfed.core.settings import NotNegative, settings


@algorithms("fsmgda")
@settings
class FSMGDA(Gramian):
    """Local steps for every objective apart, then the common descent direction of the mean updates.

    Args:
        upload: 'full', M updates a client; or 'combined', their sketches and then one vector.
        width: of the sketches, 256 where the model has them; 0 sends the updates whole.
        output: the 'last' iterate, or that of a 'random' round, as the strongly convex theorem has it.
        convexity: mu, of the random round's distribution; 0 for all rounds alike.
    """

    upload: Literal["full", "combined"] = "full"
    width: Annotated[int, Field(ge=0)] | None = None
    output: Literal["last", "random"] = "last"
    convexity: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output == "random" and self.convexity:
            self._check_random()

    def _check_random(self) -> None:
        """The theorem's weights need one eta = eta_s eta_c K for all rounds, with mu eta / 2 below 1."""
        rates = self.lr, self.server_lr
        if self.local_epochs or not all(isinstance(r, float | int) or getattr(r, "constant", False) for r in rates):
            raise ValueError(
                "output = 'random' with convexity above 0 needs one step size for all rounds: give lr and server_lr as "
                "numbers or constant rules, and local_steps in place of local_epochs."
            )
        if isinstance(self.lr, float | int) and isinstance(self.server_lr, float | int):
            self._check_eta(self.server_lr * self.lr * self.local_steps)

    def _check_eta(self, eta: float) -> None:
        if self.convexity * eta >= 2:
            most = f"2 / (server_lr lr local_steps), {2 / eta:g}"
            raise BadInput(f"convexity should be below {most}. Found {self.convexity}.")

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse a sketch that is wider than what it sketches."""
        super().check(problem, clients)
        size = self._size(problem)
        if self.upload == "combined" and self.width and self.width > size:
            raise BadInput(f"algorithm.width should be at most the {size} parameters it sketches. Found {self.width}.")

    def _size(self, problem: Problem) -> int:
        return len(self.columns(problem))

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        shared = {"x": state["x"], "buffers": state["buffers"]}
        how = self._full if self.upload == "full" else self._combined
        direction, total, lam, remembered, found = how(t, cohort, shared, state, fleet)
        x = descended(state["x"], self.at_server(self.server_lr, t, fleet), direction)
        new = {**state, "x": x, "buffers": total["buffers"] / total["weight"], "weighting": remembered}
        return self._chosen(t, new, fleet), {"weights": torch.from_numpy(lam), **found}

    def _chosen(self, t: int, state: State, fleet: Door) -> State:
        """With output = "random", keep the iterate of the round that was drawn, and end with it."""
        if self.output == "last":
            return state
        eta = self.length(1, fleet)  # the theorem's, the same in all rounds
        self._check_eta(eta)
        drawn = random_round(fleet.rounds, self.convexity, eta, generator(fleet.seed, "output"))
        if t == drawn:  # the same in every round, as nothing it is drawn from changes
            state = {**state, "chosen": state["x"]}
        return {**state, "x": state["chosen"]} if t == fleet.rounds else state

    def _full(self, t: int, cohort: list[int], shared: Any, state: State, fleet: Door) -> tuple[Any, ...]:
        total = fleet.sum(cohort, Request("sgd-each", shared, options=self.local_options(t, fleet)))
        Delta = mean_by(total["deltas"], total["heard"])
        seen = Delta[:, self.columns(fleet.problem)]
        gram = (seen @ seen.T).double()
        lam, remembered, found = self.find_weights(gram, total["heard"], total["losses"], state, fleet)
        found["train"] = total["losses"] / total["heard"]
        return torch.as_tensor(lam, dtype=Delta.dtype) @ Delta, total, lam, remembered, found

    def _combined(self, t: int, cohort: list[int], shared: Any, state: State, fleet: Door) -> tuple[Any, ...]:
        size = self._size(fleet.problem)
        k = min(DEFAULT_WIDTH, size) if self.width is None else self.width or size
        options = {**self.local_options(t, fleet), "k": k, "over": self.gram_over}
        shown = fleet.sum(cohort, Request("sgd-each-sketch", shared, options=options))
        seen = mean_by(shown["S"], shown["heard"])
        gram = (seen @ seen.T).double()
        lam, remembered, found = self.find_weights(gram, shown["heard"], shown["losses"], state, fleet)
        omega = torch.as_tensor(lam, dtype=seen.dtype) / torch.where(shown["heard"] > 0, shown["heard"], 1.0)
        total = fleet.sum(shown.clients, Request("sgd-each-combined", {"omega": omega}, options=options))
        found["train"] = shown["losses"] / shown["heard"]
        found["lost_between"] = len(shown.clients) - len(total.clients)
        return total["delta"], total, lam, remembered, found


@algorithms("fmgda")
@settings
class FMGDA(FSMGDA):
    """FSMGDA with full batches."""

    batch_size: Annotated[int, Field(ge=0)] = 0


def random_round(rounds: int, mu: float, eta: float, rng: np.random.Generator) -> int:
    """The round whose iterate the strongly convex theorem outputs: p_t proportional to (1 - mu eta / 2)^-t."""
    logits = -np.arange(1, rounds + 1) * np.log1p(-mu * eta / 2)
    p = np.exp(logits - logits.max())
    return int(rng.choice(rounds, p=p / p.sum())) + 1
