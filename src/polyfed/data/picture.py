"""A picture of a split: how many rows each client has, of which labels, and which objectives it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.federation import Federation, Index
from polyfed.data.show import Labels, entropy_line, labels_line, rows_line

INK, FAINT = "#22303c", "#7b8794"
SPLITS = {"train": "#2f6690", "valid": "#7fb7be", "test": "#e8a15b"}
SHADES = ["#f6f8f9", "#cfe0ea", "#8fb8d0", "#4a88b0", "#2f6690", "#16324f"]
MOST = 300  # columns that can still be told apart


def draw(found: dict[str, Any], federation: Federation, labels: Labels | None, out: Path) -> None:
    """Write the picture as a PNG."""
    from matplotlib.figure import Figure

    clients, shares = _columns(federation, labels)
    panels = {"sizes": 0.75}
    panels |= {} if labels is None else {"labels": min(3.2, 0.8 + 0.24 * labels.counts.shape[1])}
    panels |= {"holds": 0.25 + 0.16 * min(len(federation.holds), 40)} if federation.holds else {}
    figure = Figure(figsize=(9, sum(panels.values()) + 1.6), dpi=160, layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=list(panels.values()))[:, 0]
    at = dict(zip(panels, axes, strict=True))
    _sizes(at["sizes"], federation, clients)
    if shares is not None:
        _labels(figure, at["labels"], shares, found["labels"]["by"])
    if federation.holds:
        _holds(at["holds"], federation, clients, list(found["objectives"]))
    _words(figure, axes, found, clients)
    figure.savefig(out, format="png")


def _columns(federation: Federation, labels: Labels | None) -> tuple[Index, NDArray[np.float64] | None]:
    """Which clients are drawn, from left to right, and their shares of the labels.

    Clients whose commonest label is the same stand together; without labels the largest come first.
    """
    if labels is None:
        some = _spaced(len(federation))
        return some[np.argsort(-federation.examples[some], kind="stable")], None
    some = _spaced(len(labels.clients))
    shares = labels.shares[some]
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    return labels.clients[some][order], shares[order]


def _spaced(n: int) -> Index:
    return np.unique(np.linspace(0, n - 1, MOST).round().astype(np.int64))


def _sizes(axis: Any, federation: Federation, clients: Index) -> None:
    """Rows of each client, one colour per split."""
    base = np.zeros(len(clients))
    for name, colour in SPLITS.items():
        if (rows := getattr(federation, name)) is not None:
            n = rows.length[clients]
            axis.bar(np.arange(len(clients)), n, _thickness(len(clients)), base, color=colour, label=name, linewidth=0)
            base += n
    axis.set_ylim(0, 1.08 * base.max())
    axis.set_ylabel("rows", color=INK)
    if axis.get_legend_handles_labels()[1] != ["train"]:
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3, frameon=False, handlelength=0.9, fontsize=8)


def _thickness(columns: int) -> float:
    return 0.82 if columns <= 120 else 1.0


def _labels(figure: Any, axis: Any, shares: NDArray[np.float64], by: str) -> None:
    """Labels by client; the darker, the more of the client's rows. Square roots, so that small shares show too."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    colours, norm = LinearSegmentedColormap.from_list("", SHADES), PowerNorm(0.5, 0, shares.max())
    image = axis.imshow(shares.T, cmap=colours, norm=norm, aspect="auto", interpolation="nearest", origin="lower")
    even = shares.max() * np.linspace(0, 1, 5) ** 2
    bar = figure.colorbar(image, ax=axis, pad=0.01, aspect=30, ticks=even, format=PercentFormatter(1, 0))
    bar.set_label("of its rows", color=FAINT, fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=FAINT, labelsize=8, length=0)
    axis.set_ylabel(by, color=INK)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))


def _holds(axis: Any, federation: Federation, clients: Index, names: list[str]) -> None:
    """Objectives by client: filled where it is held."""
    from matplotlib.colors import ListedColormap

    held = federation.matrix(names)[clients].T
    axis.imshow(held, cmap=ListedColormap([SHADES[0], SPLITS["train"]]), vmin=0, vmax=1, aspect="auto",
                interpolation="nearest")  # fmt: skip
    axis.set_yticks(range(len(names)), names, fontsize=8 if len(names) <= 12 else 5)


def _words(figure: Any, axes: Any, found: dict[str, Any], clients: Index) -> None:
    """Title, what the figures are, and quiet axes."""
    figure.suptitle(_title(found), x=0.01, ha="left", color=INK, weight="bold")
    said = [f"{found['clients']:,} clients; rows: {rows_line(found)}"]
    said += [f"labels: {labels_line(found['labels'])}; {entropy_line(found['labels'])}"] if found["labels"] else []
    axes[0].set_title("\n".join(said), loc="left", color=FAINT, fontsize=8.5, pad=12)
    some = "" if len(clients) == found["clients"] else f"{len(clients)} of {found['clients']:,} "
    order = "by their commonest label" if found["labels"] else "by size"
    axes[-1].set_xlabel(f"{some}clients, ordered {order}", color=INK)
    for axis in axes:
        axis.spines[:].set_visible(False)
        axis.tick_params(colors=FAINT, labelsize=8, length=0)
    axes[-1].set_xticks([])
    axes[-1].set_xlim(-0.7, len(clients) - 0.3)
    figure.align_ylabels(axes)


def _title(found: dict[str, Any]) -> str:
    data = found["data"]
    how = f"{data['partition']}({data['alpha']:g})" if "alpha" in data else data["partition"]
    return ", ".join(dict.fromkeys([found["experiment"], data["name"], how]))
