"""A search for settings: killed and gone on it ends the same; hopeless trials end early; the best experiment runs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import polyfed
from polyfed import FedAvg, Federation, Objective, Problem
from polyfed.cli import app
from polyfed.core.errors import BadInput, RunStopped
from polyfed.models import Headed
from polyfed.run.callbacks import RunView
from polyfed.study.hopeless import Curve, Hopeless, limits
from polyfed.study.parameters import read_parameters
from polyfed.study.trials import Live
from polyfed.study.tune import tune
from polyfed.study.tuned import Tuned, best_of

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 5,
    "cohort": 2,
    "data": {"name": "two-digits", "clients": 4, "examples": 120},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedcmoo", "lr": 0.2, "local_steps": 2, "compress": "sketch"},
}
PARAMETERS = {"algorithm.lr": "log:0.01..1", "algorithm.local_steps": "int:1..4"}
RATES = {"algorithm.lr": [0.3, 0.4, 0.5, 0.6, 0.7, 1e-6, 1e-5, 1e-4]}


def table(study: str) -> Any:
    """What a search has found, without where it is."""
    about = json.loads(Path(study, "study.json").read_text())
    return {key: about[key] for key in ("state", "trials", "front", "best", "columns", "notes")}


def lines_of(run: Path) -> list[str]:
    """The rounds that a trial ran."""
    return (run / "metrics.jsonl").read_text().splitlines()


def rounds_of(watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell somebody of every evaluation of every trial in this process."""
    look = Hopeless.on_evaluation

    def told(self: Hopeless, run: RunView, line: Mapping[str, Any]) -> None:
        look(self, run, line)
        watch(run.path.name, line["round"])

    monkeypatch.setattr(Hopeless, "on_evaluation", told)


@pytest.mark.forks
def test_killed_half_way_it_does_what_is_missing_and_ends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(SMALL, PARAMETERS, trials=6, jobs=1, out="whole")
    child = os.fork()
    if not child:

        def kill(run: str, round: int) -> None:
            if run.startswith("trial-003") and round == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        rounds_of(kill, monkeypatch)
        tune(SMALL, PARAMETERS, trials=6, jobs=1, out="broken")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    cut = json.loads(Path("broken/study.json").read_text())
    assert [one["state"] for one in cut["trials"]] == ["done", "done", "done", "running"]
    ran: list[tuple[str, int]] = []
    rounds_of(lambda run, round: ran.append((run[:9], round)), monkeypatch)
    tune(SMALL, PARAMETERS, trials=6, jobs=1, out="broken")
    assert {run for run, _ in ran} == {"trial-003", "trial-004", "trial-005"}
    assert table("broken") == table("whole")
    ran.clear()
    tune(SMALL, PARAMETERS, trials=6, jobs=1, out="broken")
    assert ran == [], "nothing was missing"
    tune(SMALL, PARAMETERS, trials=7, jobs=1, out="broken")
    assert {run for run, _ in ran} == {"trial-006"}, "more trials are those that are missing"


@pytest.mark.forks
def test_two_processes_find_the_same_each_time() -> None:
    for study in ("a", "b"):
        tune(SMALL, PARAMETERS, trials=6, jobs=2, out=study)
    assert table("a") == table("b")
    assert json.loads(Path("a/study.json").read_text())["behind"] == 3


def test_hopeless_trials_are_ended_early_and_save_rounds() -> None:
    found = tune({**SMALL, "rounds": 10}, RATES, trials=8, jobs=1, out="s")
    early = [trial for trial in found.trials if trial.state == "early"]
    assert any(trial.values["algorithm.lr"] < 0.01 for trial in early)
    assert all(2 <= trial.rounds < 10 for trial in early), "not before a fifth of the rounds"
    assert all("worse than the median of the trials before" in trial.why for trial in early)
    assert sum(trial.rounds for trial in found.trials) == sum(len(lines_of(trial.run)) for trial in found.trials) < 80
    assert found.best is not None
    assert found.best.state == "done"
    assert found.best.values["algorithm.lr"] >= 0.3
    assert {trial.number for trial in early}.isdisjoint(trial.number for trial in found.front)


def test_a_trial_is_hopeless_only_where_it_is_worse_in_every_objective() -> None:
    curves: list[Curve] = [{1: (1.0, 5.0)}, {1: (2.0, 4.0)}, {1: (3.0, 3.0)}, {1: (4.0, 2.0), 2: (1.0, 1.0)}]
    assert limits(curves) == {1: (2.5, 3.5)}
    assert limits(curves[:3]) == {}


def test_losses_that_are_no_numbers_end_a_trial_and_the_others_go_on() -> None:
    parameters = {"algorithm.lr": [0.2, 1e30], "algorithm.local_steps": [1, 2]}
    found = tune(SMALL, parameters, trials=4, jobs=1, out="s")
    states = {trial.values["algorithm.lr"]: trial.state for trial in found.trials}
    assert states[0.2] == "done"
    assert states[1e30] in ("early", "failed")
    assert found.best is not None
    assert found.best.values["algorithm.lr"] == 0.2
    assert any("failed" in text for text in found.sentences()) == (states[1e30] == "failed")


def test_where_all_trials_fail_the_first_sentence_says_why() -> None:
    with pytest.raises(RunStopped, match=r"No trial of s came to its end\. .*usable reply"):
        tune(SMALL, {"algorithm.lr": [1e30, 1e31]}, trials=2, jobs=1, out="s")
    assert not Path("s/best.toml").exists()


def test_where_all_trials_are_refused_nothing_is_left() -> None:
    with pytest.raises(BadInput, match="momentum should be"):
        tune(SMALL, {"algorithm.momentum": [-1.0, -2.0]}, trials=2, jobs=1, out="s")
    assert not Path("s").exists()
    with pytest.raises(BadInput, match="'lr' is a value, not a table"):
        tune(SMALL, {"algorithm.lr.start": "0.1..1"}, trials=2, jobs=1, out="s")
    assert not Path("s").exists()


def test_the_best_experiment_is_the_persons_own_and_runs() -> None:
    found = tune(SMALL, PARAMETERS, trials=5, rounds=2, jobs=1, out="s", settings={"algorithm.batch_size": 16})
    assert found.best is not None
    assert found.best.rounds == 2
    best = tomllib.loads(found.experiment.read_text())
    assert best == {
        **SMALL,
        "algorithm": {**SMALL["algorithm"], "batch_size": 16, "lr": found.best.values["algorithm.lr"],
                      "local_steps": found.best.values["algorithm.local_steps"]},
    }  # fmt: skip
    done = CliRunner().invoke(app, ["run", str(found.experiment), "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == SMALL["rounds"]
    assert sorted(path.name for path in Path("s").glob("trial-*.toml")) == sorted(
        trial.experiment.name for trial in found.front
    )


def test_validation_rows_are_kept_aside_where_there_are_none_which_is_said() -> None:
    found = tune(SMALL, PARAMETERS, trials=1, jobs=1, out="a")
    assert found.about["settings"]["data"]["valid"] == 0.1
    assert "each client keeps 0.1 of its own aside" in found.about["notes"][0]
    own = tune({**SMALL, "data": {**SMALL["data"], "valid": 0.25}}, PARAMETERS, trials=1, jobs=1, out="b")
    assert own.about["settings"]["data"]["valid"] == 0.25
    assert own.about["notes"] == []
    assert own.trials[0].figures != found.trials[0].figures


def test_a_parameter_that_the_method_lacks_is_left_out_of_that_trial_and_this_is_said() -> None:
    parameters = {"algorithm.name": ["fedcmoo", "fsmgda"], "algorithm.width": "int:64..256",
                  "algorithm.compress": ["exact", "sketch"], "algorithm.gram_error": [True, False]}  # fmt: skip
    found = tune(SMALL, parameters, trials=6, rounds=1, jobs=1, out="s")
    for trial in found.trials:
        assert ("algorithm.compress" in trial.values) == (trial.values["algorithm.name"] == "fedcmoo")
        assert trial.state == "done", trial.why
    assert {trial.values["algorithm.name"] for trial in found.trials} == {"fedcmoo", "fsmgda"}
    notes = " ".join(found.about["notes"])
    assert "Left out, because fsmgda does not have it: algorithm.compress." in notes
    assert "Not varied with fsmgda, which does not have it: algorithm.gram_error." in notes


def test_all_that_may_be_chosen_is_tried_once() -> None:
    found = tune(SMALL, {"algorithm.local_steps": [1, 2, 3]}, trials=9, rounds=1, jobs=1, out="s")
    assert sorted(trial.values["algorithm.local_steps"] for trial in found.trials) == [1, 2, 3]
    assert "Nothing new was drawn after 3 trials" in found.about["notes"][-1]


@pytest.mark.parametrize(
    ("by", "column", "higher"),
    [
        ("accuracy", "accuracy of all objectives on valid data", True),
        ("mean loss", "loss of all objectives on valid data", False),
        ("left.accuracy", "accuracy of 'left' on valid data", True),
        ("right", "loss of 'right' on valid data", False),
        ("left=0.9,right=0.1", "the largest of r_k F_k on valid data", False),
        ({"left": 0.9, "right": 0.1}, "the largest of r_k F_k on valid data", False),
        ("hypervolume:left=9,right=9", "the hypervolume on valid data", True),
    ],
)
def test_by_one_number(by: Any, column: str, higher: bool) -> None:
    found = tune(SMALL, {"algorithm.local_steps": [1, 4]}, trials=2, rounds=2, by=by, jobs=1, out="s")
    assert (found.about["columns"], found.about["higher"]) == ([column], higher)
    figures = [trial.figures[column] for trial in found.trials]
    assert found.best is not None
    assert found.best.figures[column] == (max if higher else min)(figures)
    assert [trial.number for trial in found.front] == [found.best.number]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"by": "acuracy"}, "--by names the metric 'acuracy'. Did you mean 'accuracy'?"),
        ({"by": "lefft.loss"}, "--by names 'lefft', which is no objective here. Did you mean 'left'?"),
        ({"by": "left=-1"}, "--by needs a number from 0 on for each objective"),
        ({"by": 3}, "--by should name a metric, or give a preference"),
        ({"trials": 0}, "trials should be a whole number from 1 on. Found 0."),
        ({"rounds": 2.5}, "rounds should be a whole number from 1 on. Found 2.5."),
        ({"jobs": 0}, "--jobs should be a whole number from 1 on"),
        ({"settings": {"algorithm.lrr": 1}}, "Unknown key 'algorithm.lrr'"),
        ({"experiment": None}, "Name an experiment, or give problem and federation. Found neither."),
        ({"cohort": 3}, "Name an experiment, or give problem and federation. Found also cohort."),
        ({"experiment": "many-models"}, "no client of model 'quadratic' keeps any"),  # each has one row
        ({"experiment": 3}, "experiment should be a file, a built-in name or a dict. Found 3."),
    ],
)
def test_bad_input_leaves_nothing_behind(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as error:
        tune(**{"experiment": SMALL, "parameters": PARAMETERS, "out": "s", **more})
    assert says in str(error.value)
    assert not Path("s").exists()


def test_another_search_in_the_same_folder_is_refused() -> None:
    tune(SMALL, PARAMETERS, trials=1, rounds=1, jobs=1, out="s")
    with pytest.raises(BadInput, match=r"s holds a search with parameters\.algorithm\.lr = 'log:0\.01\.\.1'"):
        tune(SMALL, {**PARAMETERS, "algorithm.lr": "0.1..1"}, trials=1, rounds=1, jobs=1, out="s")
    with pytest.raises(BadInput, match=r"s holds a search with settings\.rounds = 1"):
        tune(SMALL, PARAMETERS, trials=1, rounds=2, jobs=1, out="s")


def test_without_optuna_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"A search needs optuna: pip install 'polyfed\[tune\]'"):
        tune(SMALL, PARAMETERS)


def test_the_command() -> None:
    small = [f"--set={key}={value}" for key, value in (("data.clients", 4), ("data.examples", 120), ("cohort", 2))]
    words = ["tune", "two-digits", "--param", "algorithm.lr=log:0.01..1", "--trials", "2", "--rounds", "1", *small]
    done = CliRunner().invoke(app, [*words, "--jobs", "1", "--json"])
    assert done.exit_code == 0, done.stderr
    about = json.loads(done.stdout)
    assert (about["study"], about["state"], len(about["trials"])) == ("runs/tune-two-digits", "done", 2)
    assert about["trials"][0]["values"] == {"algorithm.lr": 0.3}, "the experiment's own comes first"
    assert [line[:8] for line in done.stderr.splitlines()] == ["The expe", "trial 0:", "trial 1:"]
    shown = CliRunner().invoke(app, [*words, "--jobs", "1"])
    assert "Best: trial" in shown.stdout
    assert "runs/tune-two-digits/best.toml" in shown.stdout
    refused = CliRunner().invoke(app, ["tune", "two-digits"])
    assert (refused.exit_code, "A search needs a parameter" in refused.stderr) == (2, True), refused.stderr


def own_federation(**more: Any) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    return Federation.from_arrays(x, {"left": (x[:, 0] > 0).astype(int), "right": x[:, 1]}, clients=4, **more)


def own_problem() -> Problem:
    torch.manual_seed(0)
    heads = {"left": nn.Linear(4, 2), "right": nn.Linear(4, 1)}
    return Problem(Headed(nn.Identity(), heads), [Objective("left", "cross-entropy"), Objective("right", "squared")])


def test_a_problem_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"algorithm.lr": "log:0.001..1", "algorithm.name": ["fedavg", "fedcmoo"], "cohort": [2, 3]}
    given: dict[str, Any] = {"problem": own_problem(), "federation": own_federation(valid=0.25), "trials": 5}
    given |= {"algorithm": FedAvg(lr=0.1), "rounds": 4, "out": "s", "cohort": 2}
    found = polyfed.tune(parameters=parameters, **given)
    assert found.trials[0].values == {"algorithm.lr": 0.1, "algorithm.name": "fedavg", "cohort": 2}
    assert found.best is not None
    assert found.algorithm["lr"] == found.best.values["algorithm.lr"]
    assert found.sentences()[-1].endswith("its method: found.algorithm")
    assert not list(Path("s").glob("*.toml"))
    again = polyfed.train(given["problem"], given["federation"], found.algorithm, rounds=1, keep=False)
    assert again.summary["algorithm"] == found.best.values["algorithm.name"]
    ran: list[str] = []
    rounds_of(lambda run, round: ran.append(run), monkeypatch)
    assert polyfed.tune(parameters=parameters, **given).about == found.about
    assert ran == []
    assert len(polyfed.tune(parameters=parameters, **{**given, "trials": 6}).trials) == 6


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"federation": own_federation()}, "no client keeps any: set data.valid, or valid= of the federation"),
        ({"federation": None}, "Search in an experiment, or with a problem and its federation"),
        ({"experiment": "two-digits"}, "Search in an experiment, or with a problem and its federation"),
        ({"jobs": 2}, "'jobs' are the experiment's"),
        ({"parameters": {"model.hidden": [1, 2]}}, "a parameter is a setting of the algorithm, or cohort"),
        ({"parameters": {"algorithm.lrr": [1, 2]}}, "there is no such setting. Did you mean 'lr'?"),
        ({"keep": False}, "A search gives 'keep' to each trial itself"),
        ({"by": "f1"}, "--by names the metric 'f1'"),
    ],
)
def test_a_problem_that_cannot_be_searched(more: dict[str, Any], says: str) -> None:
    given = {"problem": own_problem(), "federation": own_federation(valid=0.25), "parameters": PARAMETERS, "out": "s"}
    with pytest.raises(BadInput) as error:
        polyfed.tune(**{**given, **more})
    assert says in str(error.value)
    assert not Path("s").exists()


def test_what_was_found_as_a_table_and_in_a_notebook() -> None:
    found = tune({**SMALL, "name": "a"}, {"algorithm.local_steps": [1, 2]}, trials=2, rounds=1, jobs=1, out="<b>&")
    frame = found.to_pandas()
    assert list(frame["trial"]) == [0, 1]
    assert {"algorithm.local_steps", "left", "right", "rounds", "state", "front", "run"} <= set(frame.columns)
    page = found._repr_html_()
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert page.count("<svg") == 1
    assert len(found.plot().axes) == len(found.plot("trials").axes) == 1
    with pytest.raises(BadInput, match=r"The search has no figure 'trial'\. Did you mean 'trials'\?"):
        found.plot("trial")
    again = Tuned.load("<b>&")
    assert again.about == found.about
    assert repr(again) == repr(found)
    with pytest.raises(BadInput, match="holds no search"):
        Tuned.load("elsewhere")


def test_the_recommended_is_the_one_whose_worst_is_best() -> None:
    scores = {0: (0.0, 10.0), 1: (4.0, 3.0), 2: (10.0, 0.0), 3: (11.0, 11.0)}
    assert best_of(scores) == ([0, 1, 2], 1)
    assert best_of({**scores, 4: (1e9, 50.0)}) == ([0, 1, 2], 1), "one that diverged sets no scale"
    assert best_of({}) == ([], None)
    assert best_of({5: (1.0, 2.0)}) == ([5], 5)


def test_of_many_objectives_the_mean_of_their_losses() -> None:
    names = [f"o{k}" for k in range(9)]
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    federation = Federation.from_arrays(x, dict.fromkeys(names, x[:, 0]), clients=2, valid=0.2)
    heads = {name: nn.Linear(3, 1) for name in names}
    problem = Problem(Headed(nn.Identity(), heads), [Objective(name, "squared") for name in names])
    given: dict[str, Any] = {"problem": problem, "federation": federation, "trials": 1, "rounds": 1, "out": "s"}
    found = polyfed.tune(parameters={"algorithm.lr": "0.1..1.0"}, **given)
    assert found.about["columns"] == ["loss of all objectives on valid data"]
    assert found.about["notes"][0].startswith("There are 9 objectives: trials are compared by the mean of their losses")


def test_in_a_terminal_a_bar_and_who_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=90, highlight=False)
    monkeypatch.setattr("polyfed.study.trials.Console", lambda **_: terminal)
    with Live(read_parameters({"algorithm.lr": "0.1..1.0"}), 2) as live:
        live.began(0, {"algorithm.lr": 0.5})
        live.line(0, {"round": 3, "losses": {"[red]left": 0.25, "right": None}})
        live._bar.refresh()
        live.note("Something is said.")
        live.ended(
            {"trial": 0, "values": {"algorithm.lr": 0.5}, "state": "done", "figures": {"left": 0.2}, "rounds": 4}
        )
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", out.getvalue())
    assert "trial 0: lr 0.5  round 3  [red]left 0.25" in shown
    assert "trial 0: lr 0.5: left 0.2" in shown
    assert "Something is said." in shown
    assert "1/2" in shown
