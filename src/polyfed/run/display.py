"""What a person sees in a terminal: progress while a run goes on, a table at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from polyfed.core.errors import visible
from polyfed.run.callbacks import Callback, RunView, callbacks

if TYPE_CHECKING:
    from polyfed.run.loop import Result


@callbacks("progress")
class Progress(Callback):
    """A progress bar on stderr, with rounds, losses, bytes and the time that is left."""

    optional = True

    def on_start(self, run: RunView) -> None:
        self._bytes = 0
        self._losses = ""
        self._bar = Bar(
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[status]}", markup=False), console=Console(stderr=True),
        )  # fmt: skip
        self._task = self._bar.add_task("", total=run.rounds, completed=run.round, status="")
        self._bar.start()

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self._bytes += line["bytes_up"] + line["bytes_down"]
        if losses := line.get("losses"):
            first = [(name, loss) for name, loss in losses.items() if loss is not None][:4]
            self._losses = "  ".join(f"{visible(name)} {loss:.3f}" for name, loss in first)
        failed = f"  {len(line['failures'])} failed" if line["failures"] else ""
        status = f"{self._losses}  {decimal(self._bytes)}{failed}"
        self._bar.update(self._task, completed=line["round"], status=status)

    def on_end(self, run: RunView, result: Result | None) -> None:
        self._bar.stop()


def show(summary: Mapping[str, Any]) -> None:
    """The result as a table, and where the run is."""
    console = Console(highlight=False, markup=False, emoji=False)
    title = f"{summary['algorithm']}, {summary['rounds']} rounds, seed {summary['seed']}"
    table = Table(title=plain(title), title_justify="left")
    metrics = list(dict.fromkeys(name for row in summary["objectives"].values() for name in row))
    split = summary.get("split")  # which rows the figures are of; runs of before do not say
    table.add_column(f"objective, on {split} data" if isinstance(split, str) else "objective")
    for name in metrics:
        table.add_column(plain(name.replace("_", " ")), justify="right")
    for objective, row in summary["objectives"].items():
        own = split.get(objective.partition("/")[0]) if isinstance(split, Mapping) else ""
        label = f"{objective}, on {own} data" if own else objective
        table.add_row(plain(label), *(_number(name, row.get(name)) for name in metrics))
    for own, figures in summary.get("personalised", {}).items():  # what each client makes of the model, on its own rows
        for objective, loss in figures["losses"].items():
            row = {"loss": loss, **figures["metrics"][objective]}
            label = f"{objective}, personalised, on {own} data"
            table.add_row(plain(label), *(_number(name, row.get(name)) for name in metrics))
    console.print(table)
    up, down = decimal(summary["bytes_up"]), decimal(summary["bytes_down"])
    engine = visible(summary["engine"])
    console.print(f"{summary['seconds']:.1f} s on engine {engine}; {up} up, {down} down", end="")
    console.print(f"; {summary['failures']} replies failed" if summary["failures"] else "")
    for sentence in _sentences(summary):
        console.print(visible(sentence), soft_wrap=True)
    console.print(f"run: {visible(summary['run'])}", soft_wrap=True)


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
