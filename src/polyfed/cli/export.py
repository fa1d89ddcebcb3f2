"""`polyfed export`: a run's model for use without polyfed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, errors_as_sentences
from polyfed.cli.predict import Best, Client, Model, Run, number_or_name
from polyfed.core.code import ALLOW


def export(
    path: Run,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="model.pt2 (torch.export) or model.onnx.")],
    model: Model = None,
    client: Client = None,
    best: Best = False,
    allow_code: AllowCode = None,
) -> None:
    """Write a run's model for other programs, checked against the model."""
    with errors_as_sentences():
        from polyfed.experiment.loading import load_run

        loaded = load_run(path, None, best, allow_code or (), ALLOW)
        loaded.export(out, model=model, client=number_or_name(client))
