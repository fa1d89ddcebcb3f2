"""A client takes no code, and no names of code, from the server's `set`: its own configuration decides."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from polyfed.core.errors import BadInput
from polyfed.deploy.client import open_sites
from polyfed.deploy.init import init
from polyfed.deploy.settings import experiment

EXPERIMENT = (
    'rounds = 1\ncohort = 2\n[data]\nname = "two-digits"\nexamples = 60\nclients = 2\n[model]\nname = "{model}"\n'
    '[algorithm]\nname = "fedavg"\n'
)


def app(tmp_path: Path, model: str = "linear") -> Path:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(model=model))
    return tmp_path


@pytest.mark.parametrize(
    "set_",
    [
        "model.name=os:system",
        'model.name="os:system"',
        'model.name="os\\u003asystem"',
        'algorithm={name="fedcmoo", weighting={name="os:system"}}',
        'layers=[{name="os:system"}]',
        "seed=1; data.name=mine:data",
    ],
)
def test_a_servers_set_names_no_code(tmp_path: Path, set_: str) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit\n")
    with pytest.raises(
        BadInput, match=r"'set' names code, .* which this node takes from nobody; .*node's configuration"
    ):
        open_sites(app(tmp_path), {"set": set_}, {"partition-id": 0})


def test_a_node_allows_a_package(tmp_path: Path) -> None:
    config = {"set": "model.name=mylab.models:Net", "allow-code": "mylab"}
    with pytest.raises(BadInput, match="takes from nobody"):
        experiment(app(tmp_path), config, {})  # not what the server says is allowed
    assert experiment(app(tmp_path), config, {"allow-code": "other, mylab"})[1]["model"]["name"] == "mylab.models:Net"
    assert experiment(app(tmp_path), config)[1]["model"]["name"] == "mylab.models:Net"  # the server's own


def test_what_the_file_names_is_held_to_the_nodes_list(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match='add allow-code="os" to the node\'s configuration'):
        open_sites(app(tmp_path, "os:system"), {}, {"partition-id": 0})


def test_a_nodes_own_function_needs_no_leave(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="A node's data function returns"):  # called, and of no use
        open_sites(app(tmp_path), {}, {"name": "a", "data": "os:getpid"})


@pytest.mark.parametrize("folder", ["it's", 'say "hello"', "back\\slash", "[x]", "tab\there"])
def test_the_app_of_an_oddly_named_folder_is_valid_toml(folder: str) -> None:
    init(Path(folder), "two-digits", ["mylab"])
    config = tomllib.loads((Path(folder) / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["out"] == str(Path(folder).absolute() / "runs" / "two-digits")
    assert config["allow-code"] == "mylab"
