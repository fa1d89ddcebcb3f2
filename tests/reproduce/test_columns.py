"""What an item's section shows of its measures."""

from __future__ import annotations

from polyfed.reproduce.item import Claim, Grid, Item, Measure, Minutes, Row
from polyfed.reproduce.page import item_text
from polyfed.reproduce.record import Figures, Record


def test_a_measure_without_a_column_is_in_texts_alone() -> None:
    shown = Measure(name="a", title="first", of="mean.loss", better="lower")
    drawn = Measure(name="b", title="second", of="worst.loss", better="lower", column=False)
    item = Item(
        paper="p", name="fig1", title="t", where="Figure 1", shows="It.", minutes=Minutes(quick=1, full=1, gpu=1),
        grids=[Grid(name="g", rows=[Row(label="one")])], measures=[shown, drawn], tried=["It is {b @ one}."],
        claims=[Claim(text="So.", kind="within", measures=["b"], rows=["one"], low=0.0, high=3.0)],
    )  # fmt: skip
    text = item_text(item, [Record("p", "fig1", "full", 1, cells=[Figures("g", "one", 0, {"a": 1.0, "b": 2.0})])])
    assert "|  | first |" in text
    assert "It is 2.00." in text
    assert "second: one 2.00" in text
