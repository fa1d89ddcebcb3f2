"""Engine `ray`: the same models as `local` to rounding; sums that leave out and name what is not valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from fleets import LOCAL, NEURAL, TASKS, many, trained, weights

from outside import COMPRESSOR, MEDIAN
from polyfed import FedCMOO, train
from polyfed.core.door import PartView
from polyfed.core.engine import engines
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layer, Layers, Outgoing, Stage
from polyfed.core.messages import TICKS, Request
from polyfed.core.part import Part
from polyfed.testing import check_engine, open_door
from small import small_federation, small_problem

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyfed[ray]'")
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One local Ray for all of these tests: starting it takes seconds."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize(("name", "settings"), [*NEURAL, TASKS])
def test_the_same_model_as_local(name: str, settings: dict[str, Any]) -> None:
    local = trained(name, settings, "local")
    result = trained(name, settings, {"name": "ray", "workers": 2})
    assert torch.allclose(weights(local), weights(result), atol=1e-6)
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


def test_a_sum_leaves_out_and_names_what_is_not_sound() -> None:
    problem, federation = small_problem(), small_federation()
    request = Request("toy-slope", problem.initial())
    found = {}
    for name in ("local", "ray"):
        engine = engines[name]({"": Part(problem, federation)}, Layers((BreakSome(),)))
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


@pytest.mark.parametrize("workers", [1, 2])
def test_state_is_kept_committed_and_saved(workers: int) -> None:
    problem, federation = small_problem(), small_federation()
    engine = engines["ray"]({"": Part(problem, federation)}, Layers(), workers=workers)
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
    engine.close()


def test_dropped_sums_commit_nothing() -> None:
    problem, federation = small_problem(), small_federation()
    engine = engines["ray"]({"": Part(problem, federation)}, Layers((BreakSome(),)), workers=2)
    door = open_door(problem, federation, engine)
    door.begin(1)
    door.sum(range(6), Request("toy-add", each={"amount": torch.ones(6)}))
    assert sorted(door.clock.used) == [0, 2, 3, 4, 5]
    engine.close()


def test_a_cluster_that_is_not_there_is_a_sentence() -> None:
    ray.shutdown()
    with pytest.raises(BadInput, match="there is no Ray cluster there"):
        trained("fedavg", LOCAL, {"name": "ray", "address": "auto"})
    assert not list(Path.cwd().glob("runs/*"))
    result = trained("fedavg", LOCAL, {"name": "ray", "workers": 2}, rounds=1)  # and one of our own is ended
    assert not ray.is_initialized()
    assert torch.allclose(weights(result), weights(trained("fedavg", LOCAL, "local", rounds=1)), atol=1e-6)


def test_ray_holds_what_every_engine_must() -> None:
    check_engine(lambda parts, layers: engines["ray"](parts, layers, workers=2), exact=True)


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
