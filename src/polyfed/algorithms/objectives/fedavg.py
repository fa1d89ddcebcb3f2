"""FedAvg, and what FedMGDA+ makes of it: one class, and the published methods are its settings.

Client i takes local steps on sum_s omega_s f_si (+ mu/2 |w - x|^2) from x to x_i and sends g_i = x - x_i. The server
takes x <- x - eta_t sum_i lambda_i g_i, with

    lambda = argmin { |sum_i lambda_i g_i|^2 : lambda in the simplex, |lambda - lambda0|_inf <= eps }   (FedMGDA)

and g_i / |g_i| in place of g_i where normalised (a zero update stays zero). eps = 0 is lambda = lambda0, a plain mean.

| name | normalise | eps | mu |
|---|---|---|---|
| fedavg (McMahan et al. 2017) | no | 0 | 0 |
| fedprox (Li et al. 2020) | no | 0 | > 0 |
| fedavg-n | yes | 0 | 0 |
| fedmgda | no | 1 | 0 |
| fedmgda+ | yes | (0, 1] | 0 |
| mgda-prox | yes | (0, 1] | > 0 |

Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization", 2022, Algorithm 1. Here the
objectives that weights are found for are the *clients*; several objectives of one model are summed under fixed
`weights`. Where the paper's code differs: no local momentum by default, mu/2 in the proximal term, and singular Grams
are solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import LocalTraining, ServerRate, descended, value_in_round
from polyfed.algorithms.objectives.scalarised import Scalarised
from polyfed.core.door import Door
from polyfed.core.fleet import Sum
from polyfed.core.messages import Request
from polyfed.core.settings import NotNegative, settings
from polyfed.rates import EpsRule
from polyfed.rates.fedmgda import check_powers
from polyfed.weights import frank_wolfe_gap, min_norm

Radius = Annotated[float, Field(ge=0, le=1)] | EpsRule


@algorithms("fedavg")
@settings
class FedAvg(Scalarised, LocalTraining):
    """Averages the clients' local updates; several objectives are summed under fixed `weights`.

    Args:
        server_lr: eta_t, the server's step size, a number or a schedule.
        normalise: whether updates are brought to length one first.
        eps: how far the clients' weights may move from the mean's towards the min-norm point; 0 for the mean. A number,
            or a rule by its name.
        mu: the strength of the proximal term at the clients.
    """

    server_lr: ServerRate = 1.0
    normalise: bool = False
    eps: Radius = 0.0
    mu: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_powers(self.server_lr, self.batch_size)

    @property
    def needs(self) -> Literal["sums", "replies"]:
        """A plain mean needs no more than a sum."""
        return "sums" if self.eps == 0 and not self.normalise else "replies"

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        lam, shared = self.scalarised(state, cohort, self.shares(cohort, fleet), self.stakes(cohort, fleet), fleet)
        request = Request("sgd", shared, options={**self.local_options(t, fleet), "mu": self.mu})
        combine = self._mgda if self.needs == "replies" else self._mean
        mean, total, found = combine(cohort, request, fleet)
        x = descended(state["x"], self.at_server(self.server_lr, t, fleet), mean)
        state = {"x": x, "buffers": total["buffers"] / total["weight"]}
        return state, {"weights": lam, "train": total["losses"] / total["heard"], **found}

    def _mean(self, cohort: Sequence[int], request: Request, fleet: Door) -> tuple[Tensor, Any, Diagnostics]:
        """sum_i a_i g_i / sum_i a_i: a sum is all the server learns."""
        total = fleet.sum(cohort, request)
        return total["delta"].div_(total["weight"]), total, {}

    def _mgda(self, cohort: Sequence[int], request: Request, fleet: Door) -> tuple[Tensor, Any, Diagnostics]:
        """The min-norm point in the box around lambda0; needs every client's vector."""
        stacks = list(fleet.ask(cohort, request))
        replies = {name: torch.cat([s[name] for s in stacks]) for name in stacks[0].arrays}
        lam0 = replies["weight"].double() / replies["weight"].double().sum()
        g = torch.nn.functional.normalize(replies["delta"]) if self.normalise else replies["delta"]
        gram = (g @ g.T).double().numpy()
        clients = [client for s in stacks for client in s.clients]
        # who holds nothing that counts has a zero update, which would take all the weight and stop training
        counted = (request.shared["omega"] > 0).numpy()
        stake = np.asarray(fleet.holds[clients][:, counted].any(1))
        some = lam0.numpy()[stake]
        eps = min(value_in_round(self.eps, fleet.round, fleet, "eps"), 1.0)
        lam = np.zeros(len(stake))
        if not stake.any():  # nothing that counts is here: all updates are zero
            stake, some = np.ones_like(stake), lam0.numpy()
        among = gram[np.ix_(stake, stake)]
        lam[stake] = min_norm(among, center=some if stake.all() else some / some.sum(), eps=eps)
        by_client = {str(c): weight for c, weight in zip(clients, lam.tolist(), strict=True)}
        found: Diagnostics = {"client_weights": by_client, "gap": frank_wolfe_gap(among, lam[stake])}
        total = Sum.of(stack.weighed(request) for stack in stacks)  # of the buffers and losses
        return torch.as_tensor(lam, dtype=g.dtype) @ g, total, found


@algorithms("fedprox")
@settings
class FedProx(FedAvg):
    """FedAvg whose clients are held near the server's model by mu/2 |w - x|^2."""

    mu: NotNegative = 0.01


@algorithms("fedavg-n")
@settings
class FedAvgN(FedAvg):
    """FedAvg of normalised updates: every client pulls equally hard."""

    normalise: bool = True


@algorithms("fedmgda")
@settings
class FedMGDA(FedAvg):
    """Every client an objective: the common descent direction of all their updates."""

    eps: Radius = 1.0


@algorithms("fedmgda+")
@settings
class FedMGDAPlus(FedAvg):
    """FedMGDA of normalised updates, weights within eps of the mean's: fair, and robust to scaled losses."""

    normalise: bool = True
    eps: Radius = 0.1


@algorithms("mgda-prox")
@settings
class MGDAProx(FedAvg):
    """FedMGDA+ with FedProx's proximal term at the clients."""

    normalise: bool = True
    eps: Radius = 0.1
    mu: NotNegative = 0.1
