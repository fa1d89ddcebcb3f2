"""Engine `ray`: the same models as `local` to rounding; sums that leave out and name what is not valid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import pytest
import torch
from fleets import LOCAL, NEURAL, TASKS, many, trained, weights
from torch import Tensor

from outside import COMPRESSOR, MEDIAN
from polyfed import FedCMOO, train
from polyfed.core.client import ClientState, RowClient
from polyfed.core.door import Door, PartView
from polyfed.core.engine import engines
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layer, Layers, Outgoing, Stage
from polyfed.core.messages import TICKS, Request
from polyfed.core.part import Part
from polyfed.core.work import Arrays, work
from polyfed.engines.ray.inner import share
from polyfed.engines.ray.shard import Stream
from polyfed.experiment.building import build_engine
from polyfed.testing import check_engine, open_door
from small import small_federation, small_problem

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyfed[ray]'")
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One local Ray for all of these tests: starting it takes seconds."""
    # of GPUs Ray believes what it is told: where there is none, workers find that out, and use the CPU
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


TOGETHER = {"name": "batched", "compile": False}


@pytest.mark.parametrize(
    ("name", "settings", "inner"),
    [*((*method, "local") for method in (*NEURAL, TASKS)), (*NEURAL[0], TOGETHER), (*NEURAL[2], TOGETHER)],
)
def test_the_same_model_as_local(name: str, settings: dict[str, Any], inner: Any) -> None:
    local = trained(name, settings, "local")
    result = trained(name, settings, {"name": "ray", "workers": 2, "inner": inner})
    rounding = 2e-5 if inner == TOGETHER and torch.cuda.is_available() else 1e-6
    assert torch.allclose(weights(local), weights(result), atol=rounding)
    assert result.summary["failures"] == 0
    for count in ("bytes_up", "bytes_down"):
        assert local.summary[count] == result.summary[count]


def test_many_models_as_local() -> None:
    local, rays = many({"name": "local"}, "local"), many({"name": "ray", "workers": 2}, "rays")
    assert all(np.allclose(local[name], rays[name], atol=1e-6) for name in local)


class BreakSome(Layer):
    stage: ClassVar[Stage] = "guard"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id == 1:
            raise OSError("the disk is full")
        return {"g": out.arrays["g"][:-1]} if out.client.id == 4 and "g" in out.arrays else out.arrays


@pytest.mark.parametrize("inner", ["local", {**TOGETHER, "device": "cpu"}])
def test_a_sum_leaves_out_and_names_what_is_not_sound(inner: Any) -> None:
    problem, federation = small_problem(), small_federation()
    request = Request("toy-slope", problem.initial())
    found = {}
    for name, how in (("local", {}), ("ray", {"inner": inner})):
        engine = engines[name]({"": Part(problem, federation)}, Layers((BreakSome(),)), **how)
        door = open_door(problem, federation, engine)
        assert isinstance(door.inner, PartView)
        meter = door.inner.inner
        assert isinstance(meter, Metered)
        door.begin(1)
        total = door.sum(range(6), request)
        found[name] = total, dict(door.failures), meter.down
        engine.close()
    assert found["ray"][1:] == found["local"][1:]
    assert set(found["ray"][1]) == {1, 4}
    assert list(found["ray"][0].clients) == [0, 2, 3, 5]
    assert torch.allclose(found["ray"][0]["g"], found["local"][0]["g"], atol=1e-6)


@pytest.mark.parametrize(("workers", "inner", "gpu"), [(1, "local", 0.0), (2, "local", 0.0), (0, "batched", 1.0)])
def test_state_is_kept_committed_and_saved(workers: int, inner: str, gpu: float) -> None:
    problem, federation = small_problem(), small_federation()
    engine = engines["ray"]({"": Part(problem, federation)}, Layers(), workers=workers, inner=inner)
    door = open_door(problem, federation, engine)
    for t in (1, 2):
        door.begin(t)
        list(door.ask(range(6), Request("toy-add", each={"amount": torch.arange(6.0)})))
    tree = engine.tree()
    door.begin(3)
    list(door.ask([5], Request("toy-add", each={"amount": torch.tensor([100.0])})))
    engine.load(tree)  # back to a checkpoint: round 3 never was
    door.clock.used[5] = 2 * TICKS
    door.begin(3)
    totals = torch.cat([s["total"] for s in door.ask(range(6), Request("toy-total"))])
    assert totals.tolist() == [0, 2, 4, 6, 8, 10]
    made: Any = engine
    assert (len(made._shards), made._gpu) == (workers or 1, gpu)  # a GPU each, of which there is one
    assert not gpu or not ray.available_resources().get("GPU")
    engine.close()


def test_dropped_sums_commit_nothing() -> None:
    problem, federation = small_problem(), small_federation()
    engine = engines["ray"]({"": Part(problem, federation)}, Layers((BreakSome(),)), workers=2)
    door = open_door(problem, federation, engine)
    door.begin(1)
    door.sum(range(6), Request("toy-add", each={"amount": torch.ones(6)}))
    assert sorted(door.clock.used) == [0, 2, 3, 4, 5]
    engine.close()


@work("toy-nap", reply={"slept": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_nap(client: RowClient, request: Request, state: ClientState) -> tuple[Arrays, ClientState]:
    """Sleeps for as long as it is told, and remembers how often it did; a negative time is the end."""
    if request["seconds"] < 0:
        time.sleep(0.5)  # Ray may lose what was sent in the last milliseconds
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(request["seconds"]))
    return {"slept": state["total"] + request["model"]}, {"total": state["total"] + 1}


def naps(fleet: Door, seconds: Sequence[float], how: str, **shared: Tensor) -> dict[int, float]:
    """What those that woke up say: of a sum, all of it as the last one's."""
    request = Request("toy-nap", shared, each={"seconds": torch.tensor(seconds)})
    if how == "ask":
        return {c: float(s["slept"][i]) for s in fleet.ask(range(6), request) for i, c in enumerate(s.clients)}
    total = fleet.sum(range(6), request)
    return {**dict.fromkeys(total.clients, 0.0), max(total.clients): float(total["slept"])}


HANGS, DIES = (60.0, "did not answer within 2 s"), (-1.0, "its worker process died")


@pytest.mark.parametrize(
    ("how", "inner", "seconds", "why"),
    [*((how, "local", *end) for how in ("ask", "sum") for end in (HANGS, DIES)), ("sum", "batched", *DIES)],
)
def test_a_client_that_hangs_or_kills_its_worker_is_named_and_nothing_is_lost(
    how: str, inner: str, seconds: float, why: str
) -> None:
    part = Part(small_problem(), small_federation())
    engine = engines["ray"]({"": part}, Layers(), workers=2, timeout=60.0, inner=inner)
    fleet = open_door(small_problem(), small_federation(), engine)
    fleet.begin(1)
    naps(fleet, [0.0] * 6, how, model=torch.tensor(10.0))
    for shard in cast(Any, engine)._shards:  # not before: the first exchange imports what it needs
        shard.timeout = 2.0
    fleet.begin(2)
    assert sum(naps(fleet, [0.0] * 6, "ask", model=torch.tensor(20.0)).values()) == 6 * 21
    begun = time.monotonic()
    found = naps(fleet, [0.0, seconds, 0.0, 0.0, 0.0, 0.0], how)  # the model is the one of the exchange before
    assert time.monotonic() - begun < 30  # the deadline, and a worker that starts on a busy machine
    assert fleet.failures == [(1, why)]
    assert sorted(found) == [0, 2, 3, 4, 5]
    assert sum(found.values()) == 5 * 22
    saved = engine.tree(), fleet.clock.tree()
    fleet.begin(3)
    assert sum(naps(fleet, [0.0] * 6, how, model=torch.tensor(0.0)).values()) == 5 * 3 + 2
    engine.load(saved[0])  # round 3 never was
    fleet.clock.load(saved[1])
    fleet.begin(3)
    assert sum(naps(fleet, [0.0] * 6, how, model=torch.tensor(0.0)).values()) == 5 * 3 + 2
    engine.close()


def test_a_client_that_is_silent_is_left_alone_for_a_while() -> None:
    engine = engines["ray"]({"": Part(small_problem(), small_federation())}, Layers(), workers=1)
    fleet = open_door(small_problem(), small_federation(), engine)
    fleet.begin(1)
    for _ in range(2):
        naps(fleet, [0.0, -1.0, 0.0, 0.0, 0.0, 0.0], "ask", model=torch.tensor(0.0))
    assert sorted(naps(fleet, [0.0] * 6, "sum")) == [0, 2, 3, 4, 5]
    assert fleet.failures[2] == (1, "missed too many exchanges; asked again in round 2")
    fleet.begin(2)
    assert naps(fleet, [0.0] * 6, "ask", model=torch.tensor(0.0))[1] == 0
    assert engine.tree()[""].keys() == {"0", "1", "2", "3", "4", "5", "missed"}  # an answer forgives half a miss
    engine.close()


class Stop(Layer):
    stage: ClassVar[Stage] = "guard"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        return out.arrays


def test_a_stopped_worker_is_replaced() -> None:
    engine = {"name": "ray", "workers": 2, "timeout": 5.0}
    result = train(small_problem(), small_federation(), "fedavg", rounds=1, engine=engine, layers=[Stop()])
    assert result.history[0]["failures"] == [{"client": 4, "why": "did not answer within 5 s"}]


def test_a_cluster_that_is_not_there_is_a_sentence() -> None:
    ray.shutdown()
    with pytest.raises(BadInput, match="there is no Ray cluster there"):
        trained("fedavg", LOCAL, {"name": "ray", "address": "auto"})
    assert not list(Path.cwd().glob("runs/*"))
    result = trained("fedavg", LOCAL, {"name": "ray", "workers": 2}, rounds=1)  # and one of our own is ended
    assert not ray.is_initialized()
    assert torch.allclose(weights(result), weights(trained("fedavg", LOCAL, "local", rounds=1)), atol=1e-6)


SIGNALLED = """
import os, signal
from polyfed.engines.ray.cluster import cluster

heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
ray = cluster.enter("", 1)
os.kill(os.getpid(), signal.SIGTERM)
cluster.leave(ray)
print("heard", heard == [signal.SIGTERM])
"""


def test_signals_stay_the_runs_to_handle() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=120)
    assert "heard True" in done.stdout, done.stderr


def test_ray_holds_what_every_engine_must() -> None:
    check_engine(lambda parts, layers: engines["ray"](parts, layers, workers=2), exact=True)


@pytest.mark.parametrize(
    ("gpus", "workers", "part"), [(0, 4, 0.0), (2, 2, 1.0), (4, 2, 1.0), (1, 2, 0.5), (2, 3, 0.5), (1, 3, 0.3333)]
)
def test_workers_share_gpus_so_that_all_find_room(gpus: int, workers: int, part: float) -> None:
    assert share(gpus, workers) == part


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ("wire", r"engine\.inner should be 'local' or 'batched'\. Found 'wire'"),
        ({"name": "wire"}, r"engine\.inner\.name should be 'local' or 'batched'\. Found 'wire'"),
        ({"name": "batched", "chunky": 1}, r"Unknown key 'engine\.inner\.chunky'\. Did you mean 'chunk'"),
        ({"name": "batched", "chunk": -1}, r"engine\.inner\.chunk should be greater than or equal to 0"),
        ({"name": "local", "workers": 2}, r"engine\.inner = 'local' takes no settings\. Found 'workers'"),
    ],
)
def test_an_inner_engine_that_cannot_be_is_a_sentence(inner: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        build_engine({"name": "ray", "inner": inner})


@pytest.mark.parametrize(("together", "left"), [(False, [2, 3, 4]), (True, [])])
def test_who_goes_together_is_given_up_together_the_second_time(together: bool, left: list[int]) -> None:
    asked: list[list[int]] = []
    ask = SimpleNamespace(remote=lambda shared, rows, keeps: asked.append([client for client, _ in rows]))
    shard: Any = SimpleNamespace(actor=SimpleNamespace(ask=ask), together=together)
    stream = Stream(shard, "ask", "", None, [(client, b"") for client in range(5)], False)
    for _ in range(2):
        stream.blame("lost")
        stream.issue()
    assert asked[:2] == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
    assert asked[2:] == ([left] if left else [])
    assert stream.lost == {client: "lost" for client in range(5) if client not in left}


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_layers_and_compressors_from_outside(
    by: Literal["uniform", "size"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A median, and a compressor, in files that the workers find on the path."""
    for name, text in ((f"ray_median_{by}", MEDIAN), (f"ray_signs_{by}", COMPRESSOR)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    compress = {"name": f"ray_signs_{by}:Signs", "keep": 3}
    method = FedCMOO(compress=compress, weighting_by=by, local_steps=2, batch_size=5)
    layers = [f"ray_median_{by}:Median"]
    found = {
        str(engine): weights(train(small_problem(), small_federation(), method, rounds=2, engine=engine, layers=layers))
        for engine in ("local", {"name": "ray", "workers": 2})
    }
    local, cluster = found.values()
    assert torch.allclose(local, cluster, atol=1e-6)
    plain = weights(train(small_problem(), small_federation(), method, rounds=2))
    assert not torch.allclose(local, plain, atol=1e-5)


class Long(Layer):
    """Client 3 sends updates 1e4 times as long."""

    stage: ClassVar[Stage] = "attack"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        about = out.named("update", "gradient") if out.client.id == 3 else ()
        return {name: 1e4 * a if name in about else a for name, a in out.arrays.items()}


@pytest.mark.parametrize("guard", [True, False])
def test_a_sum_leaves_out_who_is_far_from_the_rest(guard: bool) -> None:
    problem, federation = small_problem(), small_federation()
    start = {**problem.initial(), "omega": torch.ones(2)}
    request = Request("sgd", start, options={"lr": 0.1, "steps": 2, "batch_size": 4})
    found = {}
    for name in ("local", "ray"):
        engine = engines[name]({"": Part(problem, federation)}, Layers((Long(),), guard=guard))
        door = open_door(problem, federation, engine)
        door.begin(1)
        found[name] = door.sum(range(6), request), dict(door.failures)
        engine.close()
    assert found["ray"][1] == found["local"][1]
    assert set(found["ray"][1]) == ({3} if guard else set())
    assert torch.allclose(found["ray"][0]["delta"], found["local"][0]["delta"], rtol=1e-5)
