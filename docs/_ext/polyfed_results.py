"""The figures of docs/results, drawn from the records that come with polyfed when the site is built."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from polyfed.report.drawing import save
from polyfed.reproduce.claims import telling
from polyfed.reproduce.drawing import figures_of
from polyfed.reproduce.item import items, papers
from polyfed.reproduce.record import known

FOLDER = Path("results") / "figures"


def draw_figures(app: Any) -> None:
    """Draw every figure that a page links."""
    top = Path(app.srcdir) / FOLDER
    shutil.rmtree(top, ignore_errors=True)
    for name in papers():
        for item in items(name):
            for record in telling(item, known(item))[:1]:
                save(figures_of(item, record), top / name, "svg")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", draw_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
