"""The fair baselines that FedMGDA+ is measured against: q-FedAvg (Li et al. 2020) and AFL (Mohri et al. 2019)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import LocalTraining, Rate, value_in_round
from polyfed.algorithms.objectives.scalarised import Scalarised
from polyfed.core.door import Door
from polyfed.core.messages import Request
from polyfed.core.settings import NotNegative, Positive, settings
from polyfed.weights import project_simplex


@algorithms("q-fedavg")
@settings
class QFedAvg(Scalarised, LocalTraining):
    """Clients with a higher loss count more, by the power q; q = 0 is FedAvg.

    x <- x - sum_i Delta_i / sum_i h_i with Delta_i = F_i^q Dw_i, h_i = q F_i^(q-1) |Dw_i|^2 + L F_i^q and
    Dw_i = L (x - x_i), F_i the client's mean loss at x.

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
        lam, shared = self.scalarised(state, cohort, np.ones(len(cohort)), fleet)
        lipschitz = self.L or 1 / value_in_round(self.lr, t, fleet)
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
    Where only some clients are asked, lambda is renormalised over them for the step and moves for them alone.

    Args:
        lr: gamma_w, the step size in x.
        lambda_lr: gamma_l, the step size in the clients' weights.
        batch_size: rows of a gradient; 0 for all of a client's.
    """

    lr: Rate = 0.1
    lambda_lr: Positive = 0.1
    batch_size: Annotated[int, Field(ge=0)] = 0

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        everyone = state.get("lambda", torch.full((len(fleet),), 1 / len(fleet), dtype=torch.float64)).clone()
        lam, shared = self.scalarised(state, cohort, np.ones(len(cohort)), fleet)
        direction, buffers, weight = torch.zeros_like(state["x"]), torch.zeros_like(state["buffers"]), 0.0
        for stack in fleet.ask(cohort, Request("gradient", shared, options={"batch_size": self.batch_size})):
            clients = list(stack.clients)
            share = state.get("lambda", everyone)[clients].to(state["x"].dtype)
            direction += share @ stack["g"]
            buffers += share @ stack["buffers"]
            weight += float(share.sum())
            everyone[clients] += self.lambda_lr * stack["loss"].double()
        weight = weight or 1.0  # nobody asked has any weight: stay
        x = state["x"] - value_in_round(self.lr, t, fleet) * direction / weight
        new = {"x": x, "buffers": buffers / weight, "lambda": torch.from_numpy(project_simplex(everyone))}
        return new, {"weights": lam, "largest_lambda": float(new["lambda"].max())}
