"""`polyfed flower`: a federation across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import errors_as_sentences

flower_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Deploy an experiment on Flower, across machines."
)


@flower_app.callback()
def flower() -> None:
    """Deploy an experiment on Flower, across machines."""


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory for the app.")],
    experiment: Annotated[str, typer.Option(help="A TOML file, or a built-in name.")] = "two-digits",
) -> None:
    """Write a Flower app that runs an experiment: 'flwr run DIR' takes it, and its README says the rest."""
    from polyfed.deploy.init import init as write

    with errors_as_sentences():
        write(folder, experiment)
        print(f"{folder} is ready: its README.md says how to start SuperLink, SuperNodes and the run.")
