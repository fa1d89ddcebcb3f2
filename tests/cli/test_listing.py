"""`polyfed list KIND NAME`: the settings of one thing, with types and defaults, and its page."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.experiment.catalogue import PAGES, registries, settings_of
from polyfed.experiment.reading import builtin


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_method_with_its_settings_and_page() -> None:
    shown = polyfed("list", "algorithms", "fedcmoo").stdout
    assert shown.startswith("fedcmoo: Weights from compressed Jacobians")
    assert re.search(r'^compress +text or table or Compressor +"sketch" +how a client', shown, re.MULTILINE)
    assert re.search(r"^ways +1, 2 +1 +1; or 2: the server sends", shown, re.MULTILINE)
    assert shown.endswith("\nhttps://polyfed.github.io/polyfed/methods/fedcmoo.html\n")


@pytest.mark.parametrize("kind", list(registries()))
def test_everything_of_every_kind(kind: str) -> None:
    for name in registries()[kind]:
        done = polyfed("list", kind, name, "--json")
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["kind"], found["name"]) == (kind, name)
        assert [setting["name"] for setting in found["settings"]] == [s.name for s in settings_of(kind, name)]
        assert found["page"].startswith(PAGES)
        assert found["page"].endswith(".html")


def test_needed_settings_and_things_without_any() -> None:
    nodes = polyfed("list", "datasets", "nodes").stdout
    assert re.search(r"^shape +list of whole number ≥ 1 or table +needed ", nodes, re.M)
    assert "It has no settings." in polyfed("list", "schedules", "mfa-rr").stdout


@pytest.mark.parametrize("name", sorted(builtin()))
def test_an_experiment_is_its_file(name: str) -> None:
    shown = polyfed("list", "experiments", name).stdout
    assert builtin()[name].read_text(encoding="utf-8") in shown
    assert shown.endswith("catalogue/experiments.html\n")


def test_a_name_that_is_not_there_is_a_sentence() -> None:
    done = polyfed("list", "algorithms", "fedcmo")
    assert (done.exit_code, done.stderr) == (
        2, "polyfed: There is no 'fedcmo' among the algorithms. Did you mean 'fedcmoo'?\n",
    )  # fmt: skip
    assert polyfed("list", "models", "os:system").exit_code == 2


def test_the_version() -> None:
    from polyfed import __version__

    assert polyfed("--version").stdout == f"polyfed {__version__}\n"
