"""How many clients go at once: by a trial of one and two, and what happens when memory runs out all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import nn

from polyfed import Objective, Problem, train
from polyfed.client.autograd import Autograd
from polyfed.client.device import no_memory
from polyfed.core.choices import Choices
from polyfed.core.errors import BadInput
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.engines.batched import Batched, chunks
from polyfed.engines.batched.chunks import MOST, ON_HOST, Chunks, fitting
from polyfed.engines.batched.together import Group, Together
from polyfed.models import Headed
from small import small_federation, small_problem, vector

MB, GB = 10**6, 10**9
CUDA = torch.device("cuda")  # by name alone: nothing is put there


@pytest.mark.parametrize(
    ("one", "two", "free", "lanes", "clients"),
    [
        (30 * MB, 50 * MB, 10 * GB, 1, 399),  # 20 MB each, and 10 MB once: (8,000 - 10) / 20
        (20 * MB, 40 * MB, 10 * GB, 1, 400),
        (20 * MB, 40 * MB, 0, 1, 1),
        (6 * GB, 12 * GB, 5 * GB, 1, 1),
        (1 * MB, 2 * MB, 100 * GB, 1, MOST),
        (5 * MB, 5 * MB, 10 * GB, 1, MOST),  # as if one more took nothing
        (5 * MB, 4 * MB, 10 * GB, 1, MOST),
        (1 * GB, 1 * GB + 10 * MB, 10 * GB, 1, 701),  # what is temporary is there once
        (1 * GB, 1 * GB + 10 * MB, 10 * GB, 8, 8),  # or eight times
    ],
)
def test_as_many_as_fit_into_four_fifths(one: int, two: int, free: int, lanes: int, clients: int) -> None:
    assert fitting(one, two, free, lanes) == clients


def on_host() -> tuple[Together, Group]:
    """A model's clients, and the group of six of them that is to train."""
    part = Part(small_problem(), small_federation())
    together = Batched({"": part}, Layers(), device="cpu").together[""]
    shared = {**part.problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    request = Request("sgd", shared, options={"lr": 0.1, "steps": 40, "batch_size": 8})
    (group,) = together.groups(list(range(6)), request)
    return together, group


@dataclass
class Device:
    """A GPU that is none: bytes that one client takes, and that there are; how many clients were tried."""

    each: int = 100
    free: int = 600
    undisturbed: bool = True
    tried: list[int] = field(default_factory=list)

    def peak(self, run: Callable[[], Any]) -> int:
        run()
        return self.each * self.tried[-1]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made, attempt = Device(), Together.attempt

    def noted(self: Together, group: Group, clients: int) -> None:
        made.tried.append(clients)
        attempt(self, group, clients)

    monkeypatch.setattr(Together, "attempt", noted)
    monkeypatch.setattr(chunks, "peak", made.peak)
    monkeypatch.setattr(chunks, "available", lambda: made.free)
    monkeypatch.setattr(chunks, "undisturbed", lambda: made.undisturbed)
    return made


def test_a_trial_finds_the_chunk_once_and_its_pieces_are_alike(device: Device) -> None:
    together, group = on_host()
    choices = Choices()
    of = Chunks(0, CUDA, choices)
    # 480 of the 600 bytes are for four clients; six in two pieces are three each
    assert of(together, group) == of(together, group) == 3
    assert device.tried == [1, 1, 2]
    (said,) = choices.news()
    assert said == "Up to 4 clients of the work 'sgd' at once: one more takes 0.0001 MB of 0.0006 MB."
    assert Chunks(0, CUDA, Choices())(together, group) == 3  # the next run has it from the disk
    resumed = Choices()
    resumed.load(choices.tree())
    assert Chunks(0, CUDA, resumed)(together, group) == 3
    assert len(device.tried) == 3


def test_what_others_leave_free_is_for_this_run_alone(device: Device) -> None:
    together, group = on_host()
    device.free, device.undisturbed = 200, False
    assert Chunks(0, CUDA, Choices())(together, group) == 1
    device.free = 600
    assert Chunks(0, CUDA, Choices())(together, group) == 3


@pytest.mark.parametrize(("free", "reserved", "alone"), [(90, 5, True), (40, 55, True), (40, 5, False)])
def test_memory_that_is_neither_free_nor_ours_is_somebody_elses(
    free: int, reserved: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    assert chunks.undisturbed() is alone


def test_a_setting_the_host_and_one_client_need_no_trial(device: Device) -> None:
    together, group = on_host()
    assert Chunks(5, CUDA, Choices())(together, group) == 5
    assert Chunks(0, torch.device("cpu"), Choices())(together, group) == ON_HOST
    (alone,) = together.groups([3], group.request)
    assert Chunks(0, CUDA, Choices())(together, alone) == MOST
    assert not device.tried


def test_a_trial_takes_two_steps_of_the_largest_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[list[int], Any]] = []
    task = Together._task

    def noted(self: Together, group: Group, which: slice) -> Any:
        tried.append((group.clients, group.request.options["steps"]))
        return task(self, group, which)

    monkeypatch.setattr(Together, "_task", noted)
    together, group = on_host()
    together._rows["train"][1][:] = [3, 20, 5, 20, 1, 2]
    together.attempt(group, 1)
    together.attempt(group, 2)
    assert tried == [([1], 2), ([1, 3], 2)]


def test_a_trial_that_fails_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    together, group = on_host()
    errors = [torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError("vmap: no rule")]

    def fails(group: Group, clients: int) -> None:
        raise errors[0]

    monkeypatch.setattr(together, "attempt", fails)
    of = Chunks(0, CUDA, Choices())
    assert of(together, group) == 1
    assert Choices().known("chunk", together.about(group.request, 0), lambda value: True) is None
    errors.reverse()
    other = Chunks(0, CUDA, Choices())
    (measuring,) = together.groups(list(range(6)), Request("evaluate", group.request.shared, options={}))
    assert other(together, measuring) == MOST  # the work itself will say what is wrong


def test_memory_that_runs_out_halves_the_chunk_of_that_work_for_this_run() -> None:
    together, group = on_host()
    choices = Choices()
    of = Chunks(5, CUDA, choices)
    of.smaller(together, group, 5)
    assert of(together, group) == 3
    assert choices.news() == ["Up to 3 clients of the work 'sgd' at once: memory ran out with 5."]
    (measuring,) = together.groups(list(range(6)), Request("evaluate", group.request.shared, options={}))
    assert of(together, measuring) == 5
    assert Chunks(5, CUDA, Choices())(together, group) == 5
    with pytest.raises(BadInput, match="One client alone does not fit"):
        of.smaller(together, group, 1)


def test_who_says_that_memory_has_run_out() -> None:
    assert no_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert no_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    compiled = RuntimeError("backend='inductor' raised:")
    compiled.__cause__ = torch.cuda.OutOfMemoryError("x")
    assert no_memory(compiled)
    assert not no_memory(RuntimeError("vmap: no rule"))
    assert not no_memory(None)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("x"), RuntimeError("cuDNN: CUDNN_STATUS_ALLOC_FAILED")])
@pytest.mark.parametrize("method", ["fedavg", "fsmgda", "fedcmoo"])
def test_a_round_in_which_memory_runs_out_gives_the_same(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 2, at the second of three chunks: what was done stays, the rest is done in smaller ones."""
    algorithm = {"name": method, "lr": 0.1, "local_steps": 2, "batch_size": 8}
    engine = {"name": "batched", "device": "cpu", "chunk": 4}

    def run() -> Any:
        return train(small_problem(), small_federation(clients=10), algorithm, rounds=4, engine=engine)

    undisturbed, run_stacked = run(), Together._run_stacked
    asked: list[tuple[int, int, int]] = []

    def crowded(self: Together, group: Group, which: slice) -> Any:
        asked.append((group.request.round, which.start, which.stop))
        if (group.request.round, which.start, which.stop) == (2, 4, 8) and raised[0] == 0:
            raised[0] += 1
            run_stacked(self, group, which)  # all of it, and then no room for what it has made
            raise error
        return run_stacked(self, group, which)

    raised = [0]
    monkeypatch.setattr(Together, "_run_stacked", crowded)
    disturbed = run()
    assert raised == [1]
    second = [(start, stop) for t, start, stop in asked if t == 2]
    assert second[:5] == [(0, 4), (4, 8), (4, 6), (6, 8), (8, 10)]
    assert torch.allclose(vector(undisturbed), vector(disturbed), atol=1e-6)
    for key in ("bytes_up", "bytes_down", "failures", "rounds"):
        assert undisturbed.summary[key] == disturbed.summary[key]
    for before, after in zip(undisturbed.history, disturbed.history, strict=True):
        assert [before[key] for key in ("bytes_up", "bytes_down", "cohort", "failures")] == [
            after[key] for key in ("bytes_up", "bytes_down", "cohort", "failures")
        ]
    assert "memory ran out with 4" in disturbed.summary["choices"][0]
    assert disturbed.history[1]["choices"] == disturbed.summary["choices"]


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("x"), RuntimeError("cuDNN: CUDNN_STATUS_ALLOC_FAILED")])
@pytest.mark.parametrize("method", ["fedavg", "fsmgda", "fedcmoo"])
def test_one_after_another_a_client_without_memory_is_done_again(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what can be made again gone, its work has room: nobody fails, and the round is the same, dropout too."""
    algorithm = {"name": method, "lr": 0.1, "local_steps": 2, "batch_size": 8}
    monkeypatch.setattr(Together, "_loops", lambda self, work: True)

    def run() -> Any:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5))
        model = Headed(body, {name: nn.Linear(8, 3) for name in ("left", "right")})
        problem = Problem(model, [Objective(name, "cross-entropy") for name in ("left", "right")])
        return train(problem, small_federation(clients=4), algorithm, rounds=3, engine=engine)

    engine = {"name": "batched", "device": "cpu"}
    undisturbed, grad, jacobian, forget = run(), Autograd._grad, Autograd._jacobian, Batched._forget
    calls, made_room = [0], [0]

    def crowded(f: Any, self: Autograd, *arguments: Any) -> Any:
        found = f(self, *arguments)
        calls[0] += 1
        if calls[0] == 2:
            raise error  # no room for what it has made
        return found

    def forgetting(self: Batched) -> None:
        made_room[0] += 1
        forget(self)

    monkeypatch.setattr(Autograd, "_grad", partialmethod(partial(crowded, grad)))
    monkeypatch.setattr(Autograd, "_jacobian", partialmethod(partial(crowded, jacobian)))
    monkeypatch.setattr(Batched, "_forget", forgetting)
    disturbed = run()
    assert made_room == [1]
    assert torch.equal(vector(undisturbed), vector(disturbed))
    for key in ("bytes_up", "bytes_down", "failures", "rounds"):
        assert undisturbed.summary[key] == disturbed.summary[key]


def test_one_client_for_whom_there_is_no_memory_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "_loops", lambda self, work: True)

    def never(*arguments: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Autograd, "_grad", never)
    algorithm = {"name": "fedavg", "lr": 0.1, "local_steps": 2, "batch_size": 8}
    with pytest.raises(Exception, match="one client alone does not fit into the device's memory: use a smaller"):
        train(small_problem(), small_federation(clients=4), algorithm, rounds=3,
              engine={"name": "batched", "device": "cpu"})  # fmt: skip
