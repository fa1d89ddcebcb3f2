"""`polyfed predict`: what a run's model says of new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, errors_as_sentences
from polyfed.core.code import ALLOW
from polyfed.core.errors import BadInput

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
Model = Annotated[str | None, typer.Option("--model", help="Which, of several models.")]
Client = Annotated[str | None, typer.Option(help="Whose own model, by number or name (many tasks).")]
Best = Annotated[bool, typer.Option("--best", help="The model of the best round (callback best-model).")]


def predict(
    path: Run,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv or .npz file, as the run's data were.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .csv or .npz file; default: a table on stdout.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Probabilities in place of classes.")] = False,
    model: Model = None,
    client: Client = None,
    best: Best = False,
    allow_code: AllowCode = None,
) -> None:
    """Apply a run's model to rows: an objective a column."""
    with errors_as_sentences():
        from polyfed.experiment.loading import load_run
        from polyfed.experiment.rowfiles import as_csv, check_ending, read_rows, write_predictions

        if out is not None:
            check_ending(out, "--out")
            if out.resolve() == data.resolve():
                raise BadInput(f"--out should be another file than the data. Found {out} for both.")
        loaded = load_run(path, None, best, allow_code or (), ALLOW)
        rows = read_rows(data, loaded.inputs(model))
        found = loaded.predict(rows, model=model, client=number_or_name(client), proba=proba)
        classes = loaded.classes(model)
        if out is None:
            sys.stdout.write(as_csv(found, classes))
        else:
            write_predictions(out, found, classes)


def number_or_name(client: str | None) -> int | str | None:
    """A client as the command line names it."""
    return int(client) if client is not None and client.isdecimal() else client
