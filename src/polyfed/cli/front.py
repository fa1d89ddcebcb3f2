"""`polyfed front`: the trade-off between objectives, and the one model of it that a preference asks for."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed.cli.common import SET, AllowCode, AsJson, errors_as_sentences, study_report
from polyfed.core.errors import BadInput, shown, visible

SOURCE = "A TOML file, a built-in name (polyfed list experiments), or the folder of a front."
ROUNDS = "Rounds of every point but the first; default: half of the first's."
FIRST = "Rounds of the first point, which begins with no neighbour's model; default: the experiment's."
METHOD = "Points by preferences (FedCMOO-Pref), by fixed weights, or both."
REFERENCE = "The reference point of the hypervolume, a loss by objective: left=3,right=3."
PICK = "Of a front: write the model for a preference, left=0.6,right=0.4: more asks for a smaller loss."


class Method(StrEnum):
    """Kinds of points."""

    preference = "preference"
    scalarisation = "scalarisation"
    both = "both"


def front(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT|FRONT", help=SOURCE)],
    points: Annotated[int | None, typer.Option(help="How many points of each kind; default: 11.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help=ROUNDS)] = None,
    first_rounds: Annotated[int | None, typer.Option(min=1, help=FIRST)] = None,
    method: Annotated[Method, typer.Option(help=METHOD)] = Method.preference,
    reference: Annotated[str | None, typer.Option(metavar="NAME=LOSS,...", help=REFERENCE)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same models.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The front's folder; with --pick, the model file.")
    ] = None,
    pick: Annotated[str | None, typer.Option(metavar="NAME=R,...", help=PICK)] = None,
    allow_code: AllowCode = None,
    json_: AsJson = False,
) -> None:
    """Trace the trade-off between objectives. Called again, it does only what is missing."""
    with errors_as_sentences():
        if (Path(experiment) / "front.json").is_file():
            _of_a_front(Path(experiment), pick, out, json_)
            return
        if pick is not None:
            raise BadInput(f"--pick needs the folder of a front, as in runs/front-NAME. Found {shown(experiment)}.")
        from polyfed.study.tradeoff import front as trace_front

        found = trace_front(
            experiment, points=points, rounds=rounds, first_rounds=first_rounds, method=method.value,
            reference=_numbers(reference, "--reference"), settings=set_ or (), seed=seed, out=out,
            allow_code=allow_code or (), progress=True,
        )  # fmt: skip
        report, why = study_report(found.path)
        if json_:
            print(json.dumps({**found.about, "study": str(found.path), "report": report}))
        else:
            print(found)
            print(f"front: {visible(found.path)}")
            print(f"report: {visible(report)}" if report else visible(why))
        if any(point.state == "failed" for point in found.points):
            sys.exit(1)


def _of_a_front(path: Path, pick: str | None, out: Path | None, json_: bool) -> None:
    """Show a front again, or write one of its models."""
    from polyfed.study.front import Front

    found = Front.load(path)
    r = _numbers(pick, "--pick")
    if r is None:
        print(json.dumps({**found.about, "study": str(path)}) if json_ else found)
        return
    point = found.pick(r)
    file = Path("model.safetensors") if out is None else out
    point.write_model(file)
    if json_:
        told: dict[str, Any] = {"preference": dict(point.preference), "losses": dict(point.losses)}
        print(json.dumps({"run": str(point.run), "model": str(file), "kind": point.kind, **told}))
        return
    losses = ", ".join(f"{name} {value:.4g}" for name, value in point.losses.items())
    print(f"run: {visible(point.run)}")
    print(f"losses: {visible(losses)}")
    print(f"model: {visible(file)}")


def _numbers(text: str | None, option: str) -> dict[str, float] | None:
    """NAME=NUMBER,... of the command line."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for word in text.split(","):
        name, equals, value = word.rpartition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise BadInput(f"{option} needs NAME=NUMBER,..., as in left=0.6,right=0.4. Found {shown(text)}.")
    return found
