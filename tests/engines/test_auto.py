"""`auto`: the faster engine by a trial on a CPU, kept for the run and on disk, and the same model to rounding."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import Federation, Layer, MultiModel, Objective, Problem, train, train_many
from polyfed.algorithms import algorithms
from polyfed.callbacks.printer import Printer
from polyfed.client.device import resolve
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import BadInput
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.engines import auto as module
from polyfed.engines import trial
from polyfed.engines.auto import OnHost
from polyfed.engines.trial import cut, depends_on, local_steps
from polyfed.layers.attacks import Misreport
from polyfed.report.records import Record
from polyfed.report.words import words
from polyfed.run.callbacks import Callback
from polyfed.run.display import Progress
from polyfed.testing import check_engine
from small import small_federation, small_problem, vector

ON_HOST = {"name": "auto", "device": "cpu"}
FILE = Path(".choices/choices.json")  # where tests have their cache folder


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on `local` and on `batched`, as a test wants them."""
    found = [1.0, 1.0]
    monkeypatch.setattr(module, "compared", lambda *calls, **clock: found)
    return found


def fedavg(**settings: Any) -> Any:
    return algorithms["fedavg"](**{"lr": 0.1, "local_steps": 3, "batch_size": 8, **settings})


def run(engine: Any = ON_HOST, problem: Problem | None = None, rounds: int = 2, **more: Any) -> Any:
    return train(problem or small_problem(), small_federation(), fedavg(), rounds=rounds, engine=engine, **more)


def test_the_trial_of_both_gives_the_same_model_whatever_it_finds() -> None:
    for name in ("fedavg", "fedcmoo", "fsmgda"):
        one, other = (
            train(small_problem(), small_federation(), {"name": name, "lr": 0.1}, rounds=3, engine=engine)
            for engine in ("local", ON_HOST)
        )
        assert torch.allclose(vector(one), vector(other), atol=1e-5)
        assert one.summary["bytes_up"] == other.summary["bytes_up"]
        assert other.summary["failures"] == 0
        assert all("batched is" in said for said in other.summary["choices"])


@pytest.mark.parametrize(("seconds", "engine"), [([1.25, 1.0], "batched"), ([1.15, 1.0], "local")])
def test_it_says_once_what_it_has_found(times: list[float], seconds: list[float], engine: str) -> None:
    times[:] = seconds
    result = run()
    said = f"The work 'sgd' runs on {engine}: batched is {seconds[0]:.2g} times as fast as local."
    assert said in result.summary["choices"]
    assert [said in line.get("choices", ()) for line in result.history] == [True, False]


@pytest.mark.parametrize("callback", [Printer(), Progress()])
def test_whoever_watches_reads_it_once(
    callback: Callback, times: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    times[:] = [2.0, 1.0]
    run(callbacks=[callback], rounds=3, out="r")
    assert capsys.readouterr().err.count("The work 'sgd' runs on batched") == 1
    assert any("The work 'sgd' runs on batched" in sentence for sentence in words(Record.read(Path("r"))))


def test_stacks_come_from_the_engine_that_was_chosen(times: list[float]) -> None:
    problem = small_problem()
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    asked = [
        Request("sgd", shared, options={"lr": 0.1, "steps": 50, "batch_size": 8}),
        Request("evaluate", shared, options={"split": "train"}),
    ]
    for seconds, sizes in (([2.0, 1.0], [6]), ([1.0, 2.0], [1] * 6)):
        times[:] = seconds
        engine: Engine = OnHost({"": Part(problem, small_federation())}, Layers(), 1, 0.0)
        for request in asked:  # the trial, with some of them, does not part who can go together
            assert [len(stack.clients) for stack in engine.ask(range(6), request)] == sizes
            assert [len(stack.clients) for stack in engine.ask([3], request)] == [1]
        FILE.unlink()


def test_the_next_run_does_not_try_again(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    times[:] = [2.0, 1.0]
    first = run()
    monkeypatch.setattr(OnHost, "_tried", None)
    again = run()
    assert vector(first).equal(vector(again))
    assert again.summary["choices"] == [f"{said} Found by an earlier run." for said in first.summary["choices"]]


def test_a_resumed_run_goes_on_as_it_began(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    times[:] = [2.0, 1.0]
    whole = run(rounds=4)
    FILE.unlink()
    run(rounds=2, out="r")
    FILE.unlink()
    monkeypatch.setattr(OnHost, "_tried", None)
    result = run(rounds=4, out="r", resume=True)
    assert vector(whole).equal(vector(result))
    assert result.summary["choices"] == whole.summary["choices"]
    assert json.loads(Path("r/result.json").read_text())["choices"] == whole.summary["choices"]
    assert run("local", rounds=5, out="r", resume=True).summary["rounds"] == 5  # another engine reads it, too


def dropping(p: float = 0.3) -> Problem:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(p), nn.Linear(8, 3))
    return Problem(net, [Objective("left", "cross-entropy")])


def test_dropout_stays_what_it_is_on_local(times: list[float]) -> None:
    """Its masks are others on `batched`: the model would follow from how busy the machine was."""
    times[:] = [9.0, 1.0]
    result = run(problem=dropping(), evaluate={"splits": ["train"]})
    assert vector(result).equal(vector(run("local", dropping())))
    assert any("'sgd' runs on local: it draws at random (dropout)" in said for said in result.summary["choices"])
    assert any("'evaluate' runs on batched" in said for said in result.summary["choices"])


class Dropping(nn.Module):
    """Drops some of its inputs, which its modules do not tell."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.layer, self.p = nn.Linear(5, 3), p

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(nn.functional.dropout(x, self.p) if self.p else x)
        return out


def test_dropout_stays_so_whatever_an_earlier_run_has_found(times: list[float]) -> None:
    times[:] = [9.0, 1.0]
    found = []
    for p in (0.0, 0.3):
        torch.manual_seed(0)
        found.append(Problem(Dropping(p), [Objective("left", "cross-entropy")]))
    assert any("'sgd' runs on batched" in said for said in run(problem=found[0]).summary["choices"])
    result = run(problem=found[1])
    assert vector(result).equal(vector(run("local", found[1])))
    assert any("'sgd' runs on local: it draws at random" in said for said in result.history[0]["choices"])
    assert not any("'sgd' runs on batched" in said for said in result.history[0]["choices"])


class Branching(nn.Module):
    """Looks at numbers, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if float(out.detach().sum()) > 0 else 2 * out


def test_what_cannot_be_stacked_stays_on_local_without_a_warning(times: list[float]) -> None:
    times[:] = [9.0, 1.0]
    torch.manual_seed(0)
    problem = Problem(Branching(), [Objective("left", "cross-entropy")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = run(problem=problem)
    assert vector(result).equal(vector(run("local", problem)))
    assert any("'sgd' runs on local: it cannot be stacked" in said for said in result.summary["choices"])
    assert not FILE.exists()  # its code may be another one in the next run


@pytest.mark.parametrize(
    ("bound", "why"), [("LONG", "of which stacking saves little"), ("PATIENCE", "a stacked step takes too long")]
)
def test_long_steps_are_not_tried_for_long(
    bound: str, why: str, times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times[:] = [9.0, 1.0]
    monkeypatch.setattr(module, bound, 0.0)
    result = run()
    assert any(said.startswith("The work 'sgd' runs on local: ") and why in said for said in result.summary["choices"])
    assert vector(result).equal(vector(run("local")))


def test_a_trial_leaves_no_failure_and_a_client_that_fails_does_so_once(times: list[float]) -> None:
    """The first client, with which a trial begins, has labels that there are no classes for."""
    times[:] = [9.0, 1.0]
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    y[2:10] = 7
    federation = Federation.from_arrays(x, {"left": y}, clients=list(np.arange(60).reshape(6, 10)))
    problem = Problem(nn.Linear(5, 2), [Objective("left", "cross-entropy")])
    one, other = (
        train(problem, federation, fedavg(), rounds=2, engine=engine, check_rows=False, evaluate={"splits": ["train"]})
        for engine in ("local", ON_HOST)
    )
    assert one.summary["failures"] == other.summary["failures"] > 0
    assert vector(one).equal(vector(other))
    assert all("on local: client 0, with which a trial began, has failed" in s for s in other.summary["choices"])
    assert not FILE.exists()


@pytest.mark.forks
def test_workers_take_part_in_the_trial_and_in_what_follows() -> None:
    result = run({**ON_HOST, "workers": 2})
    assert torch.allclose(vector(result), vector(run("local")), atol=1e-5)
    assert len(result.summary["choices"]) == 1


def test_it_is_an_engine_like_any_other(times: list[float]) -> None:
    times[:] = [2.0, 1.0]
    check_engine(lambda parts, layers: OnHost(parts, layers, 1, 0.0))


def test_several_models_are_chosen_for_one_by_one(times: list[float]) -> None:
    times[:] = [2.0, 1.0]
    unstackable = Problem(
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)), [Objective("left", "cross-entropy")]
    )
    models = {"a": (small_problem(), fedavg()), "b": (unstackable, fedavg())}
    said = "The work 'sgd' runs on batched: batched is 2 times as fast as local."
    for sentence in (said, f"{said} Found by an earlier run."):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            result = train_many(MultiModel(models), small_federation(), rounds=2, engine=ON_HOST)
        assert result.summary["failures"] == 0
        assert result.summary["choices"] == [sentence]


class Remembers(Layer):
    remembers = True


def test_models_that_do_not_fit_are_local() -> None:
    made: Engine = engines["auto"](
        {"": Part(small_problem(), small_federation())}, Layers((Remembers(),)), device="cpu"
    )
    assert type(made).__name__ == "Local"
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="can see no GPU"):
            resolve("cuda")


def test_auto_is_batched_on_a_gpu_where_the_model_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "resolve", lambda device: torch.device("cuda"))
    monkeypatch.setattr(module, "Batched", lambda *args, **settings: "batched")
    monkeypatch.setattr(module, "Local", lambda *args, **settings: "local")
    normed = Problem(
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)), [Objective("left", "cross-entropy")]
    )
    asked: list[tuple[Problem, list[Layer]]] = [
        (small_problem(), []), (normed, []), (small_problem(), [Misreport(clients=[1], factor=10.0)]),
        (small_problem(), [Remembers()]),
    ]  # fmt: skip
    made: Any = engines["auto"]
    found = [made({"": Part(problem, small_federation())}, Layers(tuple(layers))) for problem, layers in asked]
    assert found == ["batched", "local", "batched", "local"]
    several = {"a": Part(small_problem(), small_federation()), "b": Part(normed, small_federation())}
    assert made(several, Layers()) == "local"


def test_requests_are_cut_where_their_work_is_so_many_steps() -> None:
    rows = np.array([4, 20, 25])
    sgd = Request("sgd", options={"lr": 0.1, "epochs": 2, "batch_size": 10})
    assert local_steps(sgd, rows).tolist() == [2, 4, 6]
    assert local_steps(cut(sgd, 5), rows).tolist() == [5, 5, 5]
    assert cut(sgd, 5).options == {"lr": 0.1, "epochs": 0, "steps": 5, "batch_size": 10}
    assert local_steps(Request("sgd", options={"lr": 0.1, "epochs": 2}), rows).tolist() == [2, 2, 2]
    evaluate = Request("evaluate", options={"split": "train"})
    assert cut(evaluate, 5) is evaluate
    assert local_steps(evaluate, rows).tolist() == [1, 1, 1]


def test_a_choice_depends_on_the_model_the_work_and_the_data() -> None:
    def facts(problem: Problem, request: Request, clients: int = 6, rows: int = 20) -> str:
        part = Part(problem, small_federation(rows=rows))
        return json.dumps(depends_on(part, Layers(), request, clients), sort_keys=True)

    plain, other = small_problem(), small_problem()
    other.model.requires_grad_(False)
    sgd = Request("sgd", options={"lr": 0.1, "steps": 2, "batch_size": 8})
    found = [
        facts(plain, sgd), facts(other, sgd), facts(small_problem(objectives=3), sgd), facts(plain, cut(sgd, 5)),
        facts(dropping(0.3), sgd), facts(dropping(0.4), sgd),
        facts(plain, sgd, clients=7), facts(plain, sgd, rows=200), facts(small_problem(dtype=torch.float64), sgd),
        facts(plain, Request("evaluate", options={"split": "train"})),
    ]  # fmt: skip
    assert len(set(found)) == len(found)
    assert facts(small_problem(seed=1), sgd) == found[0]


def test_a_choice_is_not_kept_for_other_code_of_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that somebody has changed may be the faster one now."""
    found = []
    for text in ("fast = 1", "fast = 2", "fast = 1"):
        (tmp_path / "kernels").mkdir(exist_ok=True)
        (tmp_path / "kernels" / "one.py").write_text(text)
        monkeypatch.setattr(trial, "__file__", str(tmp_path / "trial.py"))
        found.append(trial._code.__wrapped__())
    assert found[0] == found[2] != found[1]
    part = Part(small_problem(), small_federation())
    sgd = Request("sgd", options={"lr": 0.1, "steps": 2, "batch_size": 8})
    assert depends_on(part, Layers(), sgd, 6)["versions"][2] == trial._code()
