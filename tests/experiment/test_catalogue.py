"""Everything that has a name: each of its settings is explained, and shown as a person would write it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from polyfed.experiment.catalogue import Setting, arguments_explained, page, registries, settings_of, values

KINDS = list(registries())


@dataclass
class Parent:
    """Has a base.

    Args:
        a, b: two of
            a kind.
        c: the parent's.
    """

    a: int
    b: int
    c: int


@dataclass
class Child(Parent):
    """Says more.

    Args:
        c: its own: with a colon.
        d: new.

    What follows: is prose.
    """

    d: list[int] = field(default_factory=list)


def undocumented(a: int) -> None: ...


def ours(kind: str) -> list[str]:
    """The names of a kind that are not a test's own."""
    return [name for name in registries()[kind] if registries()[kind][name].__module__.startswith("polyfed.")]


def of(kind: str, name: str, key: str) -> Setting:
    (found,) = [setting for setting in settings_of(kind, name) if setting.name == key]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_has_a_meaning(kind: str) -> None:
    empty = [f"{kind} {name}: {s.name}" for name in ours(kind) for s in settings_of(kind, name) if not s.meaning]
    assert not empty, f"no line under Args for {'; '.join(empty)}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_argument_is_explained_that_is_not_there(kind: str) -> None:
    given = {"parts", "layers"}  # by the system, to every engine
    for name in ours(kind):
        explained = set(arguments_explained(registries()[kind][name])) - given
        assert explained <= {setting.name for setting in settings_of(kind, name)}, f"{kind} {name}"


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_defaults_are_in_a_readers_words(kind: str) -> None:
    for name in ours(kind):
        for setting in settings_of(kind, name):
            shown = f"{setting.values} {setting.default}"
            assert not any(word in shown for word in ("factory", "typing", "object at", "(", "'", "anything")), (
                f"{kind} {name}: {setting}"
            )


@pytest.mark.parametrize(
    ("kind", "name", "key", "may_be", "default"),
    [
        ("algorithms", "fedcmoo", "compress", "text or table or Compressor", '"sketch"'),
        ("algorithms", "fedcmoo", "ways", "1, 2", "1"),
        ("algorithms", "fedavg", "weights", "table", "{}"),
        ("algorithms", "global", "regulariser", '{name = "independent", lam}', '{name = "independent", lam = 0.1}'),
        ("datasets", "rf1", "missing", '"drop", "mean"', '"drop"'),
        ("datasets", "wq", "missing", '"drop", "mean"', '"mean"'),
        ("datasets", "nodes", "shape", "list of whole number ≥ 1 or table", None),
        ("models", "mlp", "hidden", "list of whole number ≥ 1", ""),
        ("partitions", "dirichlet", "alpha", "number > 0", "0.3"),
        ("weightings", "fixed", "weights", "list of number", None),
        ("engines", "batched", "chunk", "whole number ≥ 0", "0"),
        ("engines", "batched", "graph", "true, false", "true"),
        ("layers", "faults", "silent", "list of whole number ≥ 0", "[]"),
        ("layers", "faults", "drop", "number ≥ 0, ≤ 1 or list of number ≥ 0, ≤ 1", "0.0"),
        ("layers", "network", "clock", "number > 0", "1e9"),
    ],
)
def test_values_and_default(kind: str, name: str, key: str, may_be: str, default: str | None) -> None:
    assert of(kind, name, key)[1:3] == (may_be, default)


def test_what_tells_one_table_from_others_stands_first() -> None:
    tables = of("algorithms", "mocha", "regulariser").values
    assert '{name = "fixed", omega, lam1, lam2}' in tables.split(" or ")
    assert values(Parent) == "{a, b, c}"


def test_what_the_system_gives_is_no_setting() -> None:
    assert settings_of("datasets", "multimnist") == []
    assert settings_of("schedules", "mfa-rr") == []
    assert {s.name for s in settings_of("partitions", "windows")} == {"clients", "rows_per_client"}
    assert settings_of("engines", "wire") == []


def test_pages() -> None:
    assert page("algorithms", "fedmgda+") == "methods/fedmgda-plus"
    assert page("schedules", "mfa-rr") == "methods/mfa-rr"
    assert page("datasets", "two-digits") == "catalogue/datasets/two-digits"


def test_arguments_are_explained_by_base_classes_too() -> None:
    assert arguments_explained(Parent) == {"a": "two of a kind.", "b": "two of a kind.", "c": "the parent's."}
    assert arguments_explained(Child) == {
        "a": "two of a kind.",
        "b": "two of a kind.",
        "c": "its own: with a colon.",
        "d": "new.",
    }
    assert arguments_explained(undocumented) == {}
