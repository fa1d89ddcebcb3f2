"""FedCMOO's drivers on small data: Delta_M against its formula, progress from models that another run left."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfed.reproduce import sharing
from polyfed.reproduce.driving import driver_of
from polyfed.reproduce.grids import driven as merged
from polyfed.reproduce.item import Item, chosen, items
from polyfed.reproduce.sharing import once

DATA = {"name": "two-digits", "examples": 400, "clients": 4}
MODEL = {"name": "mlp", "hidden": [16]}
STEPS = {"lr": 0.1, "local_steps": 3, "batch_size": 16}


def driven(key: str, settings: dict[str, Any]) -> Any:
    (item,) = chosen(key)
    return driver_of(item, item.grids[0])({"data": DATA, "model": MODEL, "cohort": 4, **settings}, 0)


def test_delta_m_is_the_mean_relative_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    (item,) = chosen("fedcmoo/table4")
    cost: Any = driver_of(item, item.grids[0])
    alone = {"left": 1.0, "right": 0.8}
    monkeypatch.setitem(
        cost.__globals__,
        "_accuracies",
        lambda experiment, only, last: {only: alone[only]} if only else {"left": 0.9, "right": 0.6},
    )
    found = cost({"rounds": 1, "last": 1, "alone": {}}, 0)["values"]
    assert found == {"delta_m": pytest.approx(100 * (0.1 + 0.25) / 2), "first": 100, "second": 80}


def test_delta_m_is_above_0_where_only_alone_is_trained() -> None:
    apart = {"rounds": 6, "last": 1, "evaluate": {"every": 6}, "alone": {"name": "fedavg", **STEPS, "lr": 0.5}}
    found = driven("fedcmoo/table4", {**apart, "algorithm": {"name": "fedavg", **STEPS, "lr": 1e-9}})
    assert found["values"]["delta_m"] > 20
    assert found["rounds"] == 6


def test_progress_is_measured_from_the_models_of_another_run() -> None:
    trained = {"algorithm": {"name": "fedavg", **STEPS}, "clients": 4, "at": [0, 2, 4]}
    found = driven("fedcmoo/fig11", {**trained, "probe": {"name": "fsmgda", **STEPS}})
    curve = found["curves"]["local.loss"]
    assert curve["x"]["round"] == [0, 2, 4]
    assert all(value > 0 for value in curve["y"])
    assert found["values"]["loss"] == pytest.approx(sum(curve["y"]) / 3)
    still = driven("fedcmoo/fig11", {**trained, "at": [0], "probe": {"name": "fedavg", **STEPS, "lr": 1e-9}})
    assert still["values"] == {"loss": pytest.approx(0, abs=1e-6), "accuracy": 0}


def test_rows_share_the_run_that_they_begin_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sharing, "MEMO", SimpleNamespace(name=str(tmp_path)))
    (item,) = chosen("fedcmoo/fig11")
    gained: Any = driver_of(item, item.grids[0])
    run, begun = gained.__globals__["_run"], []

    def counted(*asked: Any) -> Any:
        begun.append(asked[2].name)
        return run(*asked)

    monkeypatch.setitem(gained.__globals__, "_run", counted)
    settings = {"data": DATA, "model": MODEL, "cohort": 4, "clients": 4, "at": [0, 2]}
    settings["algorithm"] = {"name": "fedavg", **STEPS}
    first = gained(settings | {"probe": {"name": "fsmgda", **STEPS}}, 0)
    again = gained(settings | {"probe": {"name": "fsmgda", **STEPS}}, 0)
    assert first == again
    gained(settings | {"probe": {"name": "fedavg", **STEPS}}, 1)
    assert begun == ["to-2", *2 * ["probe-0", "probe-2"], "to-2", "probe-0", "probe-2"]


def test_what_could_not_be_computed_is_tried_again_in_an_empty_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sharing, "MEMO", SimpleNamespace(name=str(tmp_path)))
    seen = []

    def make(folder: Path) -> str:
        seen.append(list(folder.iterdir()))
        (folder / "half").touch()
        if len(seen) == 1:
            raise ValueError("out of luck")
        return folder.name

    with pytest.raises(ValueError, match="out of luck"):
        once(["a"], make)
    found = once(["a"], make)
    assert once(["a"], make) == found != once(["b"], make)
    assert seen == [[], [], []]


@pytest.mark.forks
def test_processes_wait_for_what_another_computes_and_not_for_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memo").mkdir()
    monkeypatch.setattr(sharing, "MEMO", SimpleNamespace(name=str(tmp_path / "memo")))
    log = tmp_path / "log"

    def make(folder: Path, seconds: float) -> str:
        with log.open("a") as file:
            file.write("begun\n")
        time.sleep(seconds)
        return folder.name

    def ask(seconds: float) -> None:
        (tmp_path / f"{os.getpid()}.said").write_text(once(["a"], lambda folder: make(folder, seconds)))

    fork = multiprocessing.get_context("fork")
    gone = fork.Process(target=ask, args=(60.0,))
    gone.start()
    while not log.is_file():
        time.sleep(0.01)
    gone.kill()
    gone.join()
    both = [fork.Process(target=ask, args=(0.3,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(30)
    assert log.read_text() == "begun\n" * 2  # once by who is gone, once by one of the two
    assert len({path.read_text() for path in tmp_path.glob("*.said")}) == 1
    assert len(list(tmp_path.glob("*.said"))) == 2


@pytest.mark.parametrize("item", items("fedcmoo"), ids=lambda item: item.name)
def test_an_item_that_keeps_no_row_for_validation_says_so(item: Item) -> None:
    """The paper keeps a fifth of the training rows; of QM9 it has 40,000 rows to train with beside them, as we have."""
    tables = [merged(item, grid, row, quick=False).get("data", {}) for grid in item.grids for row in grid.rows]
    keeps = all(table.get("valid") or table.get("name") == "qm9" for table in tables)
    told = any("for validation" in text or "Settings are those of Table 1" in text for text in item.differs)
    assert told != keeps
