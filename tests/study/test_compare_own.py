"""A comparison on a problem and a federation of one's own, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polyfed
from polyfed import BadInput, Callback, FedAvg, FedCMOO, Federation, Objective, Problem, compare, train
from polyfed.core.errors import Interrupted
from polyfed.report.cast import cast
from polyfed.report.records import find
from polyfed.study.runner import Teller

NAMES = ["a", "b"]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a": self.a(x), "b": self.b(x)}


def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(Two(), [Objective(name, "squared") for name in NAMES])


def federation(scale: float = 1.0) -> Federation:
    rng = np.random.default_rng(0)
    x = scale * rng.normal(size=(40, 3)).astype(np.float32)
    return Federation.from_arrays(
        x, {name: x @ rng.normal(size=(3, 1)).astype(np.float32) for name in NAMES}, clients=4
    )


def run(algorithms: Any = ("fedavg", "fedmgda"), **changes: Any) -> polyfed.Comparison:
    given: dict[str, Any] = {
        "problem": problem(), "federation": federation(), "seeds": 2, "rounds": 3, "cohort": 2, "out": "study",
    }  # fmt: skip
    return compare(algorithms=algorithms, **{**given, **changes})


def table(found: polyfed.Comparison) -> Any:
    rows = found.about["table"]
    return [[row["row"], row["figures"], row["totals"]["bytes_up"], row["to_target"]["rounds"]] for row in rows]


def interrupting(after: int) -> Callable[..., Any]:
    tell, calls = Teller.on_round, [0]

    def told(self: Teller, *arguments: Any) -> None:
        tell(self, *arguments)
        calls[0] += 1
        if calls[0] == after:
            raise Interrupted("Ctrl-C")

    return told


def test_each_run_is_the_one_that_train_makes() -> None:
    found = run([FedCMOO(lr=0.1), "fedavg"])
    assert [row["row"] for row in found.about["table"]] == ["fedcmoo", "fedavg"]
    for path, seed in zip(found.runs[:2], (0, 1), strict=True):
        alone = train(problem(), federation(), FedCMOO(lr=0.1), rounds=3, cohort=2, seed=seed, keep=False)
        assert polyfed.load(path, model=Two()).summary["model_sha256"] == alone.summary["model_sha256"]


def test_figures_call_methods_as_the_table_does() -> None:
    found = run({"slow": FedAvg(lr=0.01), "quick": FedAvg(lr=0.1)})
    assert [series.name for series in found._figure("compared-loss").series] == ["slow", "quick"]
    assert [role.name for role in cast(find([found.study]).records)] == ["quick", "quick", "slow", "slow"]


def test_interrupted_it_does_what_is_missing_and_ends_with_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(Teller, "on_round", interrupting(5))  # the second run has done two of its three rounds
        with pytest.raises(Interrupted, match="the same call goes on"):
            run()
    rounds: list[tuple[str, int]] = []
    tell = Teller.on_round

    def told(self: Teller, view: Any, line: Any) -> None:
        rounds.append((view.path.name.partition("-")[0], line["round"]))
        tell(self, view, line)

    monkeypatch.setattr(Teller, "on_round", told)
    again = run()
    assert rounds == [("fedavg", 3), *[("fedmgda", t) for t in (1, 2, 3)] * 2]
    assert table(again) == table(whole)
    rounds.clear()
    assert run().about == again.about
    assert rounds == []


def test_other_data_other_arguments_and_other_settings_are_other_runs() -> None:
    runs = {
        path.name
        for changes in ({}, {"federation": federation(2.0)}, {"cohort": 3}, {"rounds": 2}, {"guard": "off"})
        for path in run(["fedavg"], seeds=1, **changes).runs
    }
    assert len(runs) == 5


def test_methods_of_one_name_are_called_by_what_differs() -> None:
    found = run([FedAvg(lr=0.1), FedAvg(lr=0.2), {"name": "fedprox", "mu": 0.3}], seeds=1, rounds=1)
    assert [row["row"] for row in found.about["table"]] == ["fedavg lr=0.1", "fedavg lr=0.2", "fedprox"]
    assert found.about["rows"][1]["values"]["algorithm.lr"] == 0.2
    words = run("fedavg:lr=0.1,fedavg:lr=0.2", seeds=1, rounds=1)
    assert [cell["run"] for cell in words.about["cells"]] == [cell["run"] for cell in found.about["cells"][:2]]


def test_names_are_text_and_never_markup() -> None:
    found = run({"<script>alert(1)</script>": FedAvg(), "[bold]b\x1b[31m": "fedprox"}, seeds=1, rounds=1)
    page, text = found._repr_html_(), str(found)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in text
    assert "[bold]b\\x1b[31m" in text
    assert all(path.parent.name == "study" for path in found.runs)


def test_callbacks_begin_anew_in_each_run() -> None:
    class Count(Callback):
        def __init__(self) -> None:
            self.rounds = 0

        def on_round(self, run: Any, line: Any) -> None:
            self.rounds += 1

        def summary(self, run: Any) -> dict[str, int]:
            return {"counted": self.rounds}

    found = run(callbacks=[Count()])
    assert [polyfed.load(path, model=Two()).summary["counted"] for path in found.runs] == [3, 3, 3, 3]


def test_a_method_that_fails_is_a_row() -> None:
    found = run(["fedavg", "mocha"], seeds=1)
    assert len(found.failed) == 1
    assert "mocha (0 of 1 runs)" in str(found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"experiment": "two-digits"}, "either an experiment or a problem"),
        ({"federation": None}, "either an experiment or a problem"),
        ({"jobs": 2}, "either an experiment or a problem"),
        ({"settings": {"algorithm.lr": 1}}, "either an experiment or a problem"),
        ({"seed": 3}, "gives 'seed' to each run itself"),
        ({"algorithms": []}, "the methods to compare"),
        ({"algorithms": {}}, "the methods to compare"),
        ({"algorithms": [FedAvg(), FedAvg()]}, "'fedavg' twice"),
        ({"algorithms": [FedAvg]}, "subclass of polyfed.Algorithm"),
        ({"problem": 3}, "problem should be"),
        ({"callbacks": 3}, "callbacks should be a list"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        run(**changes)


def test_an_experiment_takes_no_arguments_of_train() -> None:
    with pytest.raises(BadInput, match="Found also cohort"):
        compare("two-digits", algorithms="fedavg", cohort=3)
    with pytest.raises(BadInput, match="Found neither"):
        compare(algorithms="fedavg")
