"""A run with a clip at the clients, an attacker, and steps that are clipped themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from polyfed import Layer
from polyfed.core.layer import Outgoing
from polyfed.layers.attacks import Misreport

STEP = 0.8  # the longest gradient of a local step


class Clip(Layer):
    """Updates and gradients of at most this norm, selected as vmap asks."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        found = {name: out.arrays[name] for name in out.named("update", "gradient")}
        return {**out.arrays, **{n: a * torch.clamp(self.norm / a.norm(), max=1.0) for n, a in found.items()}}


def attack() -> Layer:
    """The second client reports another loss than it has."""
    return Misreport(clients=[1], factor=5.0, bias=0.5)


def layers() -> list[Layer]:
    return [attack(), Clip(0.1)]
