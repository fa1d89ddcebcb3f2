"""The items of FedMGDA+: its networks' sizes, runs that two figures share, and what quick versions change by row."""

from __future__ import annotations

import pytest

from polyfed.reproduce.driving import driver_of
from polyfed.reproduce.grids import cells_of, driven
from polyfed.reproduce.item import chosen


@pytest.mark.parametrize(
    ("label", "parameters"), [("CIFAR-10", 797_962), ("Fashion-MNIST", 21_840), ("Federated EMNIST", 1_206_590)]
)
def test_networks_have_the_parameters_of_the_paper(label: str, parameters: int) -> None:
    (item,) = chosen("fedmgda/table2")
    (grid,) = item.grids
    row = next(row for row in grid.rows if row.label == label)
    assert driver_of(item, grid)(driven(item, grid, row, quick=True), 0) == {"values": {"parameters": parameters}}


@pytest.mark.parametrize("quick", [False, True])
def test_figures_3_and_4_are_of_the_same_runs(quick: bool) -> None:
    (third,), (fourth,) = chosen("fedmgda/fig3"), chosen("fedmgda/fig4")
    for grid in third.grids:
        ours, theirs = (cells_of(item, item.grid(grid.name), quick).cells for item in (third, fourth))
        assert [cell.name for cell in ours] == [cell.name for cell in theirs]


def test_a_row_changes_its_own_settings_in_the_quick_version_alone() -> None:
    (item,) = chosen("fedmgda/fig3")
    grid = item.grid("b10")
    every = {
        (quick, cell.row): cell.settings["algorithm"].get("server_lr")
        for quick in (False, True)
        for cell in cells_of(item, grid, quick).cells
    }
    decay = {"rule": "fedmgda-decay", "start": 1.5, "decay": 0.1}
    assert every[False, "FedMGDA+"] == decay
    assert every[True, "FedMGDA+"] == {**decay, "every": 1}
    assert every[True, "FedAvg"] is None
