"""What items hand to their functions builds: experiments of many models, methods and faults of MOCHA's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfed.core.settings import Settings
from polyfed.experiment.building import build_algorithm, plan
from polyfed.experiment.gain import bases
from polyfed.layers.faults import Faults
from polyfed.layers.network import Network
from polyfed.reproduce.driving import driven_cells
from polyfed.reproduce.item import chosen
from samples import write_mnist


def handed(key: str) -> list[tuple[str, Settings]]:
    """Of an item, what each row's function gets, by grid."""
    (item,) = chosen(key)
    cells = [(grid.name, cell) for grid in item.grids for cell in driven_cells(item, grid, quick=False)]
    return [(grid, cell.settings) for grid, cell in cells if cell.seed == 0]


@pytest.mark.parametrize("name", ["fig6", "fig7", "table4", "table5"])
def test_experiments_of_many_models_build(name: str, place: Path) -> None:
    write_mnist(place / "fashion_mnist", train=1000, test=100)
    found = dict(handed(f"many-models/{name}"))  # one row of a grid: the others differ in M and in the schedule
    for settings in found.values():
        experiment = {key: value for key, value in settings.items() if key not in ("M", "of", "at_once")}
        made, _ = plan(name, {**experiment, "models": bases(experiment), "engine": {"name": "local"}})
        assert {*made.parts} == {*bases(experiment)}
        assert settings["M"] >= len(made.parts)
        assert settings.get("of", next(iter(made.parts))) in made.parts


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3"])
def test_methods_networks_and_faults_of_mocha_build(name: str) -> None:
    for _, settings in handed(f"mocha/{name}"):
        for one in settings.get("tries", [{}]):
            _, resolved = build_algorithm({**settings.get("problem", {}), **settings["method"], **one})
            assert {key: resolved[key] for key in one} == one
        assert all(Network(**table) for table in settings["networks"].values())
        assert Faults(**settings.get("faults", {}))
