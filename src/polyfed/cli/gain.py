"""`polyfed gain`: is it worth training several models together?"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, AsJson, Assignments, errors_as_sentences


def gain(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")],
    models: Annotated[str, typer.Option(help="How many models, as in 1,2,4,8,12.")] = "1,2,4",
    schedule: Annotated[
        str | None, typer.Option(help="One or more, as in mfa-rand,mfa-rr; default: the experiment's.")
    ] = None,
    metric: Annotated[str, typer.Option(help="accuracy, loss, excess, gap (log10 of the excess), ...")] = "accuracy",
    target: Annotated[
        float | None, typer.Option(help="eps; default: what each model reaches alone in the experiment's rounds.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the experiment's on.")] = 1,
    set_: Assignments = None,
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Measure M T_1 / T_M: rounds one model after the other against rounds all together."""

    with errors_as_sentences():
        from polyfed.algorithms.models.schedules import schedules as known
        from polyfed.experiment.gain import lines, measure
        from polyfed.experiment.reading import override, read

        _, settings = read(experiment, allow_code or ())
        settings = override(settings, set_ or [])
        names = (schedule or str(settings.pop("schedule", {}).get("name", "mfa-rr"))).split(",")
        for name in names:
            known[name]
        say = (lambda text: print(text, file=sys.stderr)) if sys.stderr.isatty() else (lambda text: None)
        found = measure(
            settings, _numbers(models), schedules=names, metric=metric, target=target, seeds=seeds, told=say
        )
        print(json.dumps(found) if json_ else "\n".join(lines(found)))


def _numbers(text: str) -> list[int]:
    from polyfed.core.errors import BadInput

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise BadInput(f"--models should be numbers from 1 on, as in 1,2,4. Found {text!r}.")
    return numbers
