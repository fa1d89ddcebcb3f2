"""FSMGDA's local work: one run of local steps for every objective, apart."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfed.compress.sketch import sketch
from polyfed.core.client import Client
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work
from polyfed.work.jacobian import columns
from polyfed.work.sgd import descend, share


def updates(client: Client, request: Request) -> tuple[Tensor, Tensor, Tensor]:
    """Delta_si = x - x_si (M, d) of every objective held, the losses at x (M,), and the buffers, averaged over runs."""
    x, M = request["x"], len(client.holds)
    one = torch.eye(M, dtype=x.dtype, device=x.device)
    runs = [descend(client, request, one[s]) for s in range(M)]
    held = client.holds
    deltas = torch.stack([x - w for w, _, _ in runs]) * held.unsqueeze(1)
    buffers = (torch.stack([b for _, b, _ in runs]) * held.unsqueeze(1)).sum(0) / held.sum()
    return deltas, runs[0][2], buffers


@work("sgd-each", reply={"deltas": "M d", "buffers": "b", "losses": "M", "heard": "M", "weight": ""}, numbers=("lr",))
def sgd_each(client: Client, request: Request) -> Arrays:
    """a_i Delta_si for every objective s the client holds: M models' upload."""
    deltas, losses, buffers = updates(client, request)
    a = share(client, request)
    heard = a * client.holds
    return {"deltas": a * deltas, "buffers": a * buffers, "losses": heard * losses, "heard": heard, "weight": a}


@work("sgd-each-sketch", reply={"S": "M k", "losses": "M", "heard": "M"}, numbers=("lr",))
def sgd_each_sketch(client: Client, request: Request) -> Arrays:
    """Sketches of a_i Delta_si, from which the server finds weights (width 0 sends them whole)."""
    deltas, losses, _ = updates(client, request)
    a = share(client, request)
    shown = a * columns(deltas, client.problem, request.options["over"])
    k = int(request.options["k"])  # type: ignore[arg-type]
    S = shown if k == shown.shape[1] else sketch(shown, k, client.common_key)
    return {"S": S, "losses": a * client.holds * losses, "heard": a * client.holds}


@work("sgd-each-combined", reply={"delta": "d", "buffers": "b", "weight": ""})
def sgd_each_combined(client: Client, request: Request) -> Arrays:
    """u_i = sum_s omega_s a_i Delta_si, the same local runs as before: one model's upload."""
    deltas, _, buffers = updates(client, request)
    a = share(client, request)
    return {"delta": a * (request["omega"] @ deltas), "buffers": a * buffers, "weight": a}
