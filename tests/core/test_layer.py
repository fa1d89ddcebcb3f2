"""Layers around the work, where the data is: attacks before the finite check, guards after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from polyfed import BadInput, Layer
from polyfed.core.layer import Layers, Outgoing
from polyfed.core.messages import Request
from small import small_problem
from toys import door


@dataclass
class Scale(Layer):
    """One client's arrays times a factor."""

    stage = "attack"
    client_id: int
    factor: float

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        return {n: a * self.factor if out.client.id == self.client_id else a for n, a in out.arrays.items()}


@dataclass
class Clip(Layer):
    """The gradient cut to a length."""

    stage = "guard"
    limit: float

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        g = torch.as_tensor(out.arrays["g"])
        return {**out.arrays, "g": g * min(1.0, self.limit / float(g.norm()))}


def test_attack_and_clip_happen_at_the_client_in_this_order(engine: str) -> None:
    fleet, start = door(engine, [Scale(2, 1e6), Clip(0.5)]), small_problem().initial()
    fleet.begin(1)
    norms = torch.cat([s["g"].norm(dim=1) for s in fleet.ask(range(6), Request("toy-gradient", start))])
    assert norms[2] == pytest.approx(0.5)
    assert (norms <= 0.5 + 1e-6).all()


def test_an_attack_that_is_not_a_number_is_stopped_before_the_clip(engine: str) -> None:
    fleet = door(engine, [Scale(2, float("nan")), Clip(0.5)])
    fleet.begin(1)
    list(fleet.ask(range(6), Request("toy-gradient", small_problem().initial())))
    assert fleet.failures == [(2, "FloatingPointError: 'g' holds NaN or infinity")]


def test_another_order_is_refused() -> None:
    with pytest.raises(BadInput, match=r"list '.*Scale' \(attack\) before '.*Clip' \(guard\)"):
        Layers((Clip(0.5), Scale(2, 1e6)))
