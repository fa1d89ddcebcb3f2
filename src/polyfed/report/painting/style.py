"""Colours, dashes, markers and sizes of figures in a paper's column."""

from __future__ import annotations

from typing import Any

from polyfed.report.figure import PALETTE, Axis, Series

COLUMN, PAGE = 3.4, 7.0  # inches
ROW = 2.1  # inches that a row of panels is high
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (5, 1.6, 1.2, 1.6)), (0, (8, 2)))
MARKERS = ("o", "s", "D", "^", "v", "X", "P", "*")
GREY = "#767676"
RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters that journals can search
    "svg.fonttype": "path",  # the same letters everywhere
    "svg.hashsalt": "polyfed",  # the same bytes every time
    "figure.dpi": 150,
}
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def colour(series: Series) -> str:
    """Its colour in the light palette."""
    return PALETTE[series.colour % len(PALETTE)]


def dash(series: Series) -> Any:
    """Its dash as matplotlib has it."""
    return DASHES[series.dash % len(DASHES)]


def marker(series: Series) -> str:
    """Its marker as matplotlib has it."""
    return MARKERS[series.marker % len(MARKERS)]


def in_bytes(value: float, _: object = None) -> str:
    """A number of bytes with its unit."""
    size, unit = next(((size, unit) for size, unit in UNITS if abs(value) >= size), (1.0, "B"))
    return f"{value / size:.3g} {unit}" if value else "0"


def dress(axes: Any, x: Axis | None, y: Axis | None) -> None:
    """Labels, scales and ends of two axes."""
    for axis, side in ((x, "x"), (y, "y")):
        if axis is None:
            continue
        getattr(axes, f"set_{side}label")(axis.label)
        if axis.log:
            getattr(axes, f"set_{side}scale")("log")
            _plain_log(getattr(axes, f"{side}axis"))
        if axis.words:
            getattr(axes, f"set_{side}ticks")(range(len(axis.words)), axis.words)
            getattr(axes, f"set_{side}lim")(-0.5, len(axis.words) - 0.5)
        if axis.key == "round" and not axis.log:
            getattr(axes, f"{side}axis").get_major_locator().set_params(integer=True)
        if axis.unit == "bytes":
            getattr(axes, f"{side}axis").set_major_formatter(in_bytes)
            getattr(axes, f"{side}axis").get_major_locator().set_params(nbins=4)
        if axis.low is not None or axis.high is not None:
            getattr(axes, f"set_{side}lim")(*_room(axis))


def _plain_log(side: Any) -> None:
    """Numbers as they are, 0.2 and not 2 x 10^-1, where a logarithmic axis has few orders of magnitude."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = side.get_view_interval()
    if 0 < low < high < 1e3 * low:
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())


def _room(axis: Axis) -> tuple[float | None, float | None]:
    """Fixed ends, with a little room so that a line at the end is seen."""
    if axis.low is None or axis.high is None or axis.log:
        return axis.low, axis.high
    room = 0.03 * (axis.high - axis.low)
    return axis.low - room, axis.high + room
