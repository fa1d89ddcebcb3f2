"""What a layer keeps at clients that have disks of their own, as in a deployment: killed in mid-round and resumed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outside import TOY
from polyfed import FedAvg, train
from small import small_federation, small_problem

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")


class Killed(BaseException):
    """As abrupt as a signal: nothing is checkpointed on the way out."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("toy")
    (folder / "disk_toy.py").write_text(TOY.replace('"toy-', '"disk-toy-'))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("disk_toy")


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Clients of the engine `flower` with memory in a folder, which outlives their process."""
    from polyfed.deploy import engine
    from polyfed.deploy.memory import DiskMemory

    place: dict[str, Path] = {}

    def memory() -> DiskMemory:
        place["next"] = place["home"] / str(1 + int(place["next"].name if "next" in place else 0))
        return DiskMemory(place["next"])

    monkeypatch.setattr(engine, "Memory", memory)
    monkeypatch.setattr(engine.InProcess, "durable", True)
    return place


def run(toy: Any, place: dict[str, Path], name: str, **more: Any) -> str:
    place.pop("next", None)
    place["home"] = Path(f"home-{name}")
    method, layers = FedAvg(lr=0.1, local_steps=2, batch_size=5), [toy.Toy()]
    result = train(
        small_problem(),
        small_federation(),
        method,
        rounds=6,
        cohort=4,
        engine="flower",
        layers=layers,
        out=name,
        **more,
    )
    assert result.summary["failures"] == 0
    return str(result.summary["model_sha256"])


@pytest.mark.parametrize("moment", ["between its exchanges", "after the sum"])
def test_a_kill_in_mid_round(toy: Any, on_disk: dict[str, Path], moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(toy, on_disk, "whole")
    whole_sum = toy.ToyFleet.sum

    def killed(self: Any, clients: Any, request: Any) -> Any:
        if self.clock.round == 4 and moment == "between its exchanges":
            list(self.exchange(clients, toy.Request("disk-toy-offer")))
            raise Killed
        total = whole_sum(self, clients, request)
        if self.clock.round == 4:
            raise Killed
        return total

    with monkeypatch.context() as patch:
        patch.setattr(toy.ToyFleet, "sum", killed)
        with pytest.raises(Killed):
            run(toy, on_disk, "killed")
    assert run(toy, on_disk, "killed", resume=True) == whole
