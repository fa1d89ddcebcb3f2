"""What a person sees in a terminal: progress while a run goes on, a table at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from polyfed.core.errors import visible
from polyfed.run.callbacks import Callback, RunView, callbacks
from polyfed.run.curves import Curves

if TYPE_CHECKING:
    from polyfed.run.loop import Result


@callbacks("progress")
class Progress(Callback):
    """A bar on stderr with rounds, bytes and the time that is left; below it a small curve of each objective's loss."""

    optional = True

    def on_start(self, run: RunView) -> None:
        self._bytes = 0
        self._curves = Curves()
        for line in run.history():  # of a run that goes on
            self._note(line)
        self._bar = _Bar(self._curves, Console(stderr=True))
        self._task = self._bar.add_task("", total=run.rounds, completed=run.round, status="")
        self._bar.start()

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self._note(line)
        for sentence in line.get("choices", ()):
            self._bar.print(plain(sentence))
        failed = f"  {len(line['failures'])} failed" if line["failures"] else ""
        self._bar.update(self._task, completed=line["round"], status=f"{decimal(self._bytes)}{failed}")

    def _note(self, line: Mapping[str, Any]) -> None:
        self._bytes += line["bytes_up"] + line["bytes_down"]
        self._curves.add(line)

    def on_end(self, run: RunView, result: Result | None) -> None:
        self._bar.stop()


class _Bar(Bar):
    """The bar, and the curves below it: drawn together, so that neither flickers."""

    def __init__(self, curves: Curves, console: Console) -> None:
        columns = (
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[status]}", markup=False),
        )  # fmt: skip
        self._curves, self._terminal = curves, console  # needed by the first drawing, in the base's __init__
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        yield from self._curves.lines(self._terminal)


def show(summary: Mapping[str, Any]) -> None:
    """The result as a table, and where the run is."""
    console = Console(highlight=False, markup=False, emoji=False)
    title = f"{summary['algorithm']}, {summary['rounds']} rounds, seed {summary['seed']}"
    table = Table(title=plain(title), title_justify="left")
    heads, rows = final_table(summary)
    for i, head in enumerate(heads):
        table.add_column(plain(head), justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(plain, row))
    console.print(table)
    up, down = decimal(summary["bytes_up"]), decimal(summary["bytes_down"])
    engine = visible(summary["engine"])
    console.print(f"{summary['seconds']:.1f} s on engine {engine}; {up} up, {down} down", end="")
    console.print(f"; {summary['failures']} replies failed" if summary["failures"] else "")
    for sentence in _sentences(summary):
        console.print(visible(sentence), soft_wrap=True)
    console.print(f"run: {visible(summary['run'])}", soft_wrap=True)


def final_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A run's last figures as texts: the names of the columns, and a row for each objective."""
    metrics = list(dict.fromkeys(name for row in summary["objectives"].values() for name in row))
    split = summary.get("split")  # which rows the figures are of; runs of before do not say
    heads = [f"objective, on {split} data" if isinstance(split, str) else "objective"]
    heads += [name.replace("_", " ") for name in metrics]
    rows = []
    for objective, row in summary["objectives"].items():
        own = split.get(objective.partition("/")[0]) if isinstance(split, Mapping) else ""
        label = f"{objective}, on {own} data" if own else objective
        rows.append([label, *(_number(name, row.get(name)) for name in metrics)])
    for own, figures in summary.get("personalised", {}).items():  # what each client makes of the model, on its own rows
        for objective, loss in figures["losses"].items():
            row = {"loss": loss, **figures["metrics"][objective]}
            label = f"{objective}, personalised, on {own} data"
            rows.append([label, *(_number(name, row.get(name)) for name in metrics)])
    return heads, rows


def _sentences(summary: Mapping[str, Any]) -> list[str]:
    """What is said below the table."""
    said = [summary["stopped"]] if "stopped" in summary else []
    if best := summary.get("best"):
        said += [f"Best: round {best['round']}, {best['by']} {best['value']:.6g} (best.safetensors)."]
    return [*said, *summary.get("bounds", ()), *summary.get("never_used", ()), *summary.get("callbacks_failed", ())]


def plain(text: str) -> Text:
    """A user's words as a table shows them: brackets are no markup, escapes are no commands."""
    return Text(visible(text))


def _number(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4f}"
