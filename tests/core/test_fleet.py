"""The door under load: a toy method with two exchanges a round, single replies, sums, cohorts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyfed import Algorithm, FedAvg, Layer
from polyfed.algorithms import State
from polyfed.core.door import Door, PartView
from polyfed.core.fleet import Metered, Stack, Sum, _begun
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.problem import Problem
from polyfed.engines.wire import Wire
from polyfed.testing import open_door
from small import small_federation, small_problem
from toys import door


@dataclass
class TwoExchanges(Algorithm):
    """Steps along the mean gradient, as far as the clients agree with it.

    The second exchange does not send x again, and the client draws the same batch.
    """

    def init(self, problem: Problem) -> State:
        return dict(problem.initial())

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Mapping[str, Any]]:
        cohort = fleet.cohort(t)
        first = torch.cat([s["g"] for s in fleet.ask(cohort, Request("toy-gradient", state))])
        mean = first.mean(0)
        second = list(fleet.ask(cohort, Request("toy-agreement", {"direction": mean})))
        assert torch.equal(torch.cat([s["g"] for s in second]), first)
        rate = torch.cat([s["agreement"] for s in second]).mean() / mean.square().sum()
        return {**state, "x": state["x"] - 0.1 * rate * mean}, {}


def test_two_exchanges(engine: str) -> None:
    fleet, problem = door(engine), small_problem()
    state = TwoExchanges().init(problem)
    for t in (1, 2):
        fleet.begin(t)
        state, _ = TwoExchanges().round(t, state, fleet)
    assert not torch.equal(state["x"], problem.initial()["x"])


def test_an_algorithm_may_hold_every_vector(engine: str) -> None:
    fleet, start = door(engine), small_problem().initial()
    fleet.begin(1)
    stacks = list(fleet.ask(range(6), Request("toy-gradient", start)))
    vectors = torch.cat([s["g"] for s in stacks])
    assert vectors.shape == (6, small_problem().dim)
    assert [c for s in stacks for c in s.clients] == list(range(6))
    assert vectors.median(0).values.shape == start["x"].shape


def test_a_sum_is_the_sum_of_what_ask_gives(engine: str) -> None:
    fleet, start = door(engine), small_problem().initial()
    fleet.begin(1)
    vectors = torch.cat([s["g"] for s in fleet.ask(range(6), Request("toy-gradient", start))])
    total = fleet.sum(range(6), Request("toy-gradient", start))
    assert list(total.clients) == list(range(6))
    assert torch.allclose(total["g"], vectors.sum(0))


def test_a_reply_that_was_refused_is_not_in_the_sum_whatever_its_type() -> None:
    refused = Stack((0,), {"g": torch.zeros(1, 3).double()}).drop({0: "found torch.float64"})
    total = Sum.of([refused, Stack((1,), {"g": torch.ones(1, 2)})])
    assert (total.clients, total.failed) == ([1], {0: "found torch.float64"})
    assert torch.equal(total["g"], torch.ones(2))


def test_cohorts_are_uniform_and_keyed() -> None:
    fleet = door("local")
    assert fleet.cohort(5) == fleet.cohort(5)
    assert fleet.cohort(5, "other") != fleet.cohort(5) or fleet.cohort(6, "other") != fleet.cohort(6)
    counts = np.bincount([c for t in range(3000) for c in fleet.cohort(t)], minlength=6)
    assert abs(counts - 2000).max() < 150


def test_clients_without_examples_are_not_drawn() -> None:
    federation = small_federation()
    lengths = federation.train.length.copy()
    lengths[[1, 4]] = 0
    federation = replace(federation, train=replace(federation.train, length=lengths))
    assert open_door(small_problem(), federation, cohort=6).cohort(1) == [0, 2, 3, 5]


class Broken(Layer):
    stage = "attack"

    def client(self, client: Any) -> Any:
        if client.id == 3:
            raise ValueError("a broken client")
        return client


def test_bytes_counted_are_bytes_sent() -> None:
    problem, federation = small_problem(), small_federation()
    wire = Wire({"": Part(problem, federation)}, Layers((Broken(),)))
    fleet = open_door(problem, federation, wire)
    assert isinstance(fleet.inner, PartView)
    meter = fleet.inner.inner
    assert isinstance(meter, Metered)
    state: State = dict(problem.initial())
    for t in (1, 2):
        fleet.begin(t)
        state, _ = FedAvg(local_steps=1).round(t, state, fleet)
        assert [client for client, _ in fleet.failures] == [3]
        list(fleet.ask([0, 1], Request("toy-save", each={"amount": torch.ones(2)})))
        if t == 1:  # what only measures is counted apart, both ways together
            assert (meter.up, meter.down, meter.measuring) == (wire.up, wire.down, 0)
        list(fleet.ask(range(6), Request("evaluate", state, options={"split": "train"})))
    assert meter.up + meter.down + meter.measuring == wire.up + wire.down
    assert min(meter.up, meter.down, meter.measuring) > 0


def test_where_no_memory_can_be_pinned_copies_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*shape: Any, **settings: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refused)
    plain = torch.ones(3)
    there: Any = SimpleNamespace(
        is_cuda=True, shape=plain.shape, dtype=plain.dtype, numel=lambda: 3, element_size=lambda: 4, cpu=lambda: plain
    )
    assert _begun(there) is plain
