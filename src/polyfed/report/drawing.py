"""Figures for papers and notebooks, by matplotlib: PNG, PDF and SVG in a column's width."""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from polyfed.core.errors import BadInput, cut, visible
from polyfed.report.figure import Axis, Figure

Format = Literal["png", "pdf", "svg"]
LONGEST = 70  # characters of a name


def draw(figure: Figure, x: str = "", title: bool = True) -> Any:
    """A `matplotlib.figure.Figure`, made without pyplot: nothing is opened and nothing stays.

    Args:
        figure: what is drawn.
        x: the key of the horizontal axis; '' for the figure's first.
        title: whether its title stands above it; papers have captions.
    """
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    from polyfed.report.painting import bars, curves, heatmap, profiles, style

    paint: dict[str, Any] = {
        "lines": curves.paint, "points": curves.paint, "bars": bars.paint, "dots": bars.paint,
        "heatmap": heatmap.paint, "radar": profiles.radar, "parallel": profiles.parallel, "ternary": profiles.ternary,
    }  # fmt: skip
    if x and x not in figure.x:
        raise BadInput(f"The figure {figure.key!r} is drawn against {', '.join(figure.x) or 'nothing'}. Found {x!r}.")
    figure = literal(figure)
    with matplotlib.rc_context(style.RC), _quiet():
        canvas = Canvas(figsize=_size(figure), layout="constrained")
        FigureCanvasAgg(canvas)
        if title:
            canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
        paint[figure.kind](canvas, figure, x)
    return canvas


def svg(figure: Figure, x: str = "") -> str:
    """The figure as SVG, for a notebook; what one sees is its text for who does not see it."""
    data = _bytes(draw(figure, x), "svg").decode()
    said = html.escape(visible(figure.about), quote=True)
    start = data[data.index("<svg") :]
    return start.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def save(figures: Iterable[Figure], folder: Path, kind: Format) -> list[Path]:
    """A file for each figure, named by its key; those that are there are replaced.

    Args:
        figures: what is drawn.
        folder: it is made where it is missing.
        kind: 'png' (300 dots an inch), 'pdf' or 'svg'.
    """
    _matplotlib()
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            path = folder / f"{figure.key}.{kind}"
            path.write_bytes(_bytes(draw(figure, title=False), kind))
            made.append(path)
    except OSError as error:
        raise BadInput(f"Figures cannot be written to {folder}: {error.strerror}; choose another folder.") from error
    return made


def literal(figure: Figure) -> Figure:
    """The same figure with names that matplotlib takes as they are, and none too long for its place."""

    def text(name: str) -> str:
        return cut(visible(name), LONGEST).replace("$", r"\$")

    def axis(one: Axis) -> Axis:
        return replace(one, label=text(one.label))

    return replace(
        figure,
        title=text(figure.title),
        y=axis(figure.y),
        x={key: axis(one) for key, one in figure.x.items()},
        series=tuple(replace(one, name=text(one.name), panel=text(one.panel)) for one in figure.series),
        categories=tuple(map(text, figure.categories)),
        rows=tuple(map(text, figure.rows)),
        panels=tuple(map(text, figure.panels)),
        panel_axes={text(panel): (axis(x), axis(y)) for panel, (x, y) in figure.panel_axes.items()},
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a warning for each letter that the font does not have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _bytes(canvas: Any, kind: str) -> bytes:
    from polyfed.report.painting import style

    when = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)  # the same bytes every time
    data = io.BytesIO()
    with _matplotlib().rc_context(style.RC), _quiet():
        canvas.savefig(data, format=kind, dpi=300, metadata=when)
    return data.getvalue()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("Drawing figures needs matplotlib: pip install 'polyfed[report]'.") from error
    return matplotlib


def _size(figure: Figure) -> tuple[float, float]:
    """Inches: a column or a page wide, as high as its rows need."""
    from polyfed.report.painting.curves import legend_columns
    from polyfed.report.painting.style import COLUMN, PAGE, ROW

    panels = min(max(len(figure.panels), 1), figure.shown)
    rows = -(-panels // 3)
    wide = figure.wide or panels > 1
    names = list(dict.fromkeys(one.name for one in figure.series))
    below = 0.13 * -(-len(names) // legend_columns(names, PAGE if wide else COLUMN)) if len(names) > 1 else 0.0
    if figure.kind in ("radar", "ternary") or (figure.kind == "heatmap" and figure.rows == figure.categories):
        side = min(PAGE if figure.wide else COLUMN, COLUMN * 1.6)
        return side, 0.82 * side + below
    if figure.kind == "heatmap":
        return PAGE, min(8.0, max(2.2, 0.8 + 0.13 * len(figure.rows)))
    lying = figure.kind == "bars" and max(map(len, figure.categories), default=0) > 10
    height = max(ROW, 0.7 + 0.2 * len(figure.categories)) if lying else ROW * rows + 0.25
    return (PAGE if wide else COLUMN), height + below
