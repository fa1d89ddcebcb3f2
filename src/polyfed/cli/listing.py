"""`polyfed list`: what there is, and the settings of one thing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from polyfed.cli.common import AsJson, errors_as_sentences
from polyfed.core.errors import BadInput, nearest, shown


def list_(
    kind: Annotated[str | None, typer.Argument(help="One kind only: algorithms, datasets, models, ...")] = None,
    name: Annotated[str | None, typer.Argument(help="One of that kind: its settings.")] = None,
    json_: AsJson = False,
) -> None:
    """What there is: algorithms, datasets, models, partitions, weightings, compressors, schedules, engines, ..."""
    with errors_as_sentences():
        kinds = _kinds()
        if kind is not None and kind not in kinds:
            raise BadInput(f"Unknown kind {shown(kind)}.{nearest(kind, kinds)}")
        if kind is not None and name is not None:
            if name not in kinds[kind]:
                raise BadInput(f"There is no {shown(name)} among the {kind}.{nearest(name, kinds[kind])}")
            _show_one(kind, name, kinds[kind][name], json_)
            return
        chosen = {kind: kinds[kind]} if kind else kinds
        if json_:
            print(json.dumps(chosen))
            return
        rows = [
            (what if i == 0 else "", one, text)
            for what, names in chosen.items()
            for i, (one, text) in enumerate(names.items())
        ]
        print_table(("kind", "name", ""), rows)


def _show_one(kind: str, name: str, text: str, as_json: bool) -> None:
    """Its first line, its settings with types and defaults, and its page; of an experiment, the file."""
    from polyfed.experiment.catalogue import PAGES, page, settings_of
    from polyfed.experiment.reading import builtin

    address = f"{PAGES}{page(kind, name)}.html"
    settings = [] if kind == "experiments" else settings_of(kind, name)
    more: dict[str, Any] = {"settings": [setting._asdict() for setting in settings]}
    if kind == "experiments":
        more = {"file": builtin()[name].read_text(encoding="utf-8")}
    if as_json:
        print(json.dumps({"kind": kind, "name": name, "help": text, **more, "page": address}))
        return
    print(more["file"] if kind == "experiments" else f"{name}: {text}\n")
    if settings:
        rows = [(s.name, s.values, "needed" if s.default is None else s.default, s.meaning) for s in settings]
        print_table(("setting", "values", "default", "meaning"), rows)
    elif kind != "experiments":
        print("It has no settings.")
    print(f"\n{address}")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; long texts are folded.

    Args:
        headings: of the columns.
        rows: texts, shown as they are.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False).print(table)


def _kinds() -> dict[str, dict[str, str]]:
    from polyfed.experiment.catalogue import registries
    from polyfed.experiment.reading import builtin

    found = {kind: {name: registry.help(name) for name in registry} for kind, registry in registries().items()}
    headline = {name: path.read_text(encoding="utf-8").split("\n")[0].lstrip("# ") for name, path in builtin().items()}
    return {**found, "experiments": headline}
