"""Names for things: taken once, except by what is defined anew."""

from __future__ import annotations

import pytest

from polyfed.core.registry import Registry

CELL = """
@things("one")
def one():
    return {}
"""


def test_a_cell_that_is_run_again_replaces_what_it_defined() -> None:
    things: Registry[object] = Registry("thing")
    space = {"things": things, "__name__": "a_notebook"}
    exec(CELL.format(1), space)
    exec(CELL.format(2), space)
    made = things["one"]
    assert callable(made)
    assert made() == 2


def test_a_name_is_not_taken_from_another() -> None:
    things: Registry[object] = Registry("thing")
    exec(CELL.format(1), {"things": things, "__name__": "a_notebook"})
    with pytest.raises(ValueError, match="'one' is registered already"):
        exec(CELL.format(2), {"things": things, "__name__": "another"})
