"""`polyfed compare`: which method is better?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import JOBS, AllowCode, AsJson, errors_as_sentences, study_report
from polyfed.core.errors import visible

SETS = "Change any key; several values are all compared: --set algorithm.lr=0.1,0.3. Applies to methods that have it."
METHODS = "The methods, as in fedcmoo,fsmgda,fedprox:mu=0.1; of several models, methods of all of them, or schedules."
TARGET = "As in accuracy=0.9 or left.loss=0.5: what it takes to get there; default: what every run reaches."


def compare(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")],
    algorithms: Annotated[str, typer.Option(help=METHODS)],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the experiment's on.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE,...", help=SETS)] = None,
    jobs: Annotated[int | None, typer.Option(help=JOBS)] = None,
    target: Annotated[str, typer.Option(help=TARGET)] = "",
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; default: runs/compare-NAME.")] = None,
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Compare methods over several seeds. Called again, it does only what is missing."""
    with errors_as_sentences():
        from polyfed.study.compare import compare as compare_methods
        from polyfed.study.showing import show

        found = compare_methods(
            experiment, algorithms=algorithms, seeds=seeds, rounds=rounds, settings=set_ or (), target=target,
            jobs=jobs, out=out, allow_code=allow_code or (), progress=True,
        )  # fmt: skip
        report, why = study_report(found.study)
        if json_:
            print(json.dumps({**found.about, "study": str(found.study), "report": report}))
        else:
            show(found.about)
            print(f"study: {visible(found.study)}")
            print(f"report: {visible(report)}" if report else visible(why))
        if found.failed:
            sys.exit(1)
