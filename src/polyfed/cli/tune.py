"""`polyfed tune`: which settings are best?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import JOBS, AllowCode, AsJson, Assignments, errors_as_sentences, study_report
from polyfed.core.errors import visible

PARAM = "What is varied: algorithm.lr=log:0.01..1, =0.5..2, =int:1..20, or choices: algorithm.name=fedcmoo,fsmgda."
ROUNDS = "Rounds of each trial; the best experiment keeps its own number."
BY = (
    "One number to compare by, in place of every objective's loss: accuracy, left.accuracy, a preference "
    "left=0.6,right=0.4, or hypervolume:left=3,right=3."
)


def tune(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")],
    param: Annotated[list[str] | None, typer.Option("--param", metavar="KEY=RANGE", help=PARAM)] = None,
    trials: Annotated[int, typer.Option(help="How many trials, those of earlier calls included.")] = 30,
    rounds: Annotated[int | None, typer.Option(help=ROUNDS)] = None,
    by: Annotated[str | None, typer.Option(help=BY)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the runs, and of what is drawn.")] = None,
    set_: Assignments = None,
    jobs: Annotated[int | None, typer.Option(help=JOBS)] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of all trials; default: runs/tune-NAME.")] = None,
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Search for the best settings, on validation rows. Called again, it goes on where it was ended."""
    with errors_as_sentences():
        from polyfed.study.tune import tune as search
        from polyfed.study.tuned import show

        found = search(
            experiment, param or [], trials=trials, rounds=rounds, by=by, seed=seed, settings=set_ or [], jobs=jobs,
            out=out, allow_code=allow_code or (), progress=True,
        )  # fmt: skip
        report, why = study_report(found.study)
        if json_:
            more = {"study": str(found.study), "experiment": str(found.experiment), "report": report}
            print(json.dumps({**found.about, **more}))
        else:
            show(found)
            print(f"report: {visible(report)}" if report else visible(why))
