"""`polyfed.load` gives back what a run trained: of every method, from the command line and from Python."""

from __future__ import annotations

import copy
import importlib
import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn
from typer.testing import CliRunner

import polyfed
from golden_runs import DIGITS, TASKS
from polyfed import BadInput, FedAvg, Federation, Mocha, MultiModel, Objective, Problem, Result, train, train_many
from polyfed.algorithms import algorithms
from polyfed.cli import app
from polyfed.core import code
from polyfed.core.format import FORMAT
from polyfed.core.registry import forget
from polyfed.experiment.building import plan, rebuild
from polyfed.run.directory import RunDirectory
from polyfed.run.history import History
from polyfed.run.loop import execute
from small import small_federation

OLD = Path(__file__).parents[1] / "golden" / "old_runs"
NAMES = [name for name in algorithms if algorithms[name].__module__.startswith("polyfed.")]
MODULE = """
import torch
from torch import nn
from polyfed import Federation, Objective, Problem

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
        self.heads = nn.ModuleDict({"left": nn.Linear(4, 3)})
    def forward(self, x):
        return {"left": self.heads["left"](self.body(x))}

class Sized(nn.Module):
    def __init__(self, width=4, wide=False):
        super().__init__()
        self.config = {"width": width, "wide": wide}
        self.net = nn.Sequential(nn.Linear(5, width), nn.Tanh() if wide else nn.ReLU(), nn.Linear(width, 3))
    def forward(self, x):
        return self.net(x)

class Shy(nn.Linear):
    def __init__(self, inputs=5, outputs=3):
        super().__init__(inputs, outputs)

def huber(output, target):
    return nn.functional.huber_loss(output[:, 0], target.float(), reduction="none")

def problem():
    return Problem(Sized(wide=True), [Objective("left", huber)])

def federation():
    x = torch.arange(60.0).reshape(12, 5).cos()
    return Federation.from_arrays(x, {"left": torch.arange(12) % 3}, clients=3)

def bad():
    return 3
"""


def ran(settings: dict[str, Any], out: str = "run") -> Result:
    """An experiment as the command line runs it."""
    made, resolved = plan("e", settings)
    return execute(made, RunDirectory.create(Path(out), "e", {"name": "e", "folder": "", **resolved}))


def experiment(name: str) -> dict[str, Any]:
    tasks = algorithms[name].__module__.startswith("polyfed.algorithms.tasks.")
    return {**(TASKS if tasks else DIGITS), "rounds": 2, "algorithm": {"name": name}}


def same(one: nn.Module, two: nn.Module) -> bool:
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A user's module, in a folder above the runs."""
    (tmp_path / "loaded_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("loaded_mine")
    sys.modules.pop("loaded_mine")
    forget("loaded_mine")


# runs of the command line


@pytest.mark.parametrize("name", NAMES)
def test_every_method_comes_back(name: str) -> None:
    result = ran(experiment(name))
    loaded = polyfed.load("run")
    assert same(loaded.model, result.model)
    assert not any(m.training for m in loaded.model.modules())
    assert loaded.summary == result.summary
    assert loaded.history == result.history
    assert loaded.round == 2
    assert loaded.settings["algorithm"]["name"] == name
    assert loaded.problem.model is loaded.model
    assert len(loaded.federation) == (1 if name == "centralised" else 6)


@pytest.mark.parametrize("name", ["mocha", "mb-sgd", "global"])
def test_clients_own_models_give_the_figures_of_the_run(name: str) -> None:
    result = ran({**experiment(name), "evaluate": {"clients": True, "per_client": True}})
    loaded = polyfed.load("run")
    assert loaded.clients["label"].keys() == result.clients["label"].keys()
    for client in range(6):
        rows = torch.from_numpy(loaded.federation.rows("test", client))
        with torch.no_grad():
            output = loaded.personal(client)(loaded.federation.x[rows].double())["label"]
        right = (output[:, 0] > 0).long() == loaded.federation.targets["label"][rows]
        assert float(right.double().mean()) == pytest.approx(result.clients["label"]["accuracy"][client])
        said = loaded.predict(loaded.federation.x[rows], client=client)["label"]
        assert (said == (output[:, 0] > 0).long().numpy()).all()
    with pytest.raises(BadInput, match="client should be a number below"):
        loaded.personal(6)


def test_nodes_that_share_a_task_share_its_model() -> None:
    ran({**experiment("mocha"), "algorithm": {"name": "mocha", "tasks": [0, 0, 1, 1, 2, 2]}})
    loaded = polyfed.load("run")
    assert same(loaded.personal(2), loaded.personal(3))
    assert not same(loaded.personal(3), loaded.personal(4))


def test_one_model_for_all_has_no_personal_ones() -> None:
    ran(experiment("fedavg"))
    with pytest.raises(BadInput, match="'fedavg' learns one model for all clients"):
        polyfed.load("run").personal(0)


@pytest.mark.parametrize("schedule", ["mfa-rand", "mfa-rr"])
def test_several_models_come_back_as_a_module_dict(schedule: str) -> None:
    quadratic = {"data": {"name": "quadratic", "clients": 6, "dim": 4}, "model": {"name": "point", "dtype": "float64"}}
    models = {
        "q": {**quadratic, "algorithm": {"name": "fedavg"}},
        "t": {**{k: TASKS[k] for k in ("data", "model")}, "algorithm": {"name": "mocha"}},
    }
    result = ran({"rounds": 2, "cohort": "all", "models": models, "schedule": {"name": schedule}})
    loaded = polyfed.load("run")
    assert isinstance(loaded.model, nn.ModuleDict)
    assert same(loaded.model, result.model)
    assert set(loaded.problems) == set(loaded.federations) == {"q", "t"}
    assert loaded.personal(1, model="t").training is False
    with pytest.raises(BadInput, match=r"Say which model of the run is meant, one of \['q', 't'\]. Found none"):
        loaded.predict(np.zeros((1, 4)))
    with pytest.raises(BadInput, match=r"Did you mean 'q'|Found 'p'"):
        loaded.predict(np.zeros((1, 4)), model="p")


def test_a_given_model_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ran(experiment("fedavg"))
    empty = plan("e", experiment("fedavg"))[0].parts[""].problem.model
    monkeypatch.setattr("polyfed.experiment.building.build_data", lambda *_: pytest.fail("data were made"))
    assert same(polyfed.load("run", model=empty).model, result.model)


def test_a_run_that_stopped_gives_its_newest_checkpoint() -> None:
    result = ran(experiment("mocha"))
    for name in ("result.json", "model.safetensors"):
        Path("run", name).unlink()
    loaded = polyfed.load(result.run)
    assert same(loaded.model, result.model)
    assert loaded.round == 2
    assert loaded.summary == {}
    assert same(loaded.personal(1), loaded.personal(1))
    shutil.rmtree(Path("run/checkpoints"))
    with pytest.raises(BadInput, match="has no model yet"):
        polyfed.load(result.run)


# older and newer formats


@pytest.mark.parametrize("name", ["fedcmoo", "mocha", "models"])
def test_a_run_of_an_earlier_version_is_read(name: str) -> None:
    loaded = polyfed.load(OLD / name)
    assert loaded.round == 2
    assert [line["round"] for line in loaded.history] == [1, 2]
    assert len(list(loaded.model.parameters())) > 0


def test_a_run_says_its_format_and_a_newer_one_is_refused() -> None:
    ran(experiment("fedavg"))
    for name in ("experiment.toml", "started.toml"):
        assert tomllib.loads(Path("run", name).read_text())["format"] == FORMAT
    text = Path("run/experiment.toml").read_text()
    for found in (FORMAT + 1, -1, "true", "'x'"):
        Path("run/experiment.toml").write_text(text.replace(f"format = {FORMAT}", f"format = {found}"))
        with pytest.raises(BadInput, match=f"this version of polyfed reads formats up to {FORMAT}"):
            polyfed.load("run")
        for words in (["resume", "run"], ["runs", "repair", "run"], ["run", "run/experiment.toml"]):
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 2
            assert "reads formats up to" in done.stderr


# damaged and foreign runs


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": 3}, {"models": {"a": 1}}, {"model": 3}, {"model": {"class": 4}}, {"model": {"class": "nowhere:x"}},
        {"model": {"class": "os:abort"}}, {"model": {"from": "os:abort"}}, {"model": {"class": "a"}},
        {"model": {"class": "torch.nn:Linear", "config": "[1]"}}, {"objectives": {"a": 1}}, {"data": {"names": 1}},
        {"objectives": {"a": {"loss": 3}}}, {"data": {"classes": {"a": 1}}}, {"folder": 3}, {"algorithm": "fedavg"},
    ],
)  # fmt: skip
def test_a_record_that_somebody_made_up_is_a_sentence(wrong: dict[str, Any]) -> None:
    ran(experiment("fedavg"))
    Path("run/started.toml").write_text(tomli_w.dumps({"python": True, **wrong}))
    with pytest.raises(BadInput) as found:
        polyfed.load("run")
    assert len(str(found.value)) <= 400


def test_a_run_over_data_that_only_clients_have() -> None:
    data = {"name": "nodes", "clients": 2, "shape": [3], "objectives": {"y": "binary"}}
    settings = {
        "rounds": 1,
        "cohort": "all",
        "data": data,
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg"},
    }
    problem = rebuild(settings)[""].problem
    engine = {"name": "flower", "address": "superlink"}
    directory = RunDirectory.create(Path("run"), "e", {"name": "e", "engine": engine, **settings})
    totals = {"rounds": 1, "failures": 0, "seconds": 0.0, "bytes_up": 0, "bytes_down": 0, "objectives": {}}
    directory.finish(problem.model.state_dict(), totals)
    loaded = polyfed.load("run")
    assert same(loaded.model, problem.model)
    assert loaded.predict(np.ones((2, 3), dtype=np.float32))["y"].shape == (2,)


def test_another_models_file_is_refused() -> None:
    ran(experiment("fedavg"))
    ran({**experiment("fedavg"), "seed": 1}, "other")
    shutil.copy("other/model.safetensors", "run/model.safetensors")
    with pytest.raises(BadInput, match="checksums differ"):
        polyfed.load("run")
    Path("run/model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="cannot be read"):
        polyfed.load("run")


@pytest.mark.parametrize("run", ["nowhere", 3])
def test_what_is_no_run_is_a_sentence(run: Any) -> None:
    with pytest.raises(BadInput, match=r"is not a run|should be the path"):
        polyfed.load(run)


# runs of Python


def python_run(problem: Any, **more: Any) -> Result:
    federation = more.pop("federation", small_federation())
    return train(problem, federation, FedAvg(local_steps=1), rounds=1, out=more.pop("out", "run"), **more)


def classes(*names: str) -> list[Objective]:
    return [Objective(name, "cross-entropy") for name in names]


def test_a_class_without_arguments_is_made_again(mine: Any) -> None:
    result = python_run(Problem(mine.Net(), classes("left"), torch.float64))
    loaded = polyfed.load(result.run)
    assert same(loaded.model, result.model)
    assert isinstance(loaded.model, mine.Net)
    x = torch.randn(4, 5)
    assert (loaded.predict(x)["left"] == loaded.predict(x)["left"]).all()
    assert loaded.problem.dtype == torch.float64
    with pytest.raises(BadInput, match="does not say what its data were made by"):
        _ = loaded.federation


def test_a_class_that_keeps_its_arguments_is_made_again(mine: Any) -> None:
    result = python_run(Problem(mine.Sized(width=7, wide=True), classes("left")))
    loaded = polyfed.load(result.run)
    assert same(loaded.model, result.model)
    assert isinstance(loaded.model.get_submodule("net.1"), nn.Tanh)


def test_a_class_with_arguments_nobody_kept_is_asked_for(mine: Any) -> None:
    result = python_run(Problem(mine.Shy(), classes("left")))
    with pytest.raises(BadInput, match=r"takes arguments \(inputs, outputs\), not in the run; give the model"):
        polyfed.load(result.run)
    assert same(polyfed.load(result.run, model=mine.Shy()).model, result.model)
    with pytest.raises(BadInput, match=r"is not the one that .* trained: 'weight' has the shape \(2, 5\)"):
        polyfed.load(result.run, model=mine.Shy(5, 2))
    with pytest.raises(BadInput, match=r"is not the one that .* trained: it has no 'bias'"):
        polyfed.load(result.run, model=nn.Linear(5, 3, bias=False))


def test_a_class_of_a_function_is_asked_for() -> None:
    class Local(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)

    result = python_run(Problem(Local(), classes("left")))
    with pytest.raises(BadInput, match=r"which cannot be imported; give the model: polyfed\.load"):
        polyfed.load(result.run)
    given = Local()
    before = given.weight.clone()
    assert same(polyfed.load(result.run, model=given).model, result.model)
    assert torch.equal(given.weight, before)
    problem = Problem(given, classes("left"))
    assert polyfed.load(result.run, model=problem).problem.names == ("left",)


def test_functions_make_problem_and_data_again(mine: Any) -> None:
    for problem, federation in ((mine.problem, mine.federation), ("loaded_mine:problem", "loaded_mine:federation")):
        shutil.rmtree("run", ignore_errors=True)
        result = python_run(problem, federation=federation)
        told = tomllib.loads(Path("run/experiment.toml").read_text())
        assert told["model"]["from"] == "loaded_mine:problem"
        assert told["data"]["from"] == "loaded_mine:federation"
        loaded = polyfed.load(result.run)
        assert same(loaded.model, result.model)
        assert loaded.problem.objectives[0].loss is mine.huber
        assert torch.equal(loaded.federation.x, mine.federation().x)


def test_own_losses_are_asked_for_with_the_problem(mine: Any) -> None:
    result = python_run(Problem(mine.Net(), [Objective("left", lambda o, t: o[:, 0] ** 2)]))
    loaded = polyfed.load(result.run)
    with pytest.raises(BadInput, match="has functions of its own, which a run cannot keep"):
        _ = loaded.problem
    assert loaded.predict(torch.randn(2, 5))["left"].shape == (2, 3)


@pytest.mark.parametrize("given", ["loaded_mine:bad", "loaded_mine", "nowhere:x", 3, nn.Linear(1, 1)])
def test_what_makes_no_problem_is_a_sentence(mine: Any, given: Any) -> None:
    with pytest.raises(BadInput, match=r"problem|cannot be imported"):
        python_run(given)
    assert not Path("run").exists()


def test_a_hugging_face_model_is_made_from_its_config() -> None:
    bert: Any = importlib.import_module("transformers")
    config = bert.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    tokens = np.random.default_rng(0).integers(1, 20, (12, 6))
    x = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    federation = Federation.from_arrays(x, {"topic": tokens[:, 0] % 3}, clients=3)
    problem = Problem(
        bert.BertForSequenceClassification(config), [Objective("topic", "cross-entropy", output="logits")]
    )
    result = python_run(problem, federation=federation)
    with pytest.raises(BadInput, match=r"allow_code=\['transformers'\]"):
        polyfed.load(result.run)
    loaded = polyfed.load(result.run, allow_code=["transformers"])
    assert same(loaded.model, result.model)
    with torch.no_grad():
        logits = loaded.model(**{name: torch.from_numpy(a) for name, a in x.items()}).logits
    assert (loaded.predict(x)["topic"] == logits.argmax(-1).numpy()).all()


def test_several_models_of_python(mine: Any) -> None:
    models = {name: (Problem(kind(), classes("left")), FedAvg()) for name, kind in (("a", mine.Net), ("b", mine.Shy))}
    result = train_many(MultiModel(models), small_federation(), rounds=1, out="run")
    with pytest.raises(BadInput, match="takes arguments"):
        polyfed.load(result.run)
    with pytest.raises(BadInput, match=r"a dict with the run's models, \['a', 'b'\]"):
        polyfed.load(result.run, model={"b": mine.Shy()})
    loaded = polyfed.load(result.run, model={"a": mine.Net(), "b": mine.Shy()})
    assert same(loaded.model, result.model)
    assert loaded.predict(torch.zeros(2, 5), model="b")["left"].shape == (2,)


def test_a_stopped_run_of_python(mine: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    federation = Federation.from_arrays(x, {"y": x[:, 0] > 0}, owner=np.repeat(["n", "m"], 20))
    result = train(
        Problem(nn.Linear(3, 1), [Objective("y", "binary")]), federation, Mocha(loss="logistic"), rounds=2, out="run"
    )
    whole = polyfed.load(result.run, model=nn.Linear(3, 1))
    for name in ("result.json", "model.safetensors"):
        Path("run", name).unlink()
    loaded = polyfed.load(result.run, model=nn.Linear(3, 1))
    assert same(loaded.model, result.model)
    assert same(loaded.personal("m"), whole.personal("m"))
    assert same(loaded.personal("m"), loaded.personal(0))  # names are in sorted order
    with pytest.raises(BadInput, match=r"client should be a number below 2, or a client's name. Found 'o'"):
        loaded.personal("o")


# whose code


def test_code_beside_nothing_is_refused(mine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = python_run(Problem(mine.Net(), classes("left")))
    away = tmp_path.parent / f"{tmp_path.name}-away"
    shutil.copytree("run", away / "run")
    monkeypatch.chdir(away)
    with pytest.raises(BadInput, match=r"may be anybody's; if you trust it, add allow_code=\['loaded_mine'\]"):
        polyfed.load("run")
    assert same(polyfed.load("run", allow_code=["loaded_mine"]).model, result.model)


def test_a_class_that_is_no_module_is_refused(mine: Any) -> None:
    result = python_run(Problem(mine.Net(), classes("left")))
    for name in ("experiment.toml", "started.toml"):
        text = Path("run", name).read_text()
        Path("run", name).write_text(text.replace("loaded_mine:Net", "loaded_mine:bad"))
    with pytest.raises(BadInput, match=r"should be a torch\.nn\.Module"):
        polyfed.load(result.run)


def test_loading_leaves_the_rule_of_the_program() -> None:
    ran(experiment("fedavg"))
    code.hold_to(None)
    polyfed.load("run")
    assert code._rule is None


def test_loading_draws_no_random_numbers(mine: Any) -> None:
    result = python_run(Problem(mine.Net(), classes("left")))
    before = torch.random.get_rng_state()
    polyfed.load(result.run)
    assert torch.equal(before, torch.random.get_rng_state())


# what a run of Python records, and history


def test_a_run_of_python_says_what_it_was_of(mine: Any) -> None:
    python_run(Problem(mine.Net(), classes("left")), evaluate={"every": 2})
    told = tomllib.loads(Path("run/started.toml").read_text())
    assert told["model"]["class"] == "loaded_mine:Net"
    assert told["model"]["trained"] == 5 * 4 + 4 + 4 * 3 + 3
    assert told["model"]["shapes"]["body.0.weight"] == [4, 5]
    assert told["objectives"] == {"left": {"loss": "cross-entropy"}}
    assert told["evaluate"]["every"] == 2
    data = told["data"]
    assert (data["clients"], data["rows"], data["train"], data["server"]) == (6, 150, 120, 30)
    assert data["inputs"] == {"arrays": {"x": {"shape": [5], "type": "float32"}}}


def test_a_run_of_python_from_before_the_record_resumes(mine: Any) -> None:
    result = python_run(Problem(mine.Net(), classes("left")), out="run")
    told = tomllib.loads(Path("run/experiment.toml").read_text())
    kept = {key: told[key] for key in ("python", "rounds", "seed", "cohort", "engine", "algorithm")}
    for name in ("experiment.toml", "started.toml"):
        Path("run", name).write_text(tomli_w.dumps(kept))
    again = python_run(Problem(mine.Net(), classes("left")), out="run", resume=True)
    assert again.summary["model_sha256"] == result.summary["model_sha256"]
    with pytest.raises(BadInput, match=r"The model of the run is not recorded; give the model"):
        polyfed.load("run")
    assert same(polyfed.load("run", model=mine.Net()).model, result.model)


def test_history_as_a_table() -> None:
    result = ran(experiment("fedavg"))
    table = polyfed.load("run").history.to_pandas()
    assert list(table["round"]) == [1, 2]
    assert list(table["losses.left"]) == [line["losses"]["left"] for line in result.history]
    assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])["cohort"] == table["cohort"][0]


def test_history_without_pandas_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pip install pandas"):
        History([{"round": 1}]).to_pandas()


# the best model, frozen parameters, adapters


def test_the_best_model_comes_back() -> None:
    worse = {"name": "fedavg", "lr": 5.0, "local_steps": 1}  # each round, so that the last is not the best
    settings = {"data": {"name": "quadratic", "clients": 6, "dim": 4}, "model": {"name": "point", "dtype": "float64"}}
    best = {"name": "best-model", "objective": "f1"}
    made, resolved = plan("e", {**settings, "rounds": 3, "cohort": 6, "algorithm": worse, "callbacks": [best]})
    result = execute(made, RunDirectory.create(Path("run"), "e", {"name": "e", **resolved}))
    loaded = polyfed.load("run", best=True)
    assert result.best_model is not None
    assert same(loaded.model, result.best_model)
    assert loaded.round == result.summary["best"]["round"] < 3
    shutil.copy("run/model.safetensors", "run/best.safetensors")
    with pytest.raises(BadInput, match="checksums differ"):
        polyfed.load("run", best=True)
    shutil.rmtree("run")
    ran(experiment("fedavg"))
    with pytest.raises(BadInput, match="kept no best model"):
        polyfed.load("run", best=True)


def test_buffers_come_back_and_so_does_a_checkpoint() -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    result = python_run(Problem(made(), classes("left")))
    assert same(polyfed.load("run", model=made()).model, result.model)
    for name in ("result.json", "model.safetensors"):
        Path("run", name).unlink()
    again = polyfed.load("run", model=made()).model
    assert torch.equal(again.state_dict()["1.running_mean"], result.model.state_dict()["1.running_mean"])


def test_what_was_frozen_is_frozen_again(mine: Any) -> None:
    problem = Problem(mine.Net(), classes("left"), freeze=["body.*"])
    result = python_run(problem)
    loaded = polyfed.load("run")
    assert same(loaded.model, result.model)
    assert [n for n, p in loaded.model.named_parameters() if p.requires_grad] == [
        "heads.left.weight",
        "heads.left.bias",
    ]
    assert loaded.problem.dim == problem.dim
    for name in ("result.json", "model.safetensors"):
        Path("run", name).unlink()
    given = problem.model  # a checkpoint has what was trained alone
    assert same(polyfed.load("run", model=given).model, result.model)


def test_adapters_come_back_over_their_base() -> None:
    peft: Any = importlib.import_module("peft")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    def adapted() -> nn.Module:
        made: nn.Module = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=2, target_modules=["0", "2"]))
        return made

    result = python_run(Problem(adapted(), classes("left")))
    loaded = polyfed.load("run", model=adapted())
    x = torch.randn(3, 5)
    with torch.no_grad():
        assert torch.equal(loaded.model(x), result.model(x))
    assert loaded.predict(x)["left"].shape == (3,)
    with pytest.raises(BadInput, match="is not the one that"):
        polyfed.load("run", model=copy.deepcopy(base))
