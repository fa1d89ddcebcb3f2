"""Settings nobody would write: TOML of every registered setting, arguments from Python, --set, files of noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import polyfed
from fuzzing import SCALARS, SHARDS, TEXTS, VALUES, cases, only_our_errors
from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.core.errors import BadInput
from polyfed.core.settings import as_table
from polyfed.experiment.building import plan
from polyfed.experiment.catalogue import registries, settings_of
from polyfed.experiment.reading import builtin, override, read
from polyfed.experiment.schema import Evaluate, Top
from small import small_federation, small_problem

BASE: dict[str, Any] = {
    "rounds": 1, "cohort": 2, "data": {"name": "two-digits", "examples": 60, "clients": 4},
    "model": {"name": "linear"}, "algorithm": {"name": "fedavg"},
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "misreport": {"clients": [0]},
    "fixed": {"weights": [0.5, 0.5]},
    "fedcmoo-pref": {"preference": [0.5, 0.5]},
}


TABLES = ("data", "algorithm", "model", "engine", "layers", "callbacks", "cohort", "rounds", "objective", "e.toml")


@cache
def everything() -> list[tuple[str, str, str]]:
    """Kind, name and key of every registered setting, and those of the experiment itself."""
    kinds = [kind for kind in registries() if kind != "schedules"]
    named = [(kind, name, s.name) for kind in kinds for name in registries()[kind] for s in settings_of(kind, name)]
    own = [("", "", key) for key in Top.model_fields] + [("evaluate", "", key) for key in Evaluate.model_fields]
    data = [
        ("data", "", key) for key in ("name", "partition", "valid", "test", "skew", "skew_share", "holds", "rotate")
    ]
    return [*(one for one in named if one[1] in registries()[one[0]]), *own, *data]


def experiment(kind: str, name: str, key: str, value: Any) -> dict[str, Any]:
    """A small experiment with one setting of a registered thing."""
    own = {**NEEDED.get(name, {}), key: value}
    tables: dict[str, dict[str, Any]] = {
        "": {key: value},
        "evaluate": {"evaluate": {key: value}},
        "data": {"data": {**BASE["data"], key: value}},
        "algorithms": {"algorithm": {"name": name, **own}},
        "datasets": {"data": {"name": name, **own}},
        "models": {"model": {"name": name, **own}},
        "partitions": {"data": {**BASE["data"], "partition": name, **own}},
        "weightings": {"algorithm": {"name": "fedcmoo", "weighting": {"name": name, **own}}},
        "compressors": {"algorithm": {"name": "fedcmoo", "compress": {"name": name, **own}}},
        "server_optimizers": {"algorithm": {"name": "fedavg", "server_optimizer": {"name": name, **own}}},
        "engines": {"engine": {"name": name, **own}},
        "layers": {"layers": [{"name": name, **own}]},
        "callbacks": {"callbacks": [{"name": name, **own}]},
    }
    return {**BASE, **tables.get(kind, {})}


def from_file(settings: dict[str, Any]) -> None:
    try:
        text = tomli_w.dumps(settings)
    except (TypeError, ValueError, AttributeError):  # not TOML
        return
    Path("e.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    name, read_back = read("e.toml")
    plan(name, read_back)


def fuzz_settings(n: int, shard: int | None = None) -> None:
    @cases(n, shard)
    @given(st.sampled_from(everything()), VALUES)
    def fuzzed(which: tuple[str, str, str], value: Any) -> None:
        kind, name, key = which
        with only_our_errors(key, name or key, *TABLES):
            from_file(experiment(kind, name, key, value))
        assert {path.name for path in Path().iterdir()} <= {"e.toml"}

    fuzzed()


def test_toml_of_every_registered_setting() -> None:
    fuzz_settings(1200)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_toml_of_every_registered_setting_for_long(shard: int) -> None:
    fuzz_settings(1200, shard=shard)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": {"name": "fedcmoo", "weighting_options": {"name": "it's"}}},
        {"rounds": {"name": 3, "x" * 9000: "*"}},
        {"rounds": {"x": {"y" * 9000: 1.5}}},
    ],
    ids=["weighting_options", "rounds", "rounds nested"],
)
def test_what_long_runs_have_found(settings: dict[str, Any]) -> None:
    """Settings that once were refused without their name, or at length."""
    with only_our_errors("weighting_options", "rounds"):
        plan("e", settings)
        pytest.fail("it was taken")


def test_ragged_lists_as_clients_are_refused_in_a_sentence() -> None:
    x = np.zeros(6)
    with only_our_errors():
        Federation.from_arrays(x, x, clients=[[[], ["all"], []], "all", [[], ["all"], []]])
        pytest.fail("it was taken")


ODD: tuple[Any, ...] = (float("nan"), "0.1", True, [[]], {}, -1, 2**40)


@pytest.mark.parametrize(
    "value", ["x" * 5000, *(pytest.param(v, marks=pytest.mark.soak) for v in ODD)], ids=lambda value: str(value)[:9],
)  # fmt: skip
def test_one_odd_value_in_every_registered_setting(value: Any) -> None:
    for kind, name, key in everything():
        with only_our_errors():
            plan("e", experiment(kind, name, key, value))
    assert not list(Path().iterdir())


def fuzz_text(n: int, shard: int | None = None) -> None:
    @cases(n, shard)
    @given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
    def noise(data: bytes) -> None:
        Path("e.toml").write_bytes(data)
        with only_our_errors():
            name, settings = read("e.toml")
            plan(name, settings)

    @cases(n // 4, shard)
    @given(st.sampled_from(sorted(builtin())), st.integers(0, 2000), st.binary(max_size=6))
    def edited(name: str, place: int, more: bytes) -> None:
        text = builtin()[name].read_bytes()
        Path("e.toml").write_bytes(text[: place % len(text)] + more + text[place % len(text) :])
        with only_our_errors():
            title, settings = read("e.toml")
            plan(title, {**settings, "data": {"name": "two-digits", "examples": 60, "clients": 4}})

    @cases(n, shard)
    @given(st.text(max_size=20), st.text(max_size=20))
    def assigned(key: str, value: str) -> None:
        with only_our_errors():
            override({"models": {}}, [f"{key}={value}"])
            override({}, [f'objectives."{key}".loss={value}', f"data.{key}={value}"])

    noise()
    edited()
    assigned()


def test_files_that_are_noise() -> None:
    fuzz_text(150)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_files_that_are_noise_for_long(shard: int) -> None:
    fuzz_text(150, shard=shard)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "seed = " + "9" * 400, "a" * 100_000 + "=1"]
)
def test_toml_that_is_too_much(text: str) -> None:
    Path("e.toml").write_text(text)
    with pytest.raises(BadInput) as found:
        plan(*read("e.toml"))
    assert len(str(found.value)) <= 400


# from Python

ARRAYS = st.sampled_from(
    [np.zeros((6, 2), np.float32), np.zeros(6), np.zeros((0, 2)), np.zeros((6, 0)), np.array(3.0), np.array(["a"] * 6),
     np.full((6, 2), np.nan), np.zeros((6, 2), complex), np.zeros(6, int), np.zeros((6, 2), object), np.zeros(6, bool)]
)  # fmt: skip
KEYS = ["rounds", "cohort", "seed", "engine", "evaluate", "layers", "callbacks", "cohort_always", "cohort_never"]
METHODS = sorted(
    name for name in registries()["algorithms"] if registries()["algorithms"][name].__module__.startswith("polyfed")
)


def fuzz_python(n: int, shard: int | None = None) -> None:
    problem, federation = small_problem(), small_federation()

    @cases(n, shard)
    @given(st.sampled_from(KEYS), VALUES | st.none())
    def arguments(key: str, value: Any) -> None:
        if key == "rounds" and isinstance(value, int | float) and value > 3:
            return  # long, and as asked
        with only_our_errors():
            train(problem, federation, FedAvg(), **{"rounds": 1, key: value})

    @cases(n, shard)
    @given(st.sampled_from(METHODS), st.data(), VALUES | st.none())
    def methods(name: str, data: st.DataObject, value: Any) -> None:
        thing = registries()["algorithms"][name]
        key = data.draw(st.sampled_from([s.name for s in settings_of("algorithms", name)] + ["no_such"]))
        with only_our_errors():
            as_table(registries()["algorithms"], thing(**{key: value}))

    @cases(n, shard)
    @given(ARRAYS, ARRAYS, VALUES | st.just(2) | ARRAYS | st.lists(ARRAYS, max_size=2))
    def arrays(x: Any, y: Any, clients: Any) -> None:
        with only_our_errors():
            Federation.from_arrays(x, y, clients=clients)
            Federation.from_arrays(x, {"a": y}, clients=2, test=(x, y), holds={"a": clients})
        with only_our_errors():
            Federation.from_clients([(x, y), (y, x)])

    @cases(n, shard)
    @given(TEXTS, SCALARS, VALUES)
    def problems(name: str, loss: Any, more: Any) -> None:
        with only_our_errors():
            Objective(name, loss, classes=more)
        with only_our_errors():
            Problem(nn.Linear(2, 2), more)
        with only_our_errors():
            polyfed.Metric(loss, more)

    arguments()
    methods()
    arrays()
    problems()


def test_arguments_from_python() -> None:
    fuzz_python(120)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_arguments_from_python_for_long(shard: int) -> None:
    fuzz_python(120, shard=shard)
