"""Stopping early: by one figure, a preference or the hypervolume; the same whether the run was interrupted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyfed import BadInput, Callback, FedAvg, MultiModel, train, train_many
from polyfed.callbacks import EarlyStopping
from polyfed.callbacks.criterion import Criterion
from polyfed.cli import app
from polyfed.core.errors import RunStopped
from polyfed.run.callbacks import RunView
from small import small_federation, small_problem

NEVER = FedAvg(lr=1e-12)  # nothing gets better by more than rounding


def trained(*callbacks: Callback, rounds: int = 12, algorithm: FedAvg = NEVER, **more: Any) -> Any:
    arguments = {"rounds": rounds, "callbacks": list(callbacks), **more}
    return train(small_problem(), small_federation(), algorithm, **arguments)


def line(left: float | None, right: float | None, **more: Any) -> dict[str, Any]:
    accuracies = {"left": {"accuracy": 0.5}, "right": {"accuracy": 0.7}}
    return {"losses": {"left": left, "right": right}, "metrics": accuracies, **more}


def test_a_run_stops_after_so_many_evaluations_and_says_why() -> None:
    result = trained(EarlyStopping(objective="left", patience=3, min_delta=0.01))
    assert result.summary["rounds"] == 4  # the first is the best, and three were not better
    assert result.summary["stopped"].startswith(
        "Stopped early after round 4: loss of 'left' has not got better for 3 evaluations; the best was "
    )
    assert result.summary["stopped"].endswith(" in round 1.")
    seldom = trained(EarlyStopping(patience=2, min_delta=0.01), evaluate={"every": 2})
    assert seldom.summary["rounds"] == 6  # patience counts evaluations


def test_a_run_that_gets_better_goes_on_to_its_end() -> None:
    result = trained(EarlyStopping(patience=1), algorithm=FedAvg(lr=0.05, batch_size=0), rounds=6)
    assert result.summary["rounds"] == 6
    assert "stopped" not in result.summary


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({}, 0.75),
        ({"objective": "right"}, 1.0),
        ({"metric": "accuracy"}, 0.6),
        ({"objective": "left", "metric": "accuracy"}, 0.5),
        ({"preference": {"left": 3.0, "right": 1.0}}, 1.5),
        ({"preference": {"left": 3.0, "right": 1.0}, "combined": "sum"}, 2.5),
        ({"reference": {"left": 1.0, "right": 3.0}}, 1.0),
        ({"objective": "left", "split": "valid"}, 0.25),
    ],
)
def test_by_what_a_round_is_judged(settings: dict[str, Any], value: float) -> None:
    found = line(0.5, 1.0, splits={"valid": {"losses": {"left": 0.25}, "metrics": {}}})
    assert Criterion(**settings).value(found) == pytest.approx(value)


def test_what_is_no_number_is_no_improvement() -> None:
    for criterion in (Criterion("left"), Criterion(preference={"left": 1}), Criterion(reference={"left": 1.0})):
        assert not criterion.improved(criterion.value(line(None, 1.0)), 0.5)
        assert criterion.improved(0.1 if not criterion.higher else 0.9, float("nan"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"objective": "lfet"}, "no objective here. Did you mean 'left'?"),
        ({"metric": "auc"}, "names the metric 'auc'. Known: accuracy, loss."),
        ({"preference": {"up": 1.0}}, "names 'up', which is no objective here"),
        ({"reference": {"left": 1.0}}, "needs every objective; 'right' is missing"),
        ({"split": "valid"}, r"'valid' data, which is not measured: set evaluate.splits = \['valid'\]"),
    ],
)
def test_what_does_not_go_with_the_run_is_refused_before_it_is_begun(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        trained(EarlyStopping(**settings), out="r")
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"patience": 0}, r"EarlyStopping.patience should be greater than or equal to 1. Found 0."),
        ({"min_delta": -1.0}, "EarlyStopping.min_delta should be"),
        ({"patiense": 3}, "Unknown key 'EarlyStopping.patiense'. Did you mean 'patience'?"),
        (
            {"metric": "accuracy", "preference": {"left": 1.0}},
            "by one thing. Found objective or metric and pref",
        ),
    ],
)
def test_settings_are_checked_in_python_too(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        EarlyStopping(**settings)


class StopAt(Callback):
    """As if the machine had failed."""

    def __init__(self, round: int) -> None:
        self.at = round

    def on_round(self, run: RunView, line: Any) -> None:
        if run.round == self.at:
            raise RunStopped("The power went.")


def test_what_it_remembers_survives_a_stop_of_the_run() -> None:
    whole = trained(EarlyStopping(patience=5, min_delta=0.01))
    with pytest.raises(RunStopped, match="power"):
        trained(EarlyStopping(patience=5, min_delta=0.01), StopAt(4), out="r")
    again = trained(EarlyStopping(patience=5, min_delta=0.01), out="r", resume=True)
    for key in ("rounds", "stopped", "model_sha256"):
        assert again.summary[key] == whole.summary[key]
    assert again.summary["rounds"] == 6


def test_a_run_that_was_stopped_early_stays_so_until_it_is_given_more_patience() -> None:
    trained(EarlyStopping(patience=2, min_delta=0.01), out="r")
    same = trained(EarlyStopping(patience=2, min_delta=0.01), out="r", resume=True)
    assert (same.summary["rounds"], same.summary["stopped"][:33]) == (3, "Stopped early after round 3: loss")
    longer = trained(EarlyStopping(patience=4, min_delta=0.01), out="r", resume=True)
    assert longer.summary["rounds"] == 5


def test_one_callback_may_watch_one_run_after_another() -> None:
    stopping = EarlyStopping(patience=2, min_delta=0.01)
    assert [trained(stopping).summary["rounds"] for _ in range(2)] == [3, 3]


def test_by_name_in_an_experiment() -> None:
    Path("e.toml").write_text(
        'rounds = 9\ncohort = 2\n[data]\nexamples = 60\nclients = 4\n[algorithm]\nname = "fedavg"\nlr = 1e-12\n'
        '[[callbacks]]\nname = "early-stopping"\npatience = 2\nmin_delta = 0.01\npreference = { left = 1, right = 2 }\n'
    )
    done = CliRunner().invoke(app, ["run", "e.toml", "--json", "--out", "r"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 3
    shown = CliRunner().invoke(app, ["resume", "r"])
    assert "Stopped early after round 3: the largest of r_k F_k has not got better for 2 evaluations" in shown.stdout


def test_objectives_of_several_models_are_named_with_their_model() -> None:
    several = MultiModel({"a": (small_problem(), NEVER), "b": (small_problem(1), NEVER)})
    stopping = EarlyStopping(objective="b/left", patience=2, min_delta=0.01)
    result = train_many(several, small_federation(), rounds=8, callbacks=[stopping])
    assert result.summary["rounds"] == 3
