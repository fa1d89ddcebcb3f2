"""`polyfed run`: train an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, AsJson, Assignments, errors_as_sentences, show_result, with_progress


def run(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")
    ] = "two-digits",
    set_: Assignments = None,
    allow_code: AllowCode = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same model.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="The method (polyfed list algorithms).")] = None,
    engine: Annotated[str | None, typer.Option(help="Where clients work (polyfed list engines).")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; default: a new one under runs/.")] = None,
    json_: AsJson = False,
) -> None:
    """Train: run an experiment."""
    with errors_as_sentences():
        from polyfed.experiment.building import plan as build_plan
        from polyfed.experiment.reading import folder, override, read
        from polyfed.run.directory import RunDirectory, check_free
        from polyfed.run.loop import execute

        name, settings = read(experiment, allow_code or ())
        settings |= {key: value for key, value in (("rounds", rounds), ("seed", seed)) if value is not None}
        settings = override(settings, set_ or [], {"algorithm": algorithm, "engine": engine})
        if out is not None:
            check_free(out)
        plan, resolved = build_plan(name, settings)
        directory = RunDirectory.create(out, name, {"name": name, "folder": folder(experiment), **resolved})
        show_result(execute(with_progress(plan), directory).summary, json_)
