"""Another method, model, engine, ... by one word: what the file sets and that does not have is left out, and named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyfed.algorithms import algorithms
from polyfed.cli import app
from polyfed.core.errors import BadInput
from polyfed.core.registry import forget
from polyfed.core.settings import Settings, knows, takes
from polyfed.experiment.building import plan
from polyfed.experiment.reading import override, read

SMALL = {
    "two-digits": ["data.examples=200", "data.clients=10"],
    "many-models": [
        "models.digits.data.examples=200", "models.digits.data.clients=10", "models.synthetic.data.users=10",
        "models.quadratic.data.users=10",
    ],
}  # fmt: skip
FAMILY = {"two-digits": "objectives", "quadratic": "objectives", "many-models": "objectives", "many-tasks": "tasks"}
METHODS = {
    family: [name for name in algorithms if algorithms[name].__module__.startswith(f"polyfed.algorithms.{family}.")]
    for family in ("objectives", "tasks")
}
POOLED = [("many-models", "centralised")]  # has no clients that models could share


def changed(source: str | Settings, *assignments: str, **names: str) -> tuple[Settings, list[str]]:
    """The settings that the command line makes of an experiment, and what it says."""
    settings = read(source)[1] if isinstance(source, str) else source
    said: list[str] = []
    return override(settings, assignments, names, told=said.append), said


@pytest.mark.parametrize("experiment", FAMILY)
def test_every_method_of_the_family_fits_by_one_word(experiment: str) -> None:
    assert len(METHODS[FAMILY[experiment]]) >= 6
    for name in METHODS[FAMILY[experiment]]:
        if (experiment, name) not in POOLED:
            settings, _ = changed(experiment, *SMALL.get(experiment, ()), algorithm=name)
            made, resolved = plan(experiment, settings)
            assert resolved.get("algorithm", {"name": name})["name"] == name
            assert name in {getattr(part.algorithm, "title", "") for part in made.parts.values()}


@pytest.mark.parametrize("experiment", ["quadratic", "many-tasks"])
def test_a_runs_own_file_with_every_default_written_down_fits_the_next_method(experiment: str) -> None:
    settings = read(experiment)[1]
    methods = METHODS[FAMILY[experiment]]
    for name in [*methods, methods[0]]:
        settings = plan(experiment, changed(settings, algorithm=name)[0])[1]
        assert settings["algorithm"]["name"] == name


@pytest.mark.parametrize("method", METHODS["objectives"])
def test_they_run(method: str) -> None:
    done = CliRunner().invoke(app, ["run", "quadratic", "--algorithm", method, "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["algorithm"] == method


@pytest.mark.parametrize("how", [["--algorithm", "fedavg"], ["--set", "algorithm.name=fedavg"]])
def test_what_is_left_out_is_named_in_one_line(how: list[str]) -> None:
    small = [word for text in SMALL["two-digits"] for word in ("--set", text)]
    done = CliRunner().invoke(app, ["run", "two-digits", *how, *small, "--rounds", "1", "--set", "cohort=2"])
    assert done.exit_code == 0, done.stderr
    line = "Left out, because fedavg does not have them: algorithm.compress, algorithm.width.\n"
    assert done.stderr.startswith(f"{line}round 1/1  ")
    assert done.stderr.count("\n") == 2


@pytest.mark.parametrize(
    ("experiment", "assignment"),
    [
        ("two-digits", "algorithm.name=fedavg"),
        ("two-digits", "model.name=linear"),
        ("many-tasks", "algorithm.regulariser.name=mean"),
    ],
)
def test_the_guide_shows_what_is_said(experiment: str, assignment: str) -> None:
    (line,) = changed(experiment, assignment)[1]
    guide = Path(__file__).parents[2] / "docs/guides/experiments.md"
    assert f"\n{line}\n" in guide.read_text(encoding="utf-8")


def test_what_the_command_line_sets_is_never_left_out() -> None:
    settings, said = changed("two-digits", "algorithm.compress=sketch", "algorithm.width=64", algorithm="fedavg")
    assert (settings["algorithm"]["compress"], settings["algorithm"]["width"], said) == ("sketch", 64, [])
    with pytest.raises(BadInput, match=r"Unknown key 'algorithm\.compress'"):
        plan("x", settings)
    _, said = changed("two-digits", 'algorithm={name="fedavg", compress="sketch"}')
    assert said == []


def test_the_same_name_leaves_all_as_it_is() -> None:
    settings, said = changed({"algorithm": {"name": "fedavg", "lrr": 1}}, algorithm="fedavg")
    assert said == []
    with pytest.raises(BadInput, match=r"Unknown key 'algorithm\.lrr'"):
        plan("x", settings)


@pytest.mark.parametrize("name", ["fedagv", "no_such_module:x", "5"])
def test_an_unknown_name_is_for_building_to_refuse(name: str) -> None:
    settings, said = changed("two-digits", algorithm=name)
    assert (settings["algorithm"]["width"], said) == (256, [])


@pytest.mark.parametrize(
    ("table", "assignment", "left", "why"),
    [
        ({"model": {"name": "mlp", "hidden": [8]}}, "model.name=linear", {"model": {"name": "linear"}}, "linear does"),
        (
            {"model": {"dtype": "float64", "hidden": [8]}},
            "model.name=linear",
            {"model": {"name": "linear", "dtype": "float64"}},
            "linear does not have it: model.hidden",
        ),
        (
            {"data": {"partition": "dirichlet", "alpha": 0.3, "clients": 9, "test": 0.1}},
            "data.partition=iid",
            {"data": {"partition": "iid", "clients": 9, "test": 0.1}},
            "iid does not have it: data.alpha",
        ),
        (
            {"data": {"name": "two-digits", "examples": 50, "clients": 9}},
            "data.name=synthetic",
            {"data": {"name": "synthetic", "clients": 9}},
            "synthetic does not have it: data.examples",
        ),
        (
            {"engine": {"name": "local", "workers": 2}},
            "engine.name=wire",
            {"engine": {"name": "wire"}},
            "wire does not have it: engine.workers",
        ),
        (
            {"algorithm": {"weighting": {"name": "pgd", "steps": 3}}},
            "algorithm.weighting.name=upgrad",
            {"algorithm": {"weighting": {"name": "upgrad"}}},
            "upgrad does not have it: algorithm.weighting.steps",
        ),
        (
            {"algorithm": {"weighting": "pgd", "weighting_options": {"steps": 3}}},
            "algorithm.weighting=upgrad",
            {"algorithm": {"weighting": "upgrad", "weighting_options": {}}},
            "upgrad does not have it: algorithm.weighting_options.steps",
        ),
        (
            {"algorithm": {"compress": {"name": "sketch", "width": 3}}},
            "algorithm.compress.name=exact",
            {"algorithm": {"compress": {"name": "exact"}}},
            "exact does not have it: algorithm.compress.width",
        ),
        (
            {"algorithm": {"regulariser": {"name": "clustered", "lam": 1.0, "eta": 0.1}}},
            "algorithm.regulariser.name=independent",
            {"algorithm": {"regulariser": {"name": "independent", "lam": 1.0}}},
            "independent does not have it: algorithm.regulariser.eta",
        ),
        (
            {"algorithm": {"lr": {"rule": "plateau", "start": 0.1, "factor": 0.5}}},
            "algorithm.lr.rule=cosine",
            {"algorithm": {"lr": {"rule": "cosine", "start": 0.1}}},
            "cosine does not have it: algorithm.lr.factor",
        ),
        (
            {"algorithm": {"name": "fedavg", "local_steps": 1}, "models": {"a": {"algorithm": {"local_steps": 2}}}},
            "algorithm.name=afl",
            {"algorithm": {"name": "afl"}, "models": {"a": {"algorithm": {}}}},
            "afl does not have it: models.a.algorithm.local_steps",
        ),
        (
            {"models": {"a": {"algorithm": {"name": "fedavg", "local_steps": 2}}}},
            "models.a.algorithm.name=afl",
            {"models": {"a": {"algorithm": {"name": "afl"}}}},
            "afl does not have it: models.a.algorithm.local_steps",
        ),
    ],
)
def test_wherever_something_is_named(table: Settings, assignment: str, left: Settings, why: str) -> None:
    settings, said = changed(table, assignment)
    assert settings == left
    assert why in said[-1]


def test_a_partition_that_the_new_data_set_has_no_labels_for_is_left_out() -> None:
    data = {"name": "two-digits", "partition": "dirichlet", "alpha": 0.3, "clients": 9}
    settings, said = changed({"data": dict(data)}, "data.name=quadratic")
    assert settings == {"data": {"name": "quadratic", "clients": 9}}
    assert said == [
        "Left out, because quadratic cannot be parted by dirichlet: data.partition.",
        "Left out, because iid does not have it: data.alpha.",
    ]
    settings, said = changed({"data": dict(data)}, "data.name=synthetic")
    assert settings == {"data": {**data, "name": "synthetic"}}
    settings, said = changed({"data": dict(data)}, "data.name=quadratic", "data.partition=shards")
    assert settings["data"]["partition"] == "shards"


def test_a_value_that_does_not_fit_is_left_out_too() -> None:
    settings, said = changed("many-tasks", algorithm="local")
    assert said == ["Left out, because local takes other values: algorithm.regulariser."]
    assert "regulariser" not in settings["algorithm"]
    settings, said = changed("many-tasks", "algorithm.regulariser.lam=2.0", algorithm="local")
    gone = ", ".join(f"algorithm.regulariser.{key}" for key in ("name", "eta", "clusters"))
    assert said == [f"Left out, because local takes other values: {gone}."]
    assert settings["algorithm"]["regulariser"] == {"lam": 2.0}
    assert plan("x", settings)[1]["algorithm"]["regulariser"] == {"name": "independent", "lam": 2.0}


def test_a_value_that_fits_is_kept_whatever_its_form() -> None:
    lr = {"start": 0.5, "decay": 0.9}
    settings, said = changed({"algorithm": {"name": "fedcmoo", "lr": lr, "ways": 2}}, algorithm="fsmgda")
    assert settings["algorithm"] == {"name": "fsmgda", "lr": lr}
    assert said == ["Left out, because fsmgda does not have it: algorithm.ways."]


def test_a_name_in_short_becomes_a_table() -> None:
    settings, _ = changed({"engine": "local", "algorithm": {"compress": "sketch"}}, "algorithm.compress.width=8")
    assert settings["algorithm"]["compress"] == {"name": "sketch", "width": 8}
    assert changed({"engine": "local"}, engine="wire")[0]["engine"] == {"name": "wire"}
    with pytest.raises(BadInput, match="'lr' is a value, not a table"):
        changed("two-digits", "algorithm.lr.rule=cosine")


def test_a_model_that_names_its_own_keeps_it_and_that_is_said() -> None:
    settings, said = changed("many-models", algorithm="fedprox")
    assert said == ["Model 'digits' keeps its own algorithm, fedcmoo."]
    assert settings["models"]["digits"]["algorithm"]["name"] == "fedcmoo"
    assert changed("many-models", algorithm="fedcmoo")[1] == []


def test_own_functions_have_the_settings_that_they_have() -> None:
    Path("code_of_change.py").write_text(
        "def model(dataset, layers: int = 2): ...\ndef open_ended(dataset, **settings): ...\n"
    )
    Path("e.toml").write_text('[model]\nname = "mlp"\nhidden = [8]\nlayers = 3\n')
    try:
        settings, said = changed("e.toml", "model.name=code_of_change:model")
        assert settings["model"] == {"name": "code_of_change:model", "layers": 3}
        assert said == ["Left out, because code_of_change:model does not have it: model.hidden."]
        assert changed("e.toml", "model.name=code_of_change:open_ended")[1] == []
    finally:
        forget("code_of_change")
        del sys.modules["code_of_change"]
        sys.path.remove(str(Path.cwd()))


def test_code_is_not_imported_before_it_is_vetted() -> None:
    Path("code_of_stranger.py").write_text("raise SystemExit('ran')\n")
    Path("e.toml").write_text("rounds = 1\n")

    def vet(settings: Settings) -> None:
        raise BadInput(f"not {settings['model']['name']}")

    with pytest.raises(BadInput, match="not code_of_stranger:model"):
        override(read("e.toml")[1], ["model.name=code_of_stranger:model"], vet=vet)


def positive(*, lr: float = 0.1, names: list[str]) -> None: ...


def anything(**settings: Any) -> None: ...


def test_what_a_function_knows_and_takes() -> None:
    assert [knows(positive, key) for key in ("lr", "names", "lrr")] == [True, True, False]
    assert not knows(positive, "lr", ["lr"])
    assert knows(anything, "lr")
    assert takes(positive, "lr", 1.0)  # although names is needed
    assert not takes(positive, "lr", "1.0")
    assert not takes(positive, "names", 3)
    assert takes(anything, "lr", "x")
