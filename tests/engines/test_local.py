"""The local engine and its workers: rows, asks inside asks, and processes that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed import FedAvg, Layer, RunStopped, train
from polyfed.core.messages import Request
from small import small_federation, small_problem
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


def test_a_dead_worker_is_a_sentence() -> None:
    engine = {"name": "local", "workers": 2}
    with pytest.raises(RunStopped, match="A worker process died"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, engine=engine, layers=[Deadly()])


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
    assert len(_alive(marker)) == 3
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
