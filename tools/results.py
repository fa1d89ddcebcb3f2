"""The pages of docs/results, from the items and records of polyfed.reproduce.

python tools/results.py                         # writes the pages again
python tools/results.py --take=runs/reproduce   # first takes over the records of local runs

Figures are drawn when the site is built (docs/_ext/polyfed_results.py), from the same records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from polyfed.reproduce.driving import Driven, code_notes, driven_cells
from polyfed.reproduce.grids import cells_of
from polyfed.reproduce.item import Grid, Item, chosen, items, papers
from polyfed.reproduce.page import write_pages
from polyfed.reproduce.record import Record, joined, known, read_record, record_path
from polyfed.reproduce.running import How, collect, folder_of
from polyfed.study.cells import Cell

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "results"
RECORDS = ROOT / "src" / "polyfed" / "reproduce" / "records"


def main() -> None:
    """Take records over, write the pages, and say how large all of it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, help="the folder of local runs whose records are taken over")
    asked = parser.parse_args()
    if asked.take:
        take(asked.take, RECORDS)
    write(PAGES)
    files = [*RECORDS.glob("*/*.json"), *PAGES.glob("*.md")]
    print(f"{sum(path.stat().st_size for path in files) / 1000:.0f} kB of records and pages, at most 2000")


def take(runs: Path, records: Path) -> None:
    """Put the records of local runs in place, made anew from the runs; whole ones with what the old record has besides.

    Args:
        runs: the folder of all items.
        records: where records are kept.
    """
    for item in chosen(""):
        for quick in (False, True):
            how = How(quick=quick, out=runs)
            folder = folder_of(item, how)
            if not folder.is_dir():
                continue
            for grid in (grid for grid in item.grids if grid.driver):
                for said in code_notes(folder / grid.name, driven_cells(item, grid, quick)):
                    print(said)
            record, path = collect(item, how), record_path(records, item, how.mode)
            past = read_record(path) if path.is_file() else None
            own = len(record.cells)
            if past is not None and not quick and record.changes == past.changes and not item.timed:
                record = joined(_of_today(past, item), record) if own or record.failed else record
            elif past is not None and own < len(past.cells):
                continue  # what is quick, of changed settings or of another machine's time is whole or not taken
            if record.cells:
                record.write(path)
                kept = f", {len(record.cells) - own} of them as they were" if len(record.cells) > own else ""
                print(f"{path.relative_to(records)}: {len(record.cells)} of {record.wanted} cells{kept}")


def _of_today(record: Record, item: Item) -> Record:
    """A record without the rows and seeds that its item has no more.

    Settings and code of a row are not looked at: where they have changed, its figures have to be deleted by hand.
    """
    places = {(grid.name, cell.row, cell.seed) for grid in item.grids for cell in _cells(item, grid)}
    rows = {place[:2] for place in places}
    record.cells = [cell for cell in record.cells if (cell.grid, cell.row, cell.seed) in places]
    record.failed = [one for one in record.failed if (one.grid, one.row, one.seed) in places]
    record.curves = [curve for curve in record.curves if (curve.grid, curve.row) in rows]
    return record


def _cells(item: Item, grid: Grid) -> Sequence[Cell | Driven]:
    return driven_cells(item, grid, False) if grid.driver else cells_of(item, grid, False).cells


def write(folder: Path) -> None:
    """All pages.

    Args:
        folder: where to.
    """
    every = {name: (paper, items(name)) for name, paper in papers().items()}
    some = {name: pair for name, pair in every.items() if pair[1]}
    write_pages(folder, some, {item.key: known(item) for _, found in some.values() for item in found})


if __name__ == "__main__":
    main()
