"""Seams under load: layers that ask in groups, remember, rename arrays, draw noise, or fail in mid-round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfed import FMGDA, Callback, FedAvg, FedCMOO, Layer, QFedAvg, RunStopped, train
from polyfed.algorithms.base import descended
from polyfed.core.client import GradientClient, RowClient
from polyfed.core.door import PartView
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Around, Ids, Metered, PartFleet, Stack, Sum
from polyfed.core.layer import Outgoing
from polyfed.core.messages import Request
from polyfed.core.schema import Fields, statistics
from polyfed.core.work import Arrays, work
from polyfed.testing import open_door
from small import small_federation, small_problem, vector

EVERYWHERE = ["local", "wire", "batched", "flower"]


@work("leaning-count", reply={"n": ""}, needs="rows", state=lambda client: {"n": torch.zeros(())})
def count(client: RowClient, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"n": state["n"] + 1}, {"n": state["n"] + 1}


@work("leaning-plain", reply={"n": ""}, needs="rows")
def plain(client: RowClient, request: Request) -> Arrays:
    return {"n": torch.zeros(())}


@work("leaning-int", reply={"k": "3:int32"})
def whole(client: GradientClient, request: Request) -> Arrays:
    return {"k": torch.full((3,), 2**30, dtype=torch.int32)}


class _Grouped(Around):
    """Asks the first half, then the second, and forgets to say anything of time."""

    def sum(self, clients: Ids, request: Request) -> Sum:
        halves = [clients[: len(clients) // 2], clients[len(clients) // 2 :]]
        totals = [self.inner.sum(half, request) for half in halves]
        arrays = {name: totals[0][name] + totals[1][name] for name in totals[0].arrays}
        return Sum(arrays, [c for total in totals for c in total.clients], {})


class Grouped(Layer):
    stage = "transport"

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Grouped(inner)


@pytest.mark.parametrize("engine", ["local", "wire", "flower"])
def test_state_is_used_client_by_client_however_a_layer_asks(engine: str) -> None:
    door = open_door(small_problem(), small_federation(), engine, layers=[Grouped()])
    found = []
    for t in (1, 2, 3):
        door.begin(t)
        found.append(float(door.sum(range(6), Request("leaning-count"))["n"]))
    assert found == [6, 12, 18]


class Calls(Layer):
    """Counts what each client was asked, in work with and without state of its own; measurements too, if told."""

    remembers = True

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        calls = out.state.get("calls.n", torch.zeros(())) + 1
        out.state = {**out.state, "calls.n": calls}
        return {name: calls.to(a.dtype) if out.request.work == "leaning-plain" else a for name, a in out.arrays.items()}

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Twice(inner)


class _Twice(Around):
    def sum(self, clients: Ids, request: Request) -> Sum:
        list(self.exchange(clients, Request("leaning-plain")))
        return self.inner.sum(clients, request)


class Momentum(Layer):
    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Momentum(inner)


class _Momentum(Around):
    """Gives out what it remembers."""

    kept: tuple[Tensor, Tensor] | None = None  # and a copy

    def sum(self, clients: Ids, request: Request) -> Sum:
        total = self.inner.sum(clients, request)
        if "delta" not in total.arrays:
            return total
        given = total["delta"]
        if self.kept is not None:
            assert torch.equal(*self.kept)
            given = given + 0.9 * self.kept[0]
        self.kept = given, given.clone()
        return replace(total, arrays={**total.arrays, "delta": given})


@pytest.mark.parametrize("method", [FedAvg(lr=0.1, local_steps=2), FedCMOO(lr=0.1, local_steps=2)])
def test_what_a_layer_remembers_is_not_written_over(method: Any) -> None:
    """A method takes its step in the memory of the sum that it gets."""
    result = train(small_problem(), small_federation(), method, rounds=4, layers=[Momentum()])
    assert result.summary["rounds"] == 4


def test_a_step_is_of_the_models_type_and_leaves_the_model_alone() -> None:
    x, g = torch.arange(4.0), torch.ones(4, dtype=torch.bfloat16)
    found = descended(x, 0.5, g)
    assert found.dtype == torch.float32
    assert found.tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_exchange_of_stateless_work_is_acknowledged_under_a_layer_that_remembers() -> None:
    door = open_door(small_problem(), small_federation(), layers=[Calls()])
    found = []
    for t in (1, 2):
        door.begin(t)
        found.append(float(door.sum([0], Request("leaning-plain"))["n"]))
    assert found == [2, 4]


def test_a_layers_own_exchange_is_checked_and_its_failures_are_listed() -> None:
    class Wrong(Layer):
        def fleet(self, inner: PartFleet) -> PartFleet:
            return _Wrong(inner)

    class _Wrong(Around):
        def sum(self, clients: Ids, request: Request) -> Sum:
            list(self.exchange(clients, Request("leaning-plain", options={"what": 1})))
            return self.inner.sum(clients, request)

    door = open_door(small_problem(), small_federation(), layers=[Wrong()])
    with pytest.raises(BadInput, match="has no option 'what'"):
        door.sum([0], Request("leaning-count"))


class _Counting(Around):
    rounds = torch.zeros(())

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        self.rounds = self.rounds + 1
        return self.inner.ask(clients, request)

    def report(self) -> dict[str, Any]:
        return {"counted": float(self.rounds)}

    def tree(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load(self, tree: Mapping[str, Any]) -> None:
        self.rounds = tree["rounds"]  # a fresh run loads nothing


class Counting(Layer):
    broken = False

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Counting(inner)

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if self.broken and out.request.round == 3:
            raise RuntimeError("not now")
        return out.arrays


def test_a_layers_server_state_goes_back_with_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "broken", True)
    with pytest.raises(RunStopped, match="not now"):
        train(small_problem(), small_federation(), FedAvg(), rounds=5, layers=[Counting()], out="r")
    monkeypatch.setattr(Counting, "broken", False)
    result = train(small_problem(), small_federation(), FedAvg(), rounds=5, layers=[Counting()], out="r", resume=True)
    assert [line["counted"] for line in result.history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_whole_numbers_are_metered_as_they_travel_and_wrap(engine: str) -> None:
    door = open_door(small_problem(), small_federation(), engine)
    assert isinstance(door.inner, PartView)
    meter = door.inner.inner
    assert isinstance(meter, Metered)
    door.begin(1)
    total = door.sum(range(6), Request("leaning-int"))
    assert total["k"].dtype is torch.int32
    assert total["k"].tolist() == [(6 * 2**30 + 2**31) % 2**32 - 2**31] * 3
    up = meter.up
    list(door.ask(range(6), Request("leaning-int")))
    assert meter.up == 2 * up


class Scaled(Layer):
    """Updates as int32 under another name, with their scale beside them."""

    stage = "quantise"

    def transported(self, fields: Fields) -> Fields:
        kept = {n: f for n, f in fields.items() if f.role != "update"}
        sent = {f"{n}.q": replace(f, dtype="int32") for n, f in fields.items() if f.role == "update"}
        return {**kept, **sent, **{f"{n}.s": statistics() for n, f in fields.items() if f.role == "update"}}

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        updates = out.named("update")
        scale = {n: out.arrays[n].abs().max() / 2**20 for n in updates}
        kept = {n: a for n, a in out.arrays.items() if n not in updates}
        sent = {f"{n}.q": (out.arrays[n] / scale[n]).round().to(torch.int32) for n in updates}
        return {**kept, **sent, **{f"{n}.s": s for n, s in scale.items()}}

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Widened(inner)


class _Widened(Around):
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in self.inner.ask(clients, request):
            names = [n.removesuffix(".q") for n in stack.arrays if n.endswith(".q")]
            kept = {n: a for n, a in stack.arrays.items() if not n.endswith((".q", ".s"))}
            yield replace(stack, arrays={**kept, **{n: _wide(stack, n) for n in names}})


def _wide(stack: Stack, name: str) -> Tensor:
    scale = stack[f"{name}.s"]
    return stack[f"{name}.q"].to(scale.dtype) * scale.unsqueeze(1)


class Seeing(Layer):
    """After another layer has renamed arrays, roles are still known."""

    stage = "mask"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        assert out.named("update") == ["delta.q"]
        return out.arrays


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_arrays_may_be_renamed_from_layer_to_layer(engine: str) -> None:
    method = FedAvg(lr=0.5, local_steps=2, batch_size=8)
    plain = train(small_problem(), small_federation(), method, rounds=2)
    layers = [Scaled(), Seeing()]
    found = train(small_problem(), small_federation(), method, rounds=2, engine=engine, layers=layers)
    assert found.summary["failures"] == 0
    assert torch.allclose(vector(plain), vector(found), atol=1e-4)
    assert not torch.equal(vector(plain), vector(found))


class NaNs(Layer):
    """Client 2's updates are no numbers."""

    stage = "attack"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        bad = torch.as_tensor(out.client.id) == 2
        return {n: torch.where(bad, float("nan"), a) if n == "delta" else a for n, a in out.arrays.items()}


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_what_is_no_number_is_stopped_before_it_is_quantised(engine: str) -> None:
    layers = [NaNs(), Scaled()]
    result = train(small_problem(), small_federation(), FedAvg(), rounds=1, engine=engine, layers=layers)
    (failure,) = result.history[0]["failures"]
    assert failure["client"] == 2
    assert "NaN" in failure["why"]


class Median(Layer):
    stage = "aggregate"
    needs = "sums"

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Median(inner)


class _Median(Around):
    def sum(self, clients: Ids, request: Request) -> Sum:
        return self.combined(list(self.single_replies(clients, request)), request, lambda u: u.median(0).values)


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize(
    "method",
    [QFedAvg, FMGDA, FedCMOO, lambda **s: FedCMOO(compress="exact", ways=2, **s)],
    ids=["q", "f", "c", "two-way"],
)
def test_a_median_goes_with_every_method_that_needs_sums(method: Any, by: str) -> None:
    holds = {"left": [True, True, False, True, True, True]}
    made = method(local_steps=2, batch_size=5, weighting_by=by)
    plain, robust = (
        train(small_problem(), small_federation(holds=holds), made, rounds=2, layers=layers)
        for layers in ([], [Median()])
    )
    assert robust.summary["failures"] == 0
    assert torch.isfinite(vector(robust)).all()
    assert not torch.equal(vector(plain), vector(robust))


def test_a_method_that_asks_although_it_says_sums_is_stopped() -> None:
    door = open_door(small_problem(), small_federation(), layers=[Median()])
    with pytest.raises(BadInput, match="lets only sums of 'leaning-plain' through"):
        list(door.ask([0], Request("leaning-plain")))


class Noise(Layer):
    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        from polyfed.core import tensorkeys

        def noisy(a: Tensor) -> Tensor:
            return a + tensorkeys.uniform(out.key, a.numel()).reshape(a.shape).to(a.dtype)

        return {n: noisy(a) if n in out.named("update") else a for n, a in out.arrays.items()}


def test_noise_differs_by_exchange_and_layer_and_is_the_same_on_every_engine() -> None:
    problem = small_problem()
    request = Request(
        "sgd",
        {**problem.initial(), "omega": torch.tensor([0.5, 0.5])},
        options={"lr": 0.1, "steps": 1, "batch_size": 5},
    )
    found = {}
    for engine in EVERYWHERE:
        door = open_door(problem, small_federation(), engine, layers=[Noise(), Noise()])
        door.begin(1)
        found[engine] = [torch.cat([s["delta"] for s in door.ask(range(6), request)]) for _ in range(2)]
        assert not torch.allclose(found[engine][0], found[engine][1], atol=1e-3)
        assert torch.allclose(found[engine][0], found["local"][0], atol=1e-5)
        assert torch.allclose(found[engine][1], found["local"][1], atol=1e-5)


# callbacks at the ends of a run


class Stops(Callback):
    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_start(self, run: Any) -> None:
        if self.hook == "start":
            run.stop()

    def on_round(self, run: Any, line: Any) -> None:
        if self.hook == "round" and run.round == 2:
            run.stop()

    def on_end(self, run: Any, result: Any) -> None:
        if self.hook == "end":
            raise ValueError("no ink")


def test_a_run_that_a_callback_stops_is_complete() -> None:
    evaluate = {"every": 10}
    result = train(
        small_problem(), small_federation(), FedAvg(), rounds=9, callbacks=[Stops("round")], evaluate=evaluate
    )
    assert (len(result.history), result.summary["rounds"]) == (2, 2)
    assert set(result.summary["objectives"]) == {"left", "right"}
    assert train(small_problem(), small_federation(), FedAvg(), rounds=9, callbacks=[Stops("start")]).history == []


def test_a_callback_that_fails_at_the_end_leaves_a_complete_run() -> None:
    with pytest.raises(RunStopped, match=r"no ink.*is complete"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, callbacks=[Stops("end")], out="r")
    assert Path("r/result.json").exists()


def test_bad_input_that_shows_late_leaves_no_run() -> None:
    class Late(Layer):
        def fleet(self, inner: PartFleet) -> PartFleet:
            raise BadInput("This layer wants another fleet.")

    with pytest.raises(BadInput, match="another fleet"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, layers=[Late()], out="never")
    assert not Path("never").exists()


def test_misspelt_hooks_and_class_variables_in_a_file_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfed.core.layer import layers

    monkeypatch.syspath_prepend(".")
    for name, line, why in (
        ("leaning_a", "def replys(self, out): ...", "nearly called like the hook 'reply'"),
        ("leaning_b", "remember = True", "nearly called like the hook 'remembers'"),
    ):
        Path(f"{name}.py").write_text(f"from polyfed import Layer\n\n\nclass Mine(Layer):\n    {line}\n")
        with pytest.raises(BadInput, match=why):
            _ = layers[f"{name}:Mine"]
