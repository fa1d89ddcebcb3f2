"""Trackers: what they write is what metrics.jsonl says; nothing twice after a resume; they never stop a run."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyfed import BadInput, Callback, FedAvg, Federation, Objective, Problem, train
from polyfed.callbacks import CSV, MLflow, TensorBoard
from polyfed.callbacks.mlflow import metric_name
from polyfed.callbacks.tracker import Tracker, numbers
from polyfed.core.errors import RunStopped
from polyfed.models import Headed
from polyfed.run.callbacks import RunView
from small import small_federation, small_problem

Rows = dict[int, dict[str, float]]  # by round


def trained(*callbacks: Callback, rounds: int = 6, **more: Any) -> Any:
    arguments = {"rounds": rounds, "out": "r", "evaluate": {"every": 2}, **more}
    return train(small_problem(), small_federation(), FedAvg(), cohort=3, callbacks=list(callbacks), **arguments)


def logged(run: str = "r") -> Rows:
    lines = [json.loads(text) for text in Path(run, "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: numbers(line) for line in lines}


def csv_rows(run: str = "r") -> Rows:
    with Path(run, "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == [str(i + 1) for i in range(len(rows))]
    return {int(row["round"]): {name: float(v) for name, v in row.items() if v} for row in rows}


def tensorboard_rows(run: str = "r") -> Rows:
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(Path(run, "tensorboard")))
    found.Reload()
    rows: Rows = {}
    for name in found.Tags()["scalars"]:
        for event in found.Scalars(name):
            assert name not in rows.setdefault(event.step, {}), f"{name} twice in round {event.step}"
            rows[event.step][name] = event.value
    return rows


def mlflow_rows(run: str = "r") -> Rows:
    client: Any = importlib.import_module("mlflow.tracking").MlflowClient(Path(run, "mlruns").absolute().as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "polyfed"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["algorithm"] == "fedavg"
    rows: Rows = {}
    for name in found.data.metrics:
        for metric in client.get_metric_history(found.info.run_id, name):
            assert name not in rows.setdefault(metric.step, {}), f"{name} twice in round {metric.step}"
            rows[metric.step][name] = metric.value
    return rows


KINDS: dict[str, tuple[type[Tracker], Any]] = {
    "csv": (CSV, csv_rows),
    "tensorboard": (TensorBoard, tensorboard_rows),
    "mlflow": (MLflow, mlflow_rows),
}


def same(found: Rows, expected: Rows) -> None:
    assert set(found) == set(expected)
    for round, row in expected.items():
        assert found[round] == pytest.approx(row, rel=1e-6)  # TensorBoard keeps single precision


class StopAt(Callback):
    def __init__(self, round: int) -> None:
        self.at = round

    def on_round(self, run: RunView, line: Any) -> None:
        if run.round == self.at:
            raise RunStopped("The power went.")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_metrics_say(kind: str) -> None:
    make, read = KINDS[kind]
    trained(make())
    expected = logged()
    assert {"losses/left", "metrics/right/accuracy", "bytes_up", "seconds", "cohort", "failures"} <= set(expected[6])
    assert "losses/left" not in expected[5]
    same(read(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_after_its_last_round(kind: str) -> None:
    make, read = KINDS[kind]
    with pytest.raises(RunStopped, match="power"):
        trained(make(), StopAt(3))
    same(read(), logged())
    trained(make(), resume=True)
    assert set(logged()) == {1, 2, 3, 4, 5, 6}
    same(read(), logged())


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_that_are_done_again_are_logged_once(kind: str) -> None:
    """A run that was killed has logged more rounds than its last checkpoint has."""
    make, read = KINDS[kind]
    with pytest.raises(RunStopped, match="power"):
        trained(make(), StopAt(2))
    shutil.copytree("r/checkpoints", "old")
    with pytest.raises(RunStopped, match="power"):
        trained(make(), StopAt(4), resume=True)
    shutil.rmtree("r/checkpoints")
    shutil.copytree("old", "r/checkpoints")
    trained(make(), resume=True)
    assert set(logged()) == {1, 2, 3, 4, 5, 6}
    same(read(), logged())


class Broken(CSV):
    """Fails in every round."""

    def log(self, run: RunView, values: Mapping[str, float]) -> None:
        raise OSError("the disk is full")


def test_a_tracker_that_fails_warns_once_and_the_run_goes_on() -> None:
    said = r"The callback Broken failed in round 1, and the run goes on \(OSError: the disk is full\)"
    with pytest.warns(RuntimeWarning, match=said) as warned:
        result = trained(Broken())
    assert len(warned) == 1
    assert result.summary["rounds"] == 6
    assert len(result.summary["callbacks_failed"]) == 1
    (kept,) = Path("r/failures").iterdir()
    assert "raise OSError" in kept.read_text()


def test_a_tracker_that_is_not_optional_ends_the_run() -> None:
    with pytest.raises(RunStopped, match="The callback Broken failed in round 1"):
        trained(Broken(optional=False))


def test_warnings_that_are_errors_do_not_stop_a_run_either() -> None:
    assert trained(Broken()).summary["rounds"] == 6  # all warnings are errors in these tests


def test_what_is_not_installed_is_said_before_the_run_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind, extra in ((TensorBoard, "tensorboard"), (MLflow, "mlflow")):
        with pytest.raises(BadInput, match=rf"needs the package {extra}: pip install 'polyfed\[{extra}\]'"):
            trained(kind())
    assert not Path("r").exists()


@pytest.mark.parametrize("name", ["energy [kcal/mol]", "a,b\n", "../..", "é"])
def test_odd_names_are_names_everywhere(name: str) -> None:
    x = torch.randn(12, 3)
    odd = Problem(Headed(nn.Identity(), {name: nn.Linear(3, 2)}), [Objective(name, "cross-entropy")])
    federation = Federation.from_arrays(x, {name: (x[:, 0] > 0).long()}, clients=3)
    train(odd, federation, FedAvg(), rounds=1, out="r", callbacks=[CSV(), TensorBoard(), MLflow()])
    loss = logged()[1][f"losses/{name}"]
    assert csv_rows()[1][f"losses/{name}"] == loss
    assert mlflow_rows()[1][metric_name(f"losses/{name}")] == loss
    assert {path.name for path in Path().iterdir()} == {"r"}


def test_names_as_mlflow_takes_them() -> None:
    assert metric_name("losses/energy [kcal/mol] é/..") == "losses/energy _kcal/mol_ _/_"
