"""What an item has come to, in its folder: its page and its figures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from polyfed.reproduce.drawing import figures_of
from polyfed.reproduce.item import Item
from polyfed.reproduce.page import item_text
from polyfed.reproduce.record import Record
from polyfed.run.directory import write

PAGE = "page.md"


def write_item(item: Item, record: Record, folder: Path) -> list[Path]:
    """The page of an item, published beside measured, and its figures, which need polyfed[report].

    Args:
        item: which.
        record: what was measured.
        folder: where to.
    """
    figures = figures_of(item, record) if find_spec("matplotlib") else []
    drawn = []
    if figures:
        from polyfed.report.drawing import save

        drawn = save(figures, folder, "svg")
    write(folder / PAGE, item_text(item, [record], [path.name for path in drawn], level=1).encode() + b"\n")
    return [folder / PAGE, *drawn]
