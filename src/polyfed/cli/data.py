"""`polyfed data`: which data sets are there, and how to get the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.common import AllowCode, AsJson, Assignments, errors_as_sentences
from polyfed.core.errors import BadInput

if TYPE_CHECKING:
    from polyfed.data.store import Source

data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Data sets: what is there, get one, see a split."
)


@data_app.command(name="list")
def list_(json_: AsJson = False) -> None:
    """Which data sets are there and which are missing."""

    with errors_as_sentences():
        from polyfed.data.store import root

        rows = inventory()
        if json_:
            print(json.dumps({"root": str(root()), "datasets": rows}))
        else:
            _show(rows)


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="A data set (polyfed data list).")], json_: AsJson = False) -> None:
    """Download a data set from its publisher."""

    with errors_as_sentences():
        from polyfed.data import datasets
        from polyfed.data.fetch import fetch
        from polyfed.data.store import needs

        datasets[name]  # an unknown name ends here
        for source in needs.get(name, ()):
            fetch(source)
        row = next(row for row in inventory() if row["name"] == name)
        where = f": {row['where']}" if row["where"] else ""
        print(json.dumps(row) if json_ else f"{name} is {row['status']}{where}")


@data_app.command()
def show(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a built-in name (polyfed list experiments).")],
    set_: Assignments = None,
    allow_code: AllowCode = None,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="The picture; default: EXPERIMENT-split.png.")] = None,
    json_: AsJson = False,
) -> None:
    """Print and draw how an experiment's data is split: sizes, labels per client, entropy, objectives."""

    with errors_as_sentences():
        from polyfed.core.settings import check
        from polyfed.data import show as view
        from polyfed.experiment.reading import override, read
        from polyfed.experiment.schema import Top

        name, settings = read(experiment, allow_code or ())
        settings = override(settings, set_ or [])
        top: Top = check(lambda: Top(**settings), settings, "", Top.model_fields)
        if top.data.get("name") == "nodes":
            raise BadInput(
                "data.name = 'nodes' says that only the clients have the data: there is nothing to show here."
            )
        found = view.show(name, top.data, top.seed, view.to_file(out, name))
        print(json.dumps(found) if json_ else "\n".join(view.lines(found)))


def inventory() -> list[dict[str, Any]]:
    """One row per data set: its name; whether it is there, in part, missing or built in; its bytes; where it is."""
    from polyfed.data import datasets
    from polyfed.data.store import needs

    return [{"name": name, **_state(needs.get(name, ()))} for name in datasets]


def _state(sources: Sequence[Source]) -> dict[str, Any]:
    found = [path for source in sources for path in source.found()]
    files = list(dict.fromkeys(path for path in found if path))
    size = sum(file.stat().st_size for path in files for file in ([path] if path.is_file() else path.rglob("*")))
    where = str(files[0]) if len(files) == 1 else ", ".join(dict.fromkeys(str(path.parent) for path in files))
    if None not in found:
        whole = all(None not in source.found(lesser=False) for source in sources)
        return {"status": "built in" if not sources else "there" if whole else "in part", "bytes": size, "where": where}
    ours = all(source.fetchable for source in sources)
    return {"status": "missing", "bytes": size, "where": f"'polyfed data fetch' {'gets it' if ours else 'says how'}"}


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "status", "size", "where"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["status"], decimal(row["bytes"]) if row["bytes"] else "", row["where"])
    Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False).print(table)
