"""Clients that fail: their tracebacks are in the run, few and short; and a run that most failed in says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from polyfed import FedAvg, Layer, Objective, Problem, RunStopped, train
from polyfed.cli import app
from polyfed.client import tracebacks
from polyfed.client.node import Node
from polyfed.core.layer import Layers, Outgoing
from polyfed.core.messages import Reply, Request
from small import small_federation, small_problem

WORKERS = pytest.param({"name": "local", "workers": 2}, marks=pytest.mark.forks)


@dataclass
class Failing(Layer):
    """Some clients fail, in places of their own."""

    who: tuple[int, ...] = (1, 4)
    places: int = 1
    text: str = "the disk is on fire"

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id in self.who:
            self.fall(int(out.request.round) % self.places)
        return out.arrays

    def fall(self, deep: int) -> None:
        if deep:
            self.fall(deep - 1)
        raise RuntimeError(self.text)


@pytest.mark.parametrize("engine", ["local", "wire", WORKERS])
def test_a_failed_clients_traceback_is_in_the_run(engine: Any) -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=engine, layers=[Failing()], out="r")
    assert result.summary["failures"] == 4
    (kept,) = Path("r/failures").iterdir()  # the same place four times
    assert kept.name.startswith("RuntimeError-")
    text = kept.read_text()
    assert text.startswith("Client ")
    assert "round 1, 'sgd'" in text
    assert "in fall\n" in text
    assert text.rstrip().endswith("RuntimeError: the disk is on fire")


def test_a_client_that_has_a_name_is_called_by_it() -> None:
    named = replace(small_federation(), names=[f"site {i}" for i in range(6)])
    with pytest.raises(RunStopped, match=r"none of the 6 clients .* a usable reply \(client 'site 0': "):
        train(small_problem(), named, FedAvg(), rounds=1, layers=[Failing(who=tuple(range(6)))], keep=False)
    result = train(small_problem(), named, FedAvg(), rounds=2, layers=[Failing(who=(0, 1, 2, 3))], keep=False)
    assert "the last was that of client 'site 3' (" in result.summary["mostly_failed"]


def test_an_error_in_a_users_forward_keeps_its_traceback() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Any) -> Any:
            if self.training and float(x.abs().sum()) > 60:
                raise ValueError("too much")
            return super().forward(x)

    problem = Problem(Picky(5, 3), [Objective("left", "cross-entropy")])
    with pytest.raises(RunStopped, match=r"ValueError: too much\).*Tracebacks are in r.failures\. Continue with"):
        train(problem, small_federation(), FedAvg(batch_size=0), rounds=1, out="r")
    assert any('raise ValueError("too much")' in kept.read_text() for kept in Path("r/failures").iterdir())


def test_they_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "MOST", 3)
    layer = Failing(places=8, text="x" * 100_000)
    train(small_problem(), small_federation(), FedAvg(), rounds=8, layers=[layer], out="r")
    kept = list(Path("r/failures").iterdir())
    assert len(kept) == 3
    assert max(path.stat().st_size for path in kept) < 1.1 * tracebacks.LONGEST


def test_a_run_without_failures_has_no_folder_for_them() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r")
    assert not Path("r/failures").exists()


def test_a_deployed_node_logs_its_own(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(1, small_problem(), small_federation().alone(1), Layers((Failing(),)))
    with caplog.at_level(logging.ERROR, "polyfed"):
        reply = Reply.decode(node.handle(Request("evaluate", {}, options={"split": "train"}).encode()))
    assert "KeyError" in reply.error
    assert caplog.records[0].exc_info is not None


SAID = "Over half of the clients' replies failed, 8 of 12 in 2 rounds; the last was that of client 3 (RuntimeError: "


def test_a_run_in_which_most_fail_says_so() -> None:
    most = Failing(who=(0, 1, 2, 3))
    with pytest.warns(RuntimeWarning, match="Over half of the clients' replies failed, 8 of 12"):
        result = train(small_problem(), small_federation(), FedAvg(), rounds=2, layers=[most], out="r")
    assert result.summary["mostly_failed"].startswith(SAID)
    assert result.summary["mostly_failed"].endswith(f"Tracebacks are in {Path('r/failures')}.")


def test_half_is_not_most() -> None:
    with pytest.warns(RuntimeWarning, match="failed in every round"):
        result = train(small_problem(), small_federation(), FedAvg(), rounds=2, layers=[Failing(who=(0, 1, 2))])
    assert "mostly_failed" not in result.summary


def test_the_command_line_says_it_on_stderr() -> None:
    small = "rounds = 4\ncohort = 4\n[data]\nexamples = 60\nclients = 4\n"
    Path("e.toml").write_text(f'{small}[algorithm]\nname = "fedavg"\n[[layers]]\nname = "mine:Failing"\n')
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nfrom polyfed import Layer\n\n@dataclass\nclass Failing(Layer):\n"
        "    def reply(self, out):\n        return {} if out.client.id else out.arrays\n"
    )
    done = CliRunner().invoke(app, ["run", "e.toml", "--json"])
    assert done.exit_code == 0, done.stderr
    assert "polyfed: Over half of the clients' replies failed, " in done.stderr


def test_a_models_dropout_is_off_in_the_result() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
    result = train(
        Problem(model, [Objective("left", "cross-entropy")]), small_federation(), FedAvg(), rounds=1, keep=False
    )
    assert not any(module.training for module in result.model.modules())
    assert model.training  # the caller's own is as it was
