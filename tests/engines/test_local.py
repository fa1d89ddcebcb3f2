"""The local engine and its workers: rows, asks inside asks, and processes that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from polyfed import FedAvg, Layer, Result, RunStopped, train
from polyfed.core.door import Door
from polyfed.core.messages import Request
from polyfed.engines.local import nursery
from small import small_federation, small_problem, vector
from toys import EVERYWHERE, door, engine_of


@pytest.mark.parametrize(("name", "settings"), EVERYWHERE)
def test_a_row_of_ones_own_wins_over_a_shared_array_of_that_name(name: str, settings: dict[str, Any]) -> None:
    fleet = door(name, **settings)
    fleet.begin(1)
    list(fleet.ask([0, 1, 2], Request("toy-echo", {"v": torch.zeros(())})))
    stacks = fleet.ask([0, 1, 2], Request("toy-echo", each={"v": torch.tensor([2.0, 4.0, 6.0])}))
    assert torch.cat([s["v"] for s in stacks]).tolist() == [2, 4, 6]
    engine_of(fleet).close()


def test_an_ask_inside_an_ask_and_one_left_early() -> None:
    fleet = door("local", workers=2)
    fleet.begin(1)
    request = Request("toy-echo", {"v": torch.ones(())})
    for stack in fleet.ask(range(6), request):
        assert [c for s in fleet.ask([1, 2], request) for c in s.clients] == [1, 2]
        if stack.clients[0] == 3:
            break
    assert [c for s in fleet.ask(range(6), request) for c in s.clients] == list(range(6))
    engine_of(fleet).close()


class Deadly(Layer):
    stage = "attack"

    def client(self, client: Any) -> Any:
        if client.id == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return client


TWO = {"name": "local", "workers": 2, "timeout": 1.0}


def failures(result: Result) -> list[list[tuple[int, str]]]:
    """Of each round, who failed and why."""
    return [[(f["client"], f["why"]) for f in line["failures"]] for line in result.history]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_where_forked_processes_cannot_train_workers_are_this_process(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with a GPU, after this process has trained."""
    here = {**TWO, "device": "auto"}  # of several workers, that is the host
    apart = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=here)
    monkeypatch.setattr(nursery, "_take_a_gradient", lambda: 1 / 0)
    with pytest.warns(
        RuntimeWarning, match="trained before, on a machine with a GPU, .*: workers = 2 is 1 in this run"
    ):
        alone = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=here)
    assert torch.equal(vector(alone), vector(apart))


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("does", "trains"), [(lambda: None, True), (lambda: time.sleep(60), False), (stop, False)])
def test_a_forked_process_is_tried_and_never_goes_on(
    does: Callable[[], None], trains: bool, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "PROMPT", 0.5)
    monkeypatch.setattr(nursery, "_take_a_gradient", does)
    assert nursery.forks_train() is trains


def test_where_there_is_no_fork_nothing_is_tried(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert nursery.forks_train()


def test_a_dead_worker_is_replaced_and_its_client_named() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=TWO, layers=[Deadly()])
    assert {c for line in failures(result) for c, _ in line} == {3}
    assert "its worker process died (exit code -9" in failures(result)[0][0][1]


def test_where_every_worker_dies_the_run_stops_and_says_why() -> None:
    class Fatal(Deadly):
        def client(self, client: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RunStopped, match="its worker process died"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, engine=TWO, layers=[Fatal()])


class Sleepy(Layer):
    stage = "attack"

    def client(self, client: Any) -> Any:
        if client.id == 3:
            time.sleep(60)
        return client


def test_a_client_that_hangs_is_named_and_left_alone_for_longer_and_longer() -> None:
    begun = time.monotonic()
    result = train(small_problem(), small_federation(), FedAvg(), rounds=6, engine=TWO, layers=[Sleepy()])
    why = [dict(line)[3] for line in failures(result)]
    late = "did not answer within 1 s"
    assert time.monotonic() - begun < 20
    assert [w == late for w in why[:5]] == [True, True, True, False, True]
    assert why[3] == "missed too many exchanges; asked again in round 5"
    assert why[5] == "missed too many exchanges; asked again in round 9"
    assert {c for line in failures(result) for c, _ in line} == {3}


def test_misses_are_saved_with_what_clients_remember() -> None:
    fleet = door("local", workers=2)
    engine = cast(Any, engine_of(fleet))
    fleet.begin(1)
    _saved(fleet, 1.0)
    for t in (1, 1, 2):
        engine.patience[""].missed(4, t)
    saved = engine.tree(), fleet.clock.tree()
    engine.close()
    again = door("local", workers=2)
    engine_of(again).load(saved[0])
    again.clock.load(saved[1])
    for t, answers in ((3, [0, 1, 2, 3, 5]), (4, [0, 1, 2, 3, 4, 5])):
        again.begin(t)
        assert [c for s in again.ask(range(6), Request("toy-balance")) for c in s.clients] == answers
    assert all(s["total"] == 1 for s in again.ask(range(6), Request("toy-balance")))
    engine_of(again).close()


def pids(fleet: Any) -> list[int]:
    return [worker._pid for worker in cast(Any, engine_of(fleet))._pool._workers]


def test_a_stopped_worker_is_replaced_within_the_deadline() -> None:
    fleet = door("local", workers=2, timeout=1.0)
    fleet.begin(1)
    assert _saved(fleet, 1.0) == list(range(6))
    stopped = pids(fleet)[0]
    os.kill(stopped, signal.SIGSTOP)
    fleet.begin(2)
    begun = time.monotonic()
    answered = _saved(fleet, 10.0)
    assert 0.9 < time.monotonic() - begun < 5
    assert len(answered) == 5
    missing = ({*range(6)} - {*answered}).pop()
    assert fleet.failures == [(missing, "did not answer within 1 s")]
    assert stopped not in pids(fleet)
    fleet.begin(3)  # nothing that was acknowledged is lost, and nothing else is remembered
    totals = torch.cat([stack["total"] for stack in fleet.ask(range(6), Request("toy-balance"))])
    assert totals.tolist() == [1.0 if c == missing else 11.0 for c in range(6)]
    engine_of(fleet).close()


def test_a_stopped_worker_does_not_take_a_large_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fills the pipe: nobody is waiting for an answer yet, so nobody has failed."""
    monkeypatch.setattr("polyfed.engines.local.channel.SLOT", 1 << 16)
    fleet = door("local", workers=2, timeout=1.0)
    fleet.begin(1)
    os.kill(pids(fleet)[0], signal.SIGSTOP)
    begun = time.monotonic()
    assert _saved(fleet, 1.0, {"x": torch.zeros(1 << 20)}) == list(range(6))
    assert 0.9 < time.monotonic() - begun < 5
    assert fleet.failures == []
    engine_of(fleet).close()


def _saved(fleet: Door, amount: float, shared: Mapping[str, Tensor] | None = None) -> list[int]:
    """Whose savings have grown."""
    request = Request("toy-save", shared or {}, each={"amount": torch.full((6,), amount)})
    return [c for stack in fleet.ask(range(6), request) for c in stack.clients]


def test_a_worker_lost_between_exchanges_costs_nobody_anything() -> None:
    fleet = door("local", workers=2, timeout=1.0)
    fleet.begin(1)
    os.kill(pids(fleet)[0], signal.SIGKILL)
    time.sleep(0.2)
    assert _saved(fleet, 1.0) == list(range(6))
    assert fleet.failures == []
    engine_of(fleet).close()


def test_a_run_that_was_itself_stopped_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z and fg: we have waited for long, and our workers had no chance to answer."""
    waits: list[float] = []

    def wait(pipes: list[Any], seconds: float) -> list[Any]:
        waits.append(seconds)
        if len(waits) > 1:
            return connection.wait(pipes, seconds)
        time.sleep(1.5)
        return []

    monkeypatch.setattr("polyfed.engines.local.workers.wait", wait)
    fleet = door("local", workers=2, timeout=1.0)
    fleet.begin(1)
    assert _saved(fleet, 1.0) == list(range(6))
    assert fleet.failures == []
    engine_of(fleet).close()


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see processes")
def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """Whatever they are doing: a large model keeps the pipes busy."""
    marker = f"out-{os.getpid()}-{time.time_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "polyfed", "run", "--out", str(tmp_path / marker), "--set", "engine.workers=2",
         "--set", "model.hidden=[1500, 500]", "--set", "data.examples=500", "--set", "data.clients=10"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not (tmp_path / marker / "metrics.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.5)
    assert len(_alive(marker)) == 4  # the run, two workers, and the process that starts them
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    while time.monotonic() < limit and _alive(marker):
        time.sleep(0.1)
    assert not _alive(marker)


def _alive(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
