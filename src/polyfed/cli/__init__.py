"""The command line. Torch is imported by the commands that need it, so that help is instant."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.data import data_app
from polyfed.cli.flower import flower_app
from polyfed.cli.gain import gain
from polyfed.core.errors import BadInput, Interrupted, PolyfedError, nearest

if TYPE_CHECKING:
    from polyfed.run.loop import Progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated learning with many objectives, many models and many tasks.",
)

app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.command()(gain)

SET = "Change any key: --set algorithm.lr=0.1; an empty value takes the key out."
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of stdout.")]


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")
    ] = "two-digits",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same model.")] = None,
    engine: Annotated[str | None, typer.Option(help="Where clients work (polyfed list engines).")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; default: a new one under runs/.")] = None,
    json_: AsJson = False,
) -> None:
    """Train: run an experiment."""
    with _sentences():
        from polyfed.experiment import building as ex
        from polyfed.run.directory import RunDirectory, check_free
        from polyfed.run.loop import execute

        name, settings = ex.read(experiment)
        if engine is not None and settings.get("engine") != {"name": engine, **ex.rest_of(settings.get("engine"))}:
            settings["engine"] = {"name": engine}  # another engine's settings would not fit
        settings |= {key: value for key, value in (("rounds", rounds), ("seed", seed)) if value is not None}
        settings = ex.override(settings, set_ or [])
        if out is not None:
            check_free(out)
        plan, resolved = ex.plan(name, settings)
        directory = RunDirectory.create(out, name, {"name": name, "folder": ex.folder(experiment), **resolved})
        _show(execute(plan, directory, _progress()).summary, json_)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")], json_: AsJson = False
) -> None:
    """Continue a run that stopped, however it stopped."""
    with _sentences():
        from polyfed.experiment import building as ex
        from polyfed.run.directory import RunDirectory
        from polyfed.run.loop import execute

        directory = RunDirectory.open(path)
        summary = directory.result()
        if summary is None:
            settings = directory.settings()
            if settings.pop("python", False):
                raise BadInput(
                    f"{path} was started from Python: call polyfed.train(..., out={str(path)!r}, resume=True)."
                )
            ex.reach(settings.pop("folder", ""))
            plan, _ = ex.plan(settings.pop("name", path.name), settings)
            summary = execute(plan, directory, _progress()).summary
        _show(summary, json_)


@app.command(name="list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="One kind only: algorithms, datasets, models, ...")] = None,
    json_: AsJson = False,
) -> None:
    """What there is: algorithms, datasets, models, partitions, weightings, compressors, schedules, engines, ..."""
    with _sentences():
        kinds = _kinds()
        if kind is not None and kind not in kinds:
            raise BadInput(f"Unknown kind {kind!r}.{nearest(kind, kinds)}")
        chosen = {kind: kinds[kind]} if kind else kinds
        if json_:
            print(json.dumps(chosen))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("kind", "name", ""):
            table.add_column(heading, overflow="fold")
        for what, names in chosen.items():
            for i, (name, text) in enumerate(names.items()):
                table.add_row(what if i == 0 else "", name, text)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def _kinds() -> dict[str, dict[str, str]]:
    from polyfed.algorithms import algorithms
    from polyfed.algorithms.models.schedules import schedules
    from polyfed.compress import compressors
    from polyfed.data import datasets, partitions
    from polyfed.engines import engines
    from polyfed.experiment.building import builtin
    from polyfed.models import models
    from polyfed.weights import weightings

    registries: dict[str, Any] = {
        "algorithms": algorithms, "datasets": datasets, "models": models, "partitions": partitions,
        "weightings": weightings, "compressors": compressors, "schedules": schedules, "engines": engines,
    }  # fmt: skip
    found = {kind: {name: registry.help(name) for name in registry} for kind, registry in registries.items()}
    headline = {name: path.read_text().split("\n")[0].lstrip("# ") for name, path in builtin().items()}
    return {**found, "experiments": headline}


def _progress() -> Progress | None:
    if not sys.stderr.isatty():
        return None
    from polyfed.run.display import Live

    return Live()


def _show(summary: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    from polyfed.run.display import show

    show(summary)


@contextmanager
def _sentences() -> Iterator[None]:
    """Errors a person can mend are one line on stderr: exit code 2 for bad input, 1 for a run that stopped."""
    from_ctrl_c = 130
    try:
        yield
    except PolyfedError as error:
        print(f"polyfed: {error}", file=sys.stderr)
        sys.exit(from_ctrl_c if isinstance(error, Interrupted) else 2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        print("polyfed: stopped; 'polyfed resume RUN' continues from the last checkpoint.", file=sys.stderr)
        sys.exit(from_ctrl_c)


def main() -> None:
    app()
