"""`polyfed reproduce`: the papers' figures and tables, run again."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.common import JOBS, AsJson, errors_as_sentences
from polyfed.core.errors import BadInput, visible

if TYPE_CHECKING:
    from polyfed.reproduce.item import Item
    from polyfed.reproduce.running import How

WHAT = "A paper, or one item of it, as in fsmgda/table2, or 'all'; without one, everything is listed."
MINUTES = "Stop in time, after the rounds at hand; what there is, is packed into one file."
SETS = "Change any key of every experiment: --set engine.name=batched."
MERGE = "Take over what a pack has; a folder stands for every pack in it."


def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="[PAPER[/ITEM]]", help=WHAT)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The smaller version: fewer rounds, rows and seeds.")] = False,
    minutes: Annotated[float | None, typer.Option(min=0, help=MINUTES)] = None,
    merge: Annotated[list[Path] | None, typer.Option(metavar="PACK", help=MERGE)] = None,
    pack: Annotated[Path | None, typer.Option(help="Where the pack goes; default: reproduce.zip in --out.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETS)] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help=JOBS)] = None,
    out: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs/reproduce"),
    json_: AsJson = False,
) -> None:
    """Run a paper's figures and tables again, and show published beside measured. Called again, it goes on."""
    with errors_as_sentences():
        from polyfed.reproduce.item import chosen
        from polyfed.reproduce.packing import merge_packs, write_pack
        from polyfed.reproduce.running import How

        for said in merge_packs(merge or [], out):
            print(said, file=sys.stderr)
        if what is None:
            if quick or minutes is not None or set_ or jobs:
                raise BadInput("Name what is to be run, a paper, an item or 'all'; without one, everything is listed.")
            if pack is not None:
                print(f"pack: {visible(write_pack(out, pack))}", file=sys.stderr)
            _list(out, json_)
            return
        if not what.strip("/"):  # a shell's empty variable, say: not everything
            raise BadInput("Name what is to be run, a paper, an item or 'all'. Found ''.")
        until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        how = How(quick, out, jobs, until, tuple(set_ or ()), progress=True)
        _run(chosen("" if what == "all" else what), how, pack, json_)


def _list(out: Path, json_: bool) -> None:
    from polyfed.reproduce.listing import HEADS, entries, texts

    found = entries(out)
    if json_:
        print(json.dumps(found))
        return
    from polyfed.cli.listing import print_table

    print_table(HEADS, texts(found))


def _run(some: list[Item], how: How, pack: Path | None, json_: bool) -> None:
    from polyfed.reproduce.packing import PACK, write_pack
    from polyfed.reproduce.page import item_text
    from polyfed.reproduce.running import folder_of, run_items
    from polyfed.reproduce.showing import write_item

    records, said, late = run_items(some, how)
    by_key = {f"{record.paper}/{record.item}": record for record in records}
    done: list[dict[str, Any]] = []
    for item in (item for item in some if item.key in by_key):
        record, folder = by_key[item.key], folder_of(item, how)
        made = write_item(item, record, folder)
        done.append({"item": item.key, "folder": str(folder), "files": [str(path) for path in made]})
        if not json_:
            print(visible_lines(item_text(item, [record])), end="\n\n")
            print(f"folder: {visible(folder)}", end="\n\n")
    if late or pack is not None:
        file = write_pack(how.out, pack or how.out / PACK)
        print(f"pack: {visible(file)}; 'polyfed reproduce --merge {visible(file)}' takes it over.", file=sys.stderr)
    if json_:
        print(json.dumps({"items": done, "late": late, "left_out": said}))
    if said or any(record.failed for record in records):
        sys.exit(1)


def visible_lines(text: str) -> str:
    """A text of several lines without control characters."""
    return "\n".join(visible(line) for line in text.splitlines())
