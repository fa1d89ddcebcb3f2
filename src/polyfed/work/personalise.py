"""Fine-tuning before measuring: what the server's model becomes on a client's own rows, and how good that is there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work
from polyfed.work.evaluate import EvaluateOptions, evaluated_at
from polyfed.work.sgd import LocalSteps, descend


@dataclass(frozen=True)
class PersonaliseOptions(EvaluateOptions, LocalSteps):
    """How a client fine-tunes, and what it is measured on afterwards; it counts as in `evaluate`."""


@work("personalise", reply=PersonaliseOptions.reply, options=PersonaliseOptions, numbers=("lr",), measures=True)
def personalise(client: GradientClient, request: Request, options: PersonaliseOptions) -> Arrays:
    """Local steps from x on the training rows, on sum_s omega_s f_s over the objectives held, omega brought to a sum of
    one among them; then `evaluate` at where they end. Nothing of it is kept."""
    own = request["omega"] * client.holds
    own = own / own.sum().clamp(min=torch.finfo(own.dtype).tiny)
    w, buffers, _ = descend(client, request, options, own)
    return evaluated_at(client, w, buffers, options)
