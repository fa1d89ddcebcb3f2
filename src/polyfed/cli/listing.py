"""`polyfed list`: what there is."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from polyfed.cli.common import AsJson, errors_as_sentences
from polyfed.core.errors import BadInput, nearest


def list_(
    kind: Annotated[str | None, typer.Argument(help="One kind only: algorithms, datasets, models, ...")] = None,
    json_: AsJson = False,
) -> None:
    """What there is: algorithms, datasets, models, partitions, weightings, compressors, schedules, engines, ..."""
    with errors_as_sentences():
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
        Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False).print(table)


def _kinds() -> dict[str, dict[str, str]]:
    from polyfed.experiment.catalogue import registries
    from polyfed.experiment.reading import builtin

    found = {kind: {name: registry.help(name) for name in registry} for kind, registry in registries().items()}
    headline = {name: path.read_text(encoding="utf-8").split("\n")[0].lstrip("# ") for name, path in builtin().items()}
    return {**found, "experiments": headline}
