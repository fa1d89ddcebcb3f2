"""`polyfed runs`: what is left of a run that was damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AsJson, errors_as_sentences
from polyfed.core.errors import visible

runs_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Runs on disk: mend a damaged one.")


@runs_app.callback()
def runs() -> None:
    """Runs on disk: mend a damaged one."""


@runs_app.command()
def repair(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    back_to: Annotated[
        int | None,
        typer.Option(metavar="ROUND", help="Set aside what came after this round, too: a client spoiled the model."),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Set damaged files of a run aside, so that 'polyfed resume' goes on from what is good. Nothing is deleted."""
    with errors_as_sentences():
        from polyfed.run.repair import repair as mend

        found = mend(path, back_to)
        if json_:
            print(json.dumps({"run": str(path), "round": found.round, "set_aside": found.aside, "done": found.done}))
            return
        for line in found.done:
            print(visible(line))
        print(f"{visible(path)}: {found.sentence()}")
