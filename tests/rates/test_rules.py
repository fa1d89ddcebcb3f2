"""Rules of the theorems and schedules by name: their values by hand, what they refuse, and runs that go on."""

from __future__ import annotations

import math
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from polyfed import FMGDA, FSMGDA, BadInput, FedAvg, FedCMOO, FedMGDA, train
from polyfed.algorithms.base import Outlook
from polyfed.experiment.building import plan
from polyfed.rates import Moment, named, plain, rules
from small import small_federation, small_problem, vector

AT = Moment(t=7, rounds=100, frame=3, objectives=2, steps=5.0, lr=0.1, examples=400)
BY_HAND: list[tuple[str, dict[str, float], str, float]] = [
    ("fmgda-corollary-2", {"L": 2.0, "local": 3.0}, "lr", 0.3),
    ("fmgda-corollary-2", {"L": 2.0}, "server_lr", 0.5 / 0.5),
    ("fmgda-corollary-4", {"L": 2.0, "mu": 1.0}, "server_lr", 0.2 / 0.5),
    ("fmgda-corollary-4", {"L": 2.0, "mu": 0.01, "G": 3.0}, "lr", math.sqrt(0.01 / 3202) / 30 * math.exp(-0.5)),
    ("fmgda-corollary-4", {"L": 2.0, "mu": 1.0, "G": 3.0}, "lr", 1e-4 / 15),
    ("fsmgda-corollary-6", {"L": 2.0, "scale": 2.0}, "server_lr", 0.2 / 0.5),
    ("fsmgda-corollary-6", {"L": 20.0, "scale": 2.0}, "server_lr", (3 / 42) / 0.5),
    ("fsmgda-corollary-6", {"L": 2.0}, "lr", 100**-0.25),
    ("fsmgda-corollary-6", {"L": 2.0, "rows": 1.55}, "batch_size", 16),
    ("fsmgda-corollary-8", {"mu": 0.5}, "server_lr", 2 * math.log(25) / 50 / 0.5),
    ("fsmgda-corollary-8", {"mu": 0.5}, "lr", 0.1),
    ("fsmgda-corollary-8", {"mu": 0.5}, "batch_size", math.ceil(50 / (2 * math.log(25)))),
    ("fedmgda-theorem-1", {"start": 0.5, "power": 1.0}, "server_lr", 0.5 / 7),
    ("fedmgda-theorem-1", {"start": 0.5, "power": 2.0}, "eps", 0.5 / 49),
    ("fedmgda-theorem-1", {"start": 2.0, "power": 2.0}, "batch_size", 98),
    ("fedmgda-theorem-2", {"c": 0.5}, "server_lr", 0.5 / 0.5),
    ("fedmgda-decay", {"start": 2.0, "decay": 0.1, "every": 3}, "lr", 2 * 0.1 ** (3 / 100 * 2)),
    ("fedmgda-decay", {"start": 2.0, "decay": 0.0}, "server_lr", 2.0),
    ("mfa-theorem-1", {"L": 4.0, "mu": 0.5}, "lr", 4 / (7 + 64)),
    ("mfa-theorem-1", {"L": 4.0, "mu": 0.5, "beta": 3.0, "gamma": 50.0}, "lr", 3 / 57),
    ("mfa-theorem-2", {"L": 4.0, "mu": 0.5}, "lr", 4 / (1 + 2 + 16)),
    ("fedcmoo-corollary-1.1", {"L": 2.0}, "lr", 1 / (2 * 5 * math.sqrt(500))),
    ("fedcmoo-corollary-1.1", {}, "server_lr", math.sqrt(5)),
    ("fedcmoo-corollary-1.1", {}, "step", 1 / 20),
    ("cosine", {"start": 1.0, "warm_up": 10}, "lr", 0.7),
    ("cosine", {"start": 1.0, "end": 0.2, "warm_up": 0}, "lr", 0.2 + 0.4 * (1 + math.cos(math.pi * 0.06))),
    ("mocha-theorem-1", {"gap": 4.0, "mu": 1.0, "sigma_max": 3.0, "drop": 0.5, "theta": 0.5}, "rounds",
     math.ceil(math.log(100) / (0.25 * 0.25))),
    ("mocha-theorem-2", {"gap": 0.01, "scale": 800.0, "start_gap": 1.0}, "average_from",
     math.ceil(math.ceil(1 + math.log(2 * 160000 / 3200)) + 16 * 800 / 1600)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "constants", "setting", "value"), BY_HAND)
def test_a_rules_value_is_the_papers(name: str, constants: dict[str, Any], setting: str, value: float) -> None:
    assert rules[name](**constants).value(setting, AT) == pytest.approx(value, rel=1e-12)


def test_every_rule_is_tried_here() -> None:
    ours = {name for name in rules if rules[name].__module__.startswith("polyfed.")}
    assert ours == {name for name, *_ in BY_HAND} | {"plateau"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": {"rule": "cosin", "start": 1.0}}, "Unknown rule 'cosin'"),
        ({"lr": {"rule": "cosine"}}, "The key 'algorithm.lr.start' is needed"),
        ({"lr": {"rule": "cosine", "start": -1.0}}, "algorithm.lr.start should be greater than 0"),
        ({"lr": {"rule": "cosine", "start": 1.0, "warm_up": 3}}, "warm_up should be fewer than the 3 rounds"),
        ({"lr": {"rule": "fedmgda-theorem-2", "c": 1.0}}, "is for server_lr. Found it at algorithm.lr"),
        ({"lr": {"rule": "mfa-theorem-1", "L": 2.0, "mu": 0.5, "beta": 1.0}}, "needs beta > 1 / mu, 2. Found 1"),
        ({"lr": {"rule": "mfa-theorem-2", "L": 2.0, "mu": 0.5, "gamma": 7.0}}, "needs gamma > L beta - 1, 7. Found 7"),
        ({"server_lr": {"rule": "fedmgda-theorem-1", "start": 1.0, "power": 2.0}}, "an infinite sum of the steps"),
        ({"server_lr": {"rule": "fedmgda-theorem-2", "c": 1.0}}, "one full-batch local step a round. Found 10 steps"),
        (
            {"server_lr": {"rule": "fmgda-corollary-2", "L": 1.0}},
            "is about full batches: set batch_size = 0",
        ),
        (
            {"server_lr": {"rule": "fmgda-corollary-2", "L": 1.0}, "batch_size": 0, "momentum": 0.9},
            "is about plain SGD: set optimizer = 'sgd' and momentum = 0",
        ),
        ({"lr": {"rule": "mfa-theorem-2", "L": 2.0, "mu": 0.5}}, "needs full batches, or growing ones"),
        ({"lr": {"rule": "mfa-theorem-2", "L": 0.2, "mu": 0.5}}, "needs L of at least mu. Found 0.2 and 0.5"),
        (
            {
                "server_lr": {"rule": "fedmgda-theorem-1", "start": 1.0, "power": 0.5},
                "batch_size": {"rule": "fedmgda-theorem-1", "start": 1.0, "power": 1.0},
            },
            "should add up to more than 1. Found 1",
        ),
        ({"lr": lambda t: -1.0}, "should be positive. Found -1.0"),
    ],
)
def test_what_a_theorem_does_not_cover_is_refused(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence.replace("(", r"\(")):
        train(small_problem(), small_federation(), FedMGDA(**settings), rounds=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_strongly_convex_rules_say_how_many_rounds_they_need() -> None:
    settings: dict[str, Any] = {"server_lr": {"rule": "fmgda-corollary-4", "L": 2.45, "mu": 0.1}, "batch_size": 0}
    with pytest.raises(BadInput, match=r"rounds of at least 50\. Found 3"):
        train(small_problem(), small_federation(), FMGDA(**settings), rounds=3)


def test_rules_are_said_at_the_start_and_do_what_the_same_numbers_do() -> None:
    rule = {"rule": "fedcmoo-corollary-1.1", "L": 4.0}
    ruled: dict[str, Any] = {
        "lr": rule, "server_lr": rule,
        "weighting": {"name": "pgd", "normalise": False, "steps": 1, "step": rule},
    }  # fmt: skip
    lr, step = 1 / (4 * 3 * math.sqrt(3 * 5)), 1 / (2 * math.sqrt(5))
    plain: dict[str, Any] = {
        "lr": lr, "server_lr": math.sqrt(3),
        "weighting": {"name": "pgd", "normalise": False, "steps": 1, "step": step},
    }  # fmt: skip
    results = [
        train(small_problem(), small_federation(), FedCMOO(local_steps=3, width=4, **s), rounds=5)
        for s in (ruled, plain)
    ]
    assert torch.equal(*map(vector, results))
    said = results[0].summary["rules"]
    assert [line.split(" by ")[0] for line in said] == ["lr", "server_lr", "step"]
    assert said[0] == f"lr by fedcmoo-corollary-1.1 (L = 4.0): {lr:.4g}"
    assert "rules" not in results[1].summary


def test_the_values_used_are_logged_and_announced_by_their_own_round() -> None:
    """server_lr divides by the lr of its round, not by the first one."""
    settings: dict[str, Any] = {
        "lr": {"rule": "cosine", "start": 0.1, "end": 0.01}, "server_lr": {"rule": "fmgda-corollary-2", "L": 2.0},
    }  # fmt: skip
    result = train(small_problem(), small_federation(), FMGDA(local_steps=2, **settings), rounds=4)
    rates = [line["rates"] for line in result.history]
    assert all(r["server_lr"] * r["lr"] * 2 == pytest.approx(0.5) for r in rates)
    assert rates[-1]["lr"] < rates[0]["lr"]
    assert f"{rates[-1]['server_lr']:.4g} in the last" in result.summary["rules"][1]


def test_passes_over_batches_by_a_function_count_as_the_same_steps() -> None:
    settings: dict[str, Any] = {"lr": 0.01, "local_epochs": 2, "local_steps": 0}
    rows = small_federation().examples
    ahead: Any = Outlook(3, 1, ["left", "right"], rows)
    by_number = FSMGDA(batch_size=8, **settings).steps_a_round(1, ahead)
    assert FSMGDA(batch_size=lambda t: 8, **settings).steps_a_round(1, ahead) == by_number == 2 * math.ceil(20 / 8)


@pytest.mark.parametrize("name", sorted({name for name, *_ in BY_HAND} | {"plateau"}))
def test_every_rule_goes_through_a_file_with_what_it_needs_alone(name: str, tmp_path: Path) -> None:
    """Optional constants are left out, and a rule is read as it was written."""
    kind = rules[name]
    needed = {f.name: 1.0 for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    (setting, *_) = [s for s in kind.settings() if s not in ("rounds", "average_from")] or kind.settings()
    table = {"rule": name, **needed}
    text = tomli_w.dumps({setting: plain(named(setting)(table))})
    assert named(setting)(tomllib.loads(text)[setting]) == named(setting)(table)


def test_the_strongly_convex_rule_trains_in_float32() -> None:
    rule = {"rule": "fmgda-corollary-4", "L": 4.0, "mu": 1.0, "G": 10.0}
    settings: dict[str, Any] = {"lr": rule, "server_lr": rule}
    found = train(small_problem(), small_federation(), FMGDA(**settings), rounds=30).history
    assert sum(found[-1]["losses"].values()) < 0.9 * sum(found[0]["losses"].values())


def test_the_random_iterate_takes_constant_rules() -> None:
    rule = {"rule": "fsmgda-corollary-6", "L": 2.0}
    settings: dict[str, Any] = {"lr": rule, "server_lr": rule, "output": "random", "convexity": 0.5}
    result = train(small_problem(), small_federation(), FSMGDA(**settings), rounds=4)
    assert len(result.history) == 4
    with pytest.raises(BadInput, match="one step size for all rounds"):
        FSMGDA(**{**settings, "lr": {"rule": "cosine", "start": 0.1}})


def test_a_function_of_the_round() -> None:
    asked: list[int] = []

    def rate(t: int) -> float:
        asked.append(t)
        return 0.1 / t

    train(small_problem(), small_federation(), FedAvg(lr=rate), rounds=3)
    assert {1, 2, 3} <= set(asked)


def test_a_plateau_reduces_the_rate_and_its_state_outlives_a_stop(tmp_path: Path) -> None:
    """With a rate at which the loss does not fall; and three rounds, then the rest, are the whole run."""
    settings: dict[str, Any] = {"lr": {"rule": "plateau", "start": 3.0, "patience": 2, "factor": 0.1}}
    method = FedAvg(**settings)
    whole = train(small_problem(), small_federation(), method, rounds=8, out=tmp_path / "whole")
    train(small_problem(), small_federation(), method, rounds=3, out=tmp_path / "parts")
    parts = train(small_problem(), small_federation(), method, rounds=8, out=tmp_path / "parts", resume=True)
    assert torch.equal(vector(whole), vector(parts))
    rule = rules["plateau"](start=1.0, patience=2, factor=0.1)
    kept: dict[str, Any] = {}
    scales = []
    for loss in (1.0, 0.5, 0.6, 0.5, 0.4, 0.45, 0.45, 0.45, 0.45):
        kept = rule.remembered(kept, {"train": torch.tensor([loss, float("nan")])})
        scales.append(float(kept["scale"]))
    assert scales == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert rule.value("lr", Moment(kept=kept)) == pytest.approx(0.001)


def test_more_rounds_are_refused_where_a_rule_depends_on_them(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr": {"rule": "cosine", "start": 0.1}}
    train(small_problem(), small_federation(), FedAvg(**settings), rounds=2, out=tmp_path / "run")
    with pytest.raises(BadInput, match="'cosine' depends on how many rounds there will be, 2 when the run began"):
        train(small_problem(), small_federation(), FedAvg(**settings), rounds=4, out=tmp_path / "run", resume=True)


def test_rules_travel_through_experiment_files(tmp_path: Path) -> None:
    settings = tomllib.loads(
        """
        rounds = { rule = "mocha-theorem-2", gap = 30.0, scale = 200.0, start_gap = 10.0 }
        cohort = "all"
        [data]
        name = "related-tasks"
        tasks = 4
        rows = 20
        partition = "natural"
        [model]
        name = "linear"
        [algorithm]
        name = "mocha"
        average_from = { rule = "mocha-theorem-2", gap = 30.0, scale = 200.0, start_gap = 10.0 }
        """
    )
    made, resolved = plan("x", settings)
    H_0 = rules["mocha-theorem-2"](gap=30.0, scale=200.0, start_gap=10.0).value("average_from", Moment(examples=80))
    assert resolved["rounds"] == made.rounds == H_0 + 2
    assert resolved["algorithm"]["average_from"]["rule"] == "mocha-theorem-2"
    again, _ = plan("x", resolved)
    assert again.notes == made.notes[1:]
    assert "average_from by mocha-theorem-2" in made.notes[1]
    assert made.notes[1].endswith(f": {H_0:g}")
