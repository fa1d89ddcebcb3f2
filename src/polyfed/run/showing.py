"""A run as a notebook shows it: a table of its last figures, a drawing of its losses, a frame of its rounds.

Figures are those of `polyfed report`, drawn by matplotlib.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from polyfed.core.errors import BadInput, PolyfedError, nearest, shown, visible

if TYPE_CHECKING:
    from polyfed.report.figure import Figure
    from polyfed.report.records import Record
    from polyfed.run.history import History


class Run(Protocol):
    """What is shown: it has rounds, a summary and a directory."""

    @property
    def history(self) -> History: ...

    @property
    def summary(self) -> dict[str, Any]: ...

    @property
    def run(self) -> Path | None: ...


class Shown:
    """Base of a run that shows itself."""

    def plot(self: Run, kind: str = "losses", x: str = "") -> Any:
        """A figure of the run, a `matplotlib.figure.Figure`; needs polyfed[report].

        Args:
            kind: which: 'losses', 'weights', 'metric-accuracy', ...; another word is answered with all there are.
            x: what it is drawn against, 'round', 'bytes_up', ...; '' for the first choice.
        """
        return drawn(_record(self), kind, x)

    def to_pandas(self: Run) -> Any:
        """The rounds as a `pandas.DataFrame`, a row a round: nested figures are columns as 'losses.left'."""
        return self.history.to_pandas()

    def _repr_html_(self: Run) -> str:
        return _whatever_comes(lambda: _html(self), self)


def pandas_for(what: str) -> Any:
    """The package pandas, or a sentence that a table of something needs it.

    Args:
        what: the rows of the table, in the plural.
    """
    try:
        import pandas
    except ImportError as error:
        raise BadInput(f"A table of the {what} needs pandas: pip install pandas.") from error
    return pandas


def drawn(record: Record, kind: str, x: str = "") -> Any:
    """A figure of a run, by matplotlib.

    Args:
        record: the run.
        kind: the key of one of its figures.
        x: its horizontal axis.
    """
    from polyfed.report.drawing import draw

    return draw(_figure(record, kind), x)


def _figure(record: Record, kind: str) -> Figure:
    from polyfed.report.figures import figures_of

    found = {figure.key: figure for figure in figures_of([record])}
    if not isinstance(kind, str) or kind not in found:
        raise BadInput(f"The run has no figure {shown(kind)}.{nearest(str(kind), found)}")
    return found[kind]


def _record(of: Run) -> Record:
    """The run as figures read it: from its directory, which has most, or from what is in memory."""
    from polyfed.report.records import Record

    if of.run is not None:
        try:
            return Record.read(of.run)
        except PolyfedError:  # moved since
            pass
    return Record.of(of.history, str(of.summary.get("algorithm", "run")), None, of.summary or None)


def record_of(history: History) -> Record:
    """Rounds alone, as figures read them."""
    from polyfed.report.records import Record

    return Record.of(history, "run")


def inline(svg: str) -> str:
    """A drawing in a notebook: on one line, as notebooks are kept in files, and white under dark themes, too."""
    return f'<div style="display:inline-block;background:white">{" ".join(svg.split())}</div>'


def losses_svg(record: Record) -> str:
    """The losses as a picture in a page; '' where nothing can be drawn."""
    from polyfed.report.drawing import svg
    from polyfed.report.figures.measures import losses

    try:
        figure = losses([record])
        return "" if figure is None else inline(svg(figure))
    except Exception:  # without matplotlib, or whatever stands in its way, there is the table
        return ""


def history_html(history: History) -> str:
    """Rounds in a notebook: the first and the last losses, and a drawing of all."""
    evaluated = [line for line in history if line.get("losses")]
    ends = evaluated[:1] + evaluated[-1:] if len(evaluated) > 1 else evaluated
    names = list(ends[-1]["losses"]) if ends else []
    rows = [[str(line["round"]), *(_loss(line["losses"].get(name)) for name in names)] for line in ends]
    return _whatever_comes(
        lambda: f"<p>{len(history)} rounds</p>{html_table(['round', *names], rows)}{losses_svg(record_of(history))}",
        list(history[-1:]),
    )


def _loss(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


def shown_row(row: Mapping[str, Any]) -> str:
    """An objective's figures in a line of text."""
    return " ".join(f"{name} {_loss(value)}" for name, value in row.items())


def _html(of: Run) -> str:
    said = f"<p>{html.escape(visible(_head(of)))}</p>"
    return f"{said}{_table_html(of.summary)}{losses_svg(_record(of))}"


def _head(of: Run) -> str:
    summary, rounds = of.summary, len(of.history)
    if not summary:
        return f"{of.run}: {rounds} rounds, not finished"
    where = "" if of.run is None else f"; run: {of.run}"
    stopped = f" {summary['stopped']}" if "stopped" in summary else ""
    return f"{summary['algorithm']}, {summary['rounds']} rounds, seed {summary['seed']}{where}.{stopped}"


def _table_html(summary: Mapping[str, Any]) -> str:
    from polyfed.run.display import final_table

    if "objectives" not in summary:
        return ""
    heads, rows = final_table(summary)
    return html_table(heads, rows)


def html_table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of texts, none of which is markup."""
    top = "".join(f"<th>{html.escape(visible(text))}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(visible(t))}</td>' for t in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _whatever_comes(make: Callable[[], str], of: Any) -> str:
    """A notebook's cell never ends in a traceback of what it was only to show."""
    try:
        return make()
    except Exception:
        return f"<pre>{html.escape(shown(of))}</pre>"
