"""Callbacks that fail, stop and remember: the round is kept, everybody has heard of it, and the run goes on from it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polyfed import BadInput, Callback, FedAvg, RunStopped, train
from polyfed.cli import app
from polyfed.run.callbacks import RunView
from polyfed.run.directory import RunDirectory
from small import small_federation, small_problem


def trained(*callbacks: Callback, rounds: int = 4, **more: Any) -> Any:
    return train(small_problem(), small_federation(), FedAvg(), rounds=rounds, callbacks=list(callbacks), **more)


class Failing(Callback):
    fail = True

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        if self.fail and run.round == 2:
            raise ValueError("no disk")


class Optional(Failing):
    optional = True


class Counting(Callback):
    """Remembers how many rounds it has heard of."""

    def __init__(self) -> None:
        self.heard = self.evaluated = 0

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.heard += 1

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.evaluated += 1

    def tree(self) -> dict[str, Any]:
        return {"heard": torch.tensor([self.heard, self.evaluated])}

    def load(self, tree: Mapping[str, Any]) -> None:
        self.heard, self.evaluated = tree["heard"].tolist()


def test_the_round_in_which_a_callback_fails_is_done() -> None:
    callback = Failing()
    advice = r"Continue with: polyfed\.train\(\.\.\., out='r', resume=True\)$"
    with pytest.raises(RunStopped, match=rf"failed in round 2 \(ValueError: no disk\)\. {advice}"):
        trained(callback, out="r")
    found = RunDirectory.open(Path("r")).load()
    assert found is not None
    assert found[0] == 2
    callback.fail = False
    result = trained(callback, out="r", resume=True)
    assert [line["round"] for line in result.history] == [1, 2, 3, 4]
    assert result.summary["model_sha256"] == trained().summary["model_sha256"]


def test_its_traceback_is_in_the_error_and_in_the_run() -> None:
    with pytest.raises(RunStopped) as caught:
        trained(Failing(), out="r")
    assert 'raise ValueError("no disk")' in "".join(traceback.format_exception(caught.value))
    (kept,) = Path("r/failures").iterdir()
    assert 'raise ValueError("no disk")' in kept.read_text()


@pytest.mark.parametrize("before", [True, False])
def test_the_others_have_heard_of_that_round(before: bool) -> None:
    first: list[Callback] = [Failing(), Counting()]
    with pytest.raises(RunStopped):
        trained(*(first if before else reversed(first)), out="r")
    counting = Counting()
    trained(counting, out="r", resume=True)  # each gets its own memory back, wherever it stands
    assert (counting.heard, counting.evaluated) == (4, 4)


def test_an_optional_one_only_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"The callback Optional failed in round 2, and the run goes on"):
        result = trained(Optional(), out="r")
    assert result.summary["rounds"] == 4
    assert "no disk" in result.summary["callbacks_failed"][0]


def test_the_command_line_says_it_in_a_sentence() -> None:
    Path("mine.py").write_text(
        "from polyfed import Callback\n\nclass Failing(Callback):\n    optional = True\n\n"
        "    def on_round(self, run, line):\n        raise ValueError('no disk')\n"
    )
    Path("e.toml").write_text(
        'rounds = 2\ncohort = 2\n[data]\nexamples = 60\nclients = 4\n[[callbacks]]\nname = "mine:Failing"\n'
    )
    done = CliRunner().invoke(app, ["run", "e.toml", "--out", "r"])
    assert done.exit_code == 0, done.stderr
    said = "The callback Failing failed in round 1, and the run goes on (ValueError: no disk)."
    assert done.stderr.splitlines().count(f"polyfed: {said}") == 1
    assert said in " ".join(done.stdout.split())


class Stopping(Callback):
    def __init__(self, for_good: bool) -> None:
        self.for_good = for_good

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        if run.round == 2:
            run.stop("Enough.", for_good=self.for_good)


def test_who_stops_a_run_says_why() -> None:
    result = trained(Stopping(True), out="r")
    assert (result.summary["rounds"], result.summary["stopped"]) == (2, "Enough.")
    Path("r/result.json").unlink()  # as if the process had been killed before it was written
    again = trained(Stopping(True), out="r", resume=True)
    assert again.summary == result.summary
    assert trained(Stopping(False), out="s").summary["rounds"] == 2
    assert trained(out="s", resume=True).summary["model_sha256"] == trained().summary["model_sha256"]


def test_a_callback_may_refuse_the_run_before_it_is_begun() -> None:
    class Picky(Callback):
        def check(self, plan: Any) -> None:
            raise BadInput(f"Not with {plan.rounds} rounds.")

    with pytest.raises(BadInput, match="Not with 4 rounds"):
        trained(Picky(), out="r")
    assert not Path("r").exists()


def test_a_callback_adds_to_the_summary_and_sees_the_history() -> None:
    class Adding(Callback):
        def summary(self, run: RunView) -> Mapping[str, Any]:
            return {"lines": [line["round"] for line in run.history()]}

    assert trained(Adding()).summary["lines"] == [1, 2, 3, 4]
