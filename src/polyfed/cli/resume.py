"""`polyfed resume`: continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, AsJson, errors_as_sentences, show_result, with_progress
from polyfed.core.errors import BadInput

AGAIN = "if you trust it, add --allow-code {package} (each time: a run's directory does not say what is allowed)"


def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Continue a run that stopped, however it stopped."""
    with errors_as_sentences():
        from dataclasses import replace

        from polyfed.experiment.building import plan as build_plan
        from polyfed.experiment.imports import use_code_of
        from polyfed.run.directory import RunDirectory
        from polyfed.run.loop import execute

        directory = RunDirectory.open(path)
        summary = directory.result()
        if summary is None:
            said = directory.check_unchanged()
            settings = directory.settings()
            if settings.pop("python", False):
                raise BadInput(
                    f"{path} was started from Python: call polyfed.train(..., out={str(path)!r}, resume=True)."
                )
            use_code_of("", path / "experiment.toml", str(settings.pop("folder", "")), allow_code or (), AGAIN)
            plan, _ = build_plan(settings.pop("name", path.name), settings)
            plan = replace(plan, notes=(*plan.notes, *said))
            summary = execute(with_progress(plan), directory).summary
        show_result(summary, json_)
