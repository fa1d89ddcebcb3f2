"""The fair baselines that FedMGDA+ is measured against: q-FedAvg (Li et al. 2020) and AFL (Mohri et al. 2019)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import LocalTraining, Rate, value_in_round
from polyfed.algorithms.objectives.scalarised import Scalarised
from polyfed.core.door import Door
from polyfed.core.messages import Request
from polyfed.core.settings import NotNegative, Positive, settings
from polyfed.weights import project_simplex

MOST_LOGGED = 100  # clients whose weights go into every line of metrics


@algorithms("q-fedavg")
@settings
class QFedAvg(Scalarised, LocalTraining):
    """Clients with a higher loss count more, by the power q; q = 0 is FedAvg.

    x <- x - sum_i a_i Delta_i / sum_i a_i h_i with Delta_i = F_i^q Dw_i, h_i = q F_i^(q-1) |Dw_i|^2 + L F_i^q and
    Dw_i = L (x - x_i), F_i the client's mean loss at x; a_i is 1, or its number of examples with weighting_by = "size",
    which is p_i of the method's objective (the paper draws clients by it instead).

    Args:
        q: the power.
        L: the Lipschitz estimate, 1 / lr unless given.
    """

    q: NotNegative = 1.0
    L: Positive | None = None

    @property
    def needs(self) -> Literal["sums", "replies"]:
        return "sums"

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        lam, shared = self.scalarised(state, cohort, self.shares(cohort, fleet), fleet.holds[cohort], fleet)
        lipschitz = self.L or 1 / self.client_lr(t, fleet)
        options = {**self.local_options(t, fleet), "q": self.q, "L": lipschitz}
        total = fleet.sum(cohort, Request("q-sgd", shared, options=options))
        x = state["x"] - total["delta"] / total["h"]
        found = {"weights": lam, "train": total["losses"] / total["heard"]}
        return {"x": x, "buffers": total["buffers"] / total["weight"]}, found


@algorithms("afl")
@settings
class AFL(Scalarised):
    """The worst mixture of clients: descend in x, ascend in the clients' weights lambda.

    x <- x - gamma_w sum_i lambda_i grad f_i(x), lambda <- proj_simplex(lambda + gamma_l F(x)), both at the same x.
    Where only some clients are asked, lambda is renormalised over them for the step and moves for them alone: what they
    have together stays the same.

    Args:
        lr: gamma_w, the step size in x.
        lambda_lr: gamma_l, the step size in the clients' weights.
        batch_size: rows of a gradient; 0 for all of a client's.
        weighting_by: the mixture at the start, all clients alike ('uniform') or by their numbers of examples ('size').
    """

    lr: Rate = 0.1
    lambda_lr: Positive = 0.1
    batch_size: Annotated[int, Field(ge=0)] = 0
    weighting_by: Literal["uniform", "size"] = "uniform"

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        mixture = state["lambda"] if "lambda" in state else self._start(fleet)
        raised = mixture.clone()
        lam, shared = self.scalarised(state, cohort, np.ones(len(cohort)), fleet.holds[cohort], fleet)
        direction, buffers, weight = torch.zeros_like(state["x"]), torch.zeros_like(state["buffers"]), 0.0
        heard: list[int] = []
        for stack in fleet.ask(cohort, Request("gradient", shared, options={"batch_size": self.batch_size})):
            clients = list(stack.clients)
            heard += clients
            share = mixture[clients].to(state["x"].dtype)
            direction += share @ stack["g"]
            buffers += share @ stack["buffers"]
            weight += float(share.sum())
            raised[clients] += self.lambda_lr * stack["loss"].double()
        if not weight:  # nobody asked has any: x and the mixture stay
            return {**state, "lambda": mixture}, {"weights": lam, **_logged(mixture)}
        x = state["x"] - value_in_round(self.lr, t, fleet) * direction / weight
        together = float(mixture[heard].sum())
        new = mixture.clone()
        new[heard] = together * torch.from_numpy(project_simplex(raised[heard] / together))
        return {"x": x, "buffers": buffers / weight, "lambda": new}, {"weights": lam, **_logged(new)}

    def _start(self, fleet: Door) -> Tensor:
        n = torch.from_numpy(fleet.examples.astype(float))
        return n / n.sum() if self.weighting_by == "size" else torch.full_like(n, 1 / len(n))


def _logged(mixture: Tensor) -> Diagnostics:
    every = {str(client): weight for client, weight in enumerate(mixture.tolist())}
    some: Diagnostics = {"client_weights": every} if len(every) <= MOST_LOGGED else {}
    return {"largest_lambda": float(mixture.max()), **some}
