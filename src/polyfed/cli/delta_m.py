"""`polyfed delta-m`: what does training all objectives at once cost?"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, AsJson, Assignments, errors_as_sentences


def delta_m(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")],
    alone: Annotated[str, typer.Option(help="The method that trains each objective alone.")] = "fedavg",
    metric: Annotated[str, typer.Option(help="loss, accuracy, ...: one that every objective has.")] = "loss",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the experiment's on.")] = 1,
    set_: Assignments = None,
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Measure Delta_M: all objectives in one run against each of them alone."""
    with errors_as_sentences():
        from polyfed.experiment.delta_m import lines, measure
        from polyfed.experiment.reading import override, read

        _, settings = read(experiment, allow_code or ())
        say = (lambda text: print(text, file=sys.stderr)) if sys.stderr.isatty() else (lambda text: None)
        found = measure(override(settings, set_ or []), alone=alone, metric=metric, seeds=seeds, told=say)
        print(json.dumps(found) if json_ else "\n".join(lines(found)))
