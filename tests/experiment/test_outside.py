"""Everything that people add from outside: one file each, used from TOML and from Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from outside import COMPRESSOR
from polyfed import Algorithm, BadInput, Callback, FedAvg, FedCMOO, Federation, Objective, Problem, train
from polyfed.cli import app
from polyfed.core.layer import Layer
from small import small_federation, small_problem, vector

WEIGHTING = '''
from dataclasses import dataclass

import numpy as np

from polyfed.weights import Weighting


@dataclass(frozen=True)
class First(Weighting):
    """`share` for the first objective, the rest for the others."""

    share: float = 0.9

    def __call__(self, gram, state, key):
        w = np.full(len(gram), (1 - self.share) / max(len(gram) - 1, 1))
        w[0] = self.share
        return w, state
'''
ENGINE = '''
from polyfed.client.memory import Memory
from polyfed.client.runner import ClientRunner, run_jobs
from polyfed.core.engine import Engine
from polyfed.core.fleet import Stack

ASKED = []


class Mine(Engine):
    """A loop, in the plainest way."""

    def __init__(self, parts, layers, *, note: str = "none"):
        super().__init__(parts, layers)
        self.note = note
        self.memory = {name: Memory() for name in parts}
        self.runners = {n: ClientRunner(p.problem, p.federation, layers) for n, p in parts.items()}

    def replies(self, clients, request):
        ASKED.append((self.note, request.work))
        for job, reply in run_jobs(self.runners[request.part], self.memory[request.part], clients, request):
            yield Stack.of(job.client, reply)

    def tree(self):
        return {name: memory.tree() for name, memory in self.memory.items()}

    def load(self, tree):
        for name, memory in self.memory.items():
            memory.load(tree.get(name, {}))
'''
ALGORITHM = '''
from dataclasses import dataclass

import torch
from pydantic.dataclasses import dataclass

from polyfed import Algorithm
from polyfed.core.messages import Request
from polyfed.core.schema import gradient
from polyfed.core.work import work


@dataclass(frozen=True)
class Options:
    batch_size: int = 0


@work("outside-unit", reply={"u": gradient("d")}, options=Options)
def unit(client, request, options):
    """A gradient of length one."""

    def step(u, batch, i):
        g, losses, buffers = client.grad(request["x"], request["buffers"], batch, request["omega"])
        return g / g.norm()

    return {"u": client.loop(step, torch.zeros_like(request["x"]), steps=1, batch_size=options.batch_size)}


@dataclass(frozen=True)
class Unit(Algorithm):
    """Steps along the mean of the clients' normalised gradients."""

    lr: float = 0.1
    batch_size: int = 8

    def init(self, problem):
        return dict(problem.initial())

    def round(self, t, state, fleet):
        cohort = fleet.cohort(t)
        shared = {**state, "omega": torch.ones(len(fleet.names), dtype=state["x"].dtype) / len(fleet.names)}
        total = fleet.sum(cohort, Request("outside-unit", shared, options={"batch_size": self.batch_size}))
        return {**state, "x": state["x"] - self.lr * total["u"] / len(total.clients)}, {}
'''
CALLBACK = '''
import torch
from pydantic.dataclasses import dataclass

from polyfed import Callback

SEEN = []


@dataclass
class Until(Callback):
    """Stops the run after so many rounds, and counts them over a resume."""

    rounds: int = 2

    def on_start(self, run):
        SEEN.append(("start", run.round))
        self.count = getattr(self, "count", 0)

    def on_round(self, run, line):
        self.count += 1
        SEEN.append(("round", line["round"], sum(p.numel() for p in run.model().parameters())))
        if self.count >= self.rounds:
            run.stop()

    def on_end(self, run, result):
        SEEN.append(("end", result is not None))

    def tree(self):
        return {"count": torch.tensor(self.count)}

    def load(self, tree):
        self.count = int(tree.get("count", 0))
'''
DATASET = '''
import numpy as np

from polyfed import Dataset, Objective


def plane(*, seed: int, rows: int = 120) -> Dataset:
    """Points of a plane, and the side of a line that they lie on."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    return Dataset(x, {"side": (x[:, 0] > x[:, 1]).astype(np.int64)}, (Objective("side", "cross-entropy"),))
'''
FILES = {
    "outside_compressor": COMPRESSOR, "outside_weighting": WEIGHTING, "outside_engine": ENGINE,
    "outside_algorithm": ALGORITHM, "outside_callback": CALLBACK, "outside_dataset": DATASET,
}  # fmt: skip
BASE = """
rounds = 4
cohort = 4
[data]
{data}
clients = 6
[model]
name = "linear"
[algorithm]
{algorithm}
[engine]
{engine}
{more}
"""
DEFAULTS = {
    "data": 'name = "two-digits"\nexamples = 200',
    "algorithm": 'name = "fedcmoo"',
    "engine": 'name = "local"',
    "more": "",
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfed.core import registry

    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        registry.forget(name)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(*words: str, **tables: str) -> Any:
    Path("e.toml").write_text(BASE.format(**{**DEFAULTS, **tables}))
    return CliRunner().invoke(app, ["run", "e.toml", "--json", "--out", f"run{len(list(Path().glob('run*')))}", *words])


def test_a_compressor(tmp_path: Path) -> None:
    done = run(algorithm='name = "fedcmoo"\ncompress = { name = "outside_compressor:Signs", keep = 3 }')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_compressor import Signs  # type: ignore[import-not-found]

    results = [
        train(small_problem(), small_federation(), FedCMOO(compress=how), rounds=2, engine=engine)
        for how in (Signs(keep=3), {"name": "outside_compressor:Signs", "keep": 3})
        for engine in ("local", "wire", "batched")
    ]
    for other in results[1:]:
        assert torch.allclose(vector(results[0]), vector(other), atol=1e-5)
    assert not torch.allclose(
        vector(results[0]), vector(train(small_problem(), small_federation(), "fedcmoo", rounds=2))
    )


def test_a_weighting() -> None:
    done = run(algorithm='name = "fedcmoo"\nweighting = "outside_weighting:First"\nweighting_options = { share = 0.7 }')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_weighting import First  # type: ignore[import-not-found]

    result = train(small_problem(), small_federation(), FedCMOO(weighting=First(share=0.7)), rounds=2)
    assert result.history[-1]["weights"]["left"] == pytest.approx(0.7)


def test_an_engine() -> None:
    done = run(engine='name = "outside_engine:Mine"\nnote = "hello"')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_engine import ASKED, Mine  # type: ignore[import-not-found]

    assert ("hello", "sgd") in ASKED
    ours = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine="outside_engine:Mine")
    local = train(small_problem(), small_federation(), FedAvg(), rounds=2)
    assert ours.summary["model_sha256"] == local.summary["model_sha256"]
    from polyfed.testing import check_engine

    check_engine(Mine, exact=True)


def test_an_algorithm() -> None:
    done = run(algorithm='name = "outside_algorithm:Unit"\nlr = 0.2')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_algorithm import Unit  # type: ignore[import-not-found]

    sha = {
        train(small_problem(), small_federation(), algorithm, rounds=2, engine=engine).summary["model_sha256"]
        for algorithm in (Unit(lr=0.2), {"name": "outside_algorithm:Unit", "lr": 0.2})
        for engine in ("local", "wire")
    }
    assert len(sha) == 1


def test_a_callback_stops_and_is_in_the_checkpoint() -> None:
    done = run(more='[[callbacks]]\nname = "outside_callback:Until"\nrounds = 3')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_callback import SEEN, Until  # type: ignore[import-not-found]

    assert [entry[:2] for entry in SEEN] == [("start", 0), ("round", 1), ("round", 2), ("round", 3), ("end", True)]
    assert SEEN[1][2] > 0
    SEEN.clear()
    settings: dict[str, Any] = {"out": "r", "callbacks": [Until(rounds=5)]}
    train(small_problem(), small_federation(), FedAvg(), rounds=2, **settings)
    Path("r/result.json").unlink()
    settings["callbacks"] = [Until(rounds=5)]
    result = train(small_problem(), small_federation(), FedAvg(), rounds=9, resume=True, **settings)
    assert len(result.history) == 5  # two before, three after


def test_a_data_set() -> None:
    done = run(data='name = "outside_dataset:plane"\nrows = 60', algorithm='name = "fedavg"')
    assert done.exit_code == 0, done.stderr or done.exception
    from outside_dataset import plane  # type: ignore[import-not-found]

    from polyfed.data.build import federate
    from polyfed.data.partition import iid

    data = plane(seed=0)
    federation = federate(data, iid(data, rng=np.random.default_rng(0), clients=4))
    problem = Problem(torch.nn.Linear(2, 2), data.objectives)
    assert train(problem, federation, "fedavg", rounds=2).summary["objectives"]["side"]["loss"] > 0


# what is misspelt is a sentence


def test_a_misspelt_hook_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Near\.mesure is nearly called like the hook 'measure' of Algorithm"):
        type("Near", (Algorithm,), {"mesure": lambda self, state, fleet: {}})
    with pytest.raises(TypeError, match=r"Near\.round should take \(self, t, state, fleet\)\. Found \(self, t\)"):
        type("Near", (Algorithm,), {"round": _round_of_two})
    with pytest.raises(TypeError, match="nearly called like the hook 'on_round' of Callback"):
        type("Near", (Callback,), {"on_rounds": lambda self, run, line: None})
    with pytest.raises(TypeError, match="nearly called like the hook 'reply' of Layer"):
        type("Near", (Layer,), {"replys": lambda self, out: {}})
    with pytest.raises(TypeError, match="stage should be one of attack, guard"):
        type("Near", (Layer,), {"stage": "gaurd"})


def _round_of_two(self: Any, t: int) -> None:
    """Not what a round takes."""


def test_a_misspelt_option_is_a_sentence() -> None:
    from polyfed.core.messages import Request
    from polyfed.testing import open_door

    door = open_door(small_problem(), small_federation())
    with pytest.raises(BadInput, match=r"The work 'sgd' has no option 'lrr'. It has lr, steps"):
        list(door.ask([0], Request("sgd", small_problem().initial(), options={"lrr": 0.1})))
    with pytest.raises(BadInput, match=r"options of the work 'sgd'.lr should be a valid number"):
        list(door.ask([0], Request("sgd", small_problem().initial(), options={"lr": "fast"})))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('[[callbacks]]\nname = "progres"', "Unknown callback 'progres'. Did you mean 'progress'?"),
        ('[[callbacks]]\nname = "progress"\ncolour = 1', "Unknown key 'callbacks.colour'"),
        ("[[callbacks]]\nevery = 1", "The key 'callbacks.name' is needed"),
        ('[[layers]]\nname = "outside_algorithm:Unit"', "should be a polyfed Layer. Found Unit"),
    ],
)
def test_a_misspelt_callback_or_layer_is_a_sentence(more: str, why: str) -> None:
    done = run(more=more)
    assert done.exit_code == 2, done.stderr
    assert why in done.stderr
    assert not list(Path().glob("run*"))


def test_python_errors_are_sentences() -> None:
    with pytest.raises(BadInput, match=r"^FedCMOO: lr should be greater than 0"):
        FedCMOO(lr=-1)
    with pytest.raises(BadInput, match=r"^FedCMOO: Unknown key 'lrr'\. Did you mean 'lr'\?"):
        FedCMOO(lrr=0.1)  # type: ignore[call-arg]
    with pytest.raises(BadInput, match=r"Unknown algorithm 'fedcmo'\. Did you mean 'fedcmoo'\?"):
        train(small_problem(), small_federation(), "fedcmo", rounds=1)
    with pytest.raises(BadInput, match=r"algorithm\.lr should be greater than 0"):
        train(small_problem(), small_federation(), {"name": "fedcmoo", "lr": -1}, rounds=1)
    with pytest.raises(BadInput, match=r"should be a name or a subclass of polyfed.Algorithm. Found int"):
        train(small_problem(), small_federation(), 3, rounds=1)  # type: ignore[arg-type]


def test_a_callback_that_raises_ends_the_run_unless_it_is_optional() -> None:
    from polyfed import RunStopped

    class Broken(Callback):
        def on_round(self, run: Any, line: Any) -> None:
            raise ValueError("no disk")

    class Tracker(Broken):
        optional = True

    with pytest.raises(RunStopped, match=r"The callback Broken failed in round 1 \(ValueError: no disk\)"):
        train(small_problem(), small_federation(), FedAvg(), rounds=3, callbacks=[Broken()], out="r")
    assert len(train(small_problem(), small_federation(), FedAvg(), rounds=3, callbacks=[Tracker()]).history) == 3
    resumed = train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r", resume=True)
    whole = train(small_problem(), small_federation(), FedAvg(), rounds=3)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


@pytest.mark.parametrize("name", ["mb-sgd", "mocha"])
def test_work_on_rows_runs_on_batched(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    federation = Federation.from_arrays(x, {"y": (x[:, 0] > 0).astype(np.int64)}, clients=6)
    problem = Problem(torch.nn.Linear(4, 1), [Objective("y", "binary")], torch.float64)
    algorithm = {"name": name, "standardise": True}
    sha = [
        train(problem, federation, algorithm, rounds=3, engine=engine).summary["model_sha256"]
        for engine in ("local", "batched")
    ]
    assert sha[0] == sha[1]
