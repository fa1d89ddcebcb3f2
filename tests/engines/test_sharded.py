"""Several GPUs: a cohort in stretches over engines `batched` gives the model that one of them gives.

Here a CPU is split, and where there is a GPU, that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import nn

from polyfed import Layer, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.client.device import Device
from polyfed.core.choices import Choices
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers, Outgoing, Stage
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.engines.batched import Batched, sharded
from polyfed.engines.batched.together import Group, Together, only_finite
from polyfed.models import Headed
from polyfed.testing import check_engine, open_door
from small import small_federation, small_problem, vector

GPU = ["cuda"] if torch.cuda.is_available() else []
LACKING = {"left": [True, True, False, True, True, True, True]}
MEASURE = Request("evaluate", small_problem().initial(), options={"split": "train"})


def trained(name: str, devices: int, device: str = "cpu", layers: Any = (), **how: Any) -> Any:
    """A run over five of seven clients, whom the rounds deal to the shards in ever new ways."""
    engine = {"name": "batched", "device": device, "devices": devices, "compile": False}
    method = algorithms[name](lr=0.2, local_steps=3, batch_size=8)
    federation = small_federation(clients=7, holds=LACKING)
    settings = {"rounds": 3, "cohort": 5, "engine": engine, "layers": layers, **how}
    return train(small_problem(), federation, method, **settings)


def told(result: Any) -> list[Any]:
    """Who failed in each round, and what came from the others."""
    return [(line["failures"], line["bytes_up"]) for line in result.history]


def engine_of(devices: int, *layers: Layer, **settings: Any) -> Batched:
    part = Part(small_problem(), small_federation())
    return Batched({"": part}, Layers(layers), device="cpu", devices=devices, **settings)


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("name", ["fedavg", "fsmgda", "fedcmoo", "fedmgda+"])
def test_shards_give_the_same_model(name: str, device: str) -> None:
    whole, split = trained(name, 1, device), trained(name, 2, device)
    assert torch.allclose(vector(whole), vector(split), atol=1e-6 if device == "cpu" else 2e-5)
    for count in ("bytes_up", "bytes_down", "failures"):
        assert whole.summary[count] == split.summary[count]


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_shards_hold_what_every_engine_must(device: Device) -> None:
    check_engine(lambda parts, layers: Batched(parts, layers, device=device, chunk=2, devices=2, compile=False))


class Counted(Layer):
    """Clients send more each time they are asked; the second fails in its turn."""

    remembers = True

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id == 1:
            raise OSError("the disk is full")
        calls = out.state.get("calls", torch.zeros(())) + 1
        out.state = {**out.state, "calls": calls}
        return {name: calls * a if name in out.named("update") else a for name, a in out.arrays.items()}


@pytest.mark.filterwarnings("ignore:All work runs client by client")
@pytest.mark.parametrize("layers", [[Counted()], [{"name": "faults", "drop": 0.4}]], ids=["memory", "faults"])
def test_memory_goes_with_clients_from_shard_to_shard_and_failures_are_the_same(layers: Any, tmp_path: Path) -> None:
    local = trained("fedavg", 1, layers=layers, rounds=5, engine="local")
    whole = trained("fedavg", 3, layers=layers, rounds=5)
    trained("fedavg", 3, layers=layers, rounds=3, out=tmp_path / "run")
    resumed = trained("fedavg", 3, layers=layers, rounds=5, out=tmp_path / "run", resume=True)
    for found in (whole, resumed):
        assert torch.allclose(vector(found), vector(local), atol=1e-6)
    lost, nothing = told(local), told(trained("fedavg", 1, rounds=5))
    assert told(whole) == told(resumed) == lost != nothing


def dropping() -> Problem:
    """A net of two objectives that drops half of its units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5))
        model = Headed(body, {name: nn.Linear(8, 3) for name in ("left", "right")})
    return Problem(model, [Objective(name, "cross-entropy") for name in ("left", "right")])


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_dropout_follows_the_seed_and_not_the_callers_generator(device: str) -> None:
    engine = {"name": "batched", "device": device, "devices": 2, "compile": False}
    method = algorithms["fsmgda"](local_steps=3, batch_size=8)
    checksums = []
    for callers, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(callers)
        before = torch.get_rng_state()
        run = train(dropping(), small_federation(), method, rounds=2, cohort=5, engine=engine, seed=seed)
        checksums.append(run.summary["model_sha256"])
        assert torch.equal(torch.get_rng_state(), before)
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.parametrize(
    ("devices", "chunk", "cohort", "stacks"),
    [
        (2, 0, [5, 0, 3, 1, 4], [[5, 0, 3], [1, 4]]),
        (3, 0, [4, 2], [[4], [2]]),  # somebody has nothing to do
        (2, 2, [0, 1, 2, 3, 4, 5], [[0, 1], [2, 3], [4, 5]]),  # more than the chunks together
        (9, 0, [0, 1, 2, 3, 4, 5], [[0], [1], [2], [3], [4], [5]]),  # more than clients
    ],
)
def test_stretches_of_the_cohort_come_in_its_order(
    devices: int, chunk: int, cohort: list[int], stacks: list[list[int]]
) -> None:
    engine = engine_of(devices, chunk=chunk)
    assert [list(stack.clients) for stack in engine.ask(cohort, MEASURE)] == stacks
    assert 1 + len(engine.others) == min(devices, 6)


def test_clients_with_the_same_past_stay_together_when_the_stretches_move() -> None:
    door = open_door(small_problem(), small_federation(), engine_of(2))
    door.begin(1)
    start = {**small_problem().initial(), "omega": torch.ones(2)}
    list(door.ask(range(6), Request("gradient", start, options={"batch_size": 5})))
    again = Request("gradient", options={"batch_size": 5})  # the model is what they were sent before
    assert [list(stack.clients) for stack in door.ask([1, 2, 3, 4], again)] == [[1, 2], [3, 4]]
    assert [list(stack.clients) for stack in door.ask([0, 2, 3, 4, 5], again)] == [[0, 2, 3], [4, 5]]


@pytest.mark.filterwarnings("ignore:All work runs client by client")
def test_no_more_replies_wait_than_there_are_shards_where_clients_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, asked = engine_of(2, Counted()), list[int]()
    for shard in (engine, *engine.others):
        run_each = shard.together[""]._run_each

        def counted(group: Group, which: slice, run_each: Any = run_each) -> Iterator[Stack]:
            asked.extend(group.clients[which])
            return cast(Iterator[Stack], run_each(group, which))

        monkeypatch.setattr(shard.together[""], "_run_each", counted)
    first = next(engine.replies(range(6), MEASURE))
    assert (list(first.clients), asked) == ([0], [0, 1])


class Halved(Layer):
    stage: ClassVar[Stage] = "guard"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        return {name: 0.5 * a for name, a in out.arrays.items()}


def test_all_are_started_before_anybody_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at what a GPU is working on is to wait for it."""
    events: list[str] = []
    started = Batched.started

    def starts(self: Batched, clients: Ids, request: Request) -> Iterator[Stack]:
        events.append("started")
        return started(self, clients, request)

    def looks(stack: Stack) -> Stack:
        events.append("looked")
        return only_finite(stack)

    monkeypatch.setattr(Batched, "started", starts)
    monkeypatch.setattr("polyfed.engines.batched.only_finite", looks)
    start = {**small_problem().initial(), "omega": torch.ones(2)}
    request = Request("gradient", start, options={"batch_size": 5})
    found = list(engine_of(3, Halved()).ask(range(6), request))
    assert events == ["started"] * 3 + ["looked"] * 3
    assert [list(stack.clients) for stack in found] == [[0, 1], [2, 3], [4, 5]]


def test_a_shard_that_runs_out_of_memory_takes_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    run_stacked, crowded = Together._run_stacked, engine_of(2)
    other = crowded.others[0].together[""]

    def run(self: Together, group: Group, which: slice) -> Stack:
        if self is other and which.stop - which.start > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return run_stacked(self, group, which)

    plain = torch.cat([stack["values"] for stack in engine_of(1).ask(range(6), MEASURE)])
    monkeypatch.setattr(Together, "_run_stacked", run)
    found = list(crowded.ask(range(6), MEASURE))
    assert [list(stack.clients) for stack in found] == [[0, 1, 2], [3], [4], [5]]
    assert torch.allclose(torch.cat([stack["values"] for stack in found]), plain, atol=1e-6)


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError])
def test_what_ends_a_shard_ends_the_run(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(2)

    def fails(*_: Any) -> Stack:
        raise error("here")

    monkeypatch.setattr(engine.others[0].together[""], "_run_stacked", fails)
    with pytest.raises(error, match="here"):
        list(engine.ask(range(6), MEASURE))


@pytest.mark.parametrize(
    ("current", "gpus", "devices", "at"), [(0, 3, 0, [1, 2]), (1, 3, 0, [2, 0]), (0, 1, 2, [0]), (0, 4, 1, [])]
)
def test_each_gpu_has_an_engine(
    current: int, gpus: int, devices: int, at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int | None] = []

    def on(gpu: int | None) -> Any:
        entered.append(gpu)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(sharded, "on", on)
    parts = {"": Part(small_problem(), small_federation())}
    engine: Any = SimpleNamespace(gpu=current, parts=parts, together={}, choices=Choices())
    assert len(sharded.others(engine, devices, lambda: engine)) == len(at)
    assert entered == at
