"""The command line, one file a command. Torch is imported by the commands that need it, so that help is instant."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
import typer.core

from polyfed.cli.compare import compare
from polyfed.cli.data import data_app
from polyfed.cli.delta_m import delta_m
from polyfed.cli.doctor import doctor
from polyfed.cli.export import export
from polyfed.cli.flower import flower_app
from polyfed.cli.front import front
from polyfed.cli.gain import gain
from polyfed.cli.listing import list_
from polyfed.cli.new import new
from polyfed.cli.predict import predict
from polyfed.cli.report import report
from polyfed.cli.reproduce import reproduce
from polyfed.cli.resume import resume
from polyfed.cli.run import run
from polyfed.cli.runs import runs_app
from polyfed.cli.tune import tune
from polyfed.cli.view import view

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated learning with many objectives, many models and many tasks.",
)


def _version(asked: bool) -> None:
    if asked:
        from polyfed import __version__

        print(f"polyfed {__version__}")
        raise typer.Exit


@app.callback()
def polyfed(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Federated learning with many objectives, many models and many tasks."""


app.command()(new)
app.command()(run)
app.command()(resume)
app.command()(compare)
app.command()(front)
app.command()(tune)
app.command()(report)
app.command()(reproduce)
app.command()(view)
app.command()(predict)
app.command()(export)
app.command(name="list")(list_)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.command()(gain)
app.command(name="delta-m")(delta_m)
app.add_typer(runs_app, name="runs")
app.command()(doctor)


def main() -> None:
    typer.core.HAS_RICH = False  # help is plain; typer 0.20 would still write \\[default: ...] for rich
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # piped on Windows: a name that has no letter there
    app()
