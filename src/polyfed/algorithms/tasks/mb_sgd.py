"""Mb-SGD: minibatch stochastic subgradient descent on MOCHA's primal problem.

    w_t <- w_t - eta_h (c_t n_t / b sum over a batch of l'(w_t^T x, y) x + (grad R(W))_t)

In a round each node sends the gradient of one batch; only tasks somebody sent one for take a step. Smith et al. 2017,
Appendix E.3 (Mb-SGD); Shalev-Shwartz, Singer, Srebro, "Pegasos", 2007, has eta_h = 1 / (lambda h): `lr` takes it as
{ beta = 1 / lambda }.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import Rate, value_in_round
from polyfed.algorithms.tasks.regularisers import Matrix
from polyfed.algorithms.tasks.task_models import TaskModels, finish
from polyfed.core.door import Door
from polyfed.core.messages import Request
from polyfed.core.settings import settings


@algorithms("mb-sgd")
@settings
class MbSGD(TaskModels):
    """Minibatch SGD over the nodes' tasks, Omega as it starts.

    Args:
        lr: eta_h, the step size, a number or a schedule.
        batch_size: b, rows of a node's minibatch.
    """

    lr: Rate = 0.01
    batch_size: Annotated[int, Field(ge=1)] = 32

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        state = self.begun(state, fleet)
        nodes = fleet.cohort(t)
        task = self.task_of(nodes)
        batch = np.minimum(self.batch_size, fleet.examples[np.asarray(nodes)])
        each = {
            "w": state["W"][torch.from_numpy(task)], "c": self.scales(nodes, fleet),
            "budget": torch.from_numpy(batch),
        }  # fmt: skip
        W, G = state["W"], torch.zeros_like(state["W"])
        heard = torch.zeros(len(W), 1, dtype=torch.bool)
        request = Request("task-gradient", self.shared(state), each, self.options(), known=self.units(fleet))
        for stack in self.answers(nodes, request, fleet):
            where = torch.from_numpy(self.task_of(stack.clients))
            G.index_add_(0, where, stack["g"])
            heard[where] = True
        G += torch.from_numpy(self.rule.slope(W.numpy(), self.rule.mbar(state["omega"].numpy())))
        return finish(state, W=torch.where(heard, W - value_in_round(self.lr, t, fleet) * G, W)), {}

    def _values(self, V: Matrix, W: Matrix, omega: Matrix, loss: float, conjugate: float) -> dict[str, Any]:
        """There is no dual here."""
        return {"primal": super()._values(V, W, omega, loss, conjugate)["primal"]}
