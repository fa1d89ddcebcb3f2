"""Supervised contrastive learning (Khosla et al. 2020): examples of one class draw together, others go apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.problem import Objective


def supervised_contrastive(
    name: str, *, temperature: float = 0.1, output: str | int | Callable[[Any], Any] | None = None
) -> Objective:
    """L_out of Khosla et al. 2020 (their eq. 2) over the examples of a batch, averaged over those that have a partner.

    Reported is the mean over evaluation batches of at most 1024 rows: pairs do not add up over batches.

    Args:
        name: the objective's; its targets are class numbers.
        temperature: tau, what similarities are divided by.
        output: the embeddings (n, width) in the module's output, as in `Objective`; they are brought to length 1.
    """
    if not isinstance(temperature, float | int) or not temperature > 0:
        raise BadInput(f"Objective {shown(name)}: temperature should be above 0. Found {shown(temperature)}.")
    loss = partial(_contrastive, temperature=float(temperature))
    return Objective(name, loss, output=output, per="batch", takes=("output", "target", "mask"))


def _contrastive(output: Tensor, target: Tensor, mask: Tensor, *, temperature: float) -> Tensor:
    z = F.normalize(output.reshape(len(mask), -1), dim=1)
    alone = torch.eye(len(mask), dtype=z.dtype, device=z.device)
    others = mask.unsqueeze(0) * (1 - alone)  # A(i): everybody that counts, but i
    similar = z @ z.T / temperature
    # a row's own place and padding take no part in its softmax; a finite number keeps gradients free of NaN
    similar = torch.where(others > 0, similar, torch.full_like(similar, -1e4))
    log_p = similar - torch.logsumexp(similar, 1, keepdim=True)
    partners = others * (target.unsqueeze(0) == target.unsqueeze(1))  # P(i)
    each = -(partners * log_p).sum(1) / partners.sum(1).clamp(min=1)
    anchors = mask * (partners.sum(1) > 0)
    return (anchors * each).sum() / anchors.sum().clamp(min=1)
