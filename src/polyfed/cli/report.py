"""`polyfed report`: runs as one page to look at, and as figures for a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import errors_as_sentences
from polyfed.core.errors import visible


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, studies, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The page; report.html if nothing is asked for.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Each figure as a PNG, in a column's width.")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="DIR", help="Each figure as a PDF, in a column's width.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Each figure's numbers, all of them.")] = None,
) -> None:
    """Write runs as one page that needs nothing beside it: figures, tables, failures, settings."""
    with errors_as_sentences():
        from polyfed.report.writing import write_report

        done = write_report(paths, out, png=png, pdf=pdf, csv=csv)
        for sentence in done.skipped:
            print(f"polyfed: {visible(sentence)}", file=sys.stderr)
        for file in done.written:
            print(visible(file))
