"""A report on disk: the page, and each figure as a picture or as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polyfed.core.errors import BadInput, cut, shown
from polyfed.report.csv_files import write_csv
from polyfed.report.drawing import save
from polyfed.report.figure import Figure
from polyfed.report.figures import figures_of
from polyfed.report.figures.tuned import searched
from polyfed.report.page import page
from polyfed.report.records import Found, Record, Study, find
from polyfed.report.thinning import thinned

PAGE = Path("report.html")
POINTS = (400, 200, 100, 50, 25)  # of a series: as many as the page has room for
ROOM = 900_000  # numbers of a page, 4.8 MB of text
TITLES = {"compare": "Comparison", "front": "Front", "tune": "Tuning"}


@dataclass
class Written:
    """What a report has written; `skipped` has a sentence for each thing that could not be read."""

    written: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    png: Path | None = None,
    pdf: Path | None = None,
    csv: Path | None = None,
) -> Written:
    """The page of some runs, and their figures.

    Args:
        paths: runs, studies, or folders of them.
        out: the page's file; without any of the folders, report.html.
        png: a folder for each figure as a PNG.
        pdf: a folder for each figure as a PDF.
        csv: a folder for each figure's numbers.
    """
    found = find(paths)
    found.records = [record for record in found.records if not left_over(record, found.studies)]
    for study in found.studies:
        as_named(found.records, study)
    if not found.records:
        why = cut(found.skipped[0], 150) if found.skipped else f"there is none in {shown(str(paths[0]))}."
        raise BadInput(f"A report is of at least one run: {why} A run is a directory that holds an experiment.toml.")
    done = Written(skipped=found.skipped)
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverged has any numbers
        figures = _figures(found)
        if out or not (png or pdf or csv):
            text = page(found.records, small(figures), title_of(found), found.studies)
            done.written.append(_write(out or PAGE, text))
        if png:
            done.written += save(map(thinned, figures), png, "png")
        if pdf:
            done.written += save(map(thinned, figures), pdf, "pdf")
    if csv:
        done.written += write_csv(figures, csv)
    return done


def _figures(found: Found) -> list[Figure]:
    """Those of searches and of runs; of a front, the front first."""
    figures = [*searched(found.studies), *figures_of(found.records)]
    if any(study.kind == "front" for study in found.studies):
        figures.sort(key=lambda figure: figure.key != "front")
    return figures


def as_named(records: list[Record], study: Study) -> None:
    """Have a study's runs come in the order in which it names them, as its table does, and others stay where they are.

    Args:
        records: changed in place.
        study: whose file names its runs.
    """
    cells = study.told.get("cells", study.told.get("points"))
    named = [cell.get("run") for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    places: dict[Path | None, int] = {
        study.path / name: place for place, name in enumerate(named) if isinstance(name, str)
    }
    at = [i for i, record in enumerate(records) if record.path in places]
    for i, record in zip(at, sorted((records[i] for i in at), key=lambda one: places[one.path]), strict=True):
        records[i] = record


def left_over(record: Record, studies: Sequence[Study]) -> bool:
    """Whether a run is in a study's folder and not of it: another call, with other settings, has left it there."""
    for study in studies:
        cells = study.told.get("cells", study.told.get("points"))
        if record.path is not None and record.path.parent == study.path and isinstance(cells, list):
            return record.path.name not in {cell.get("run") for cell in cells if isinstance(cell, dict)}
    return False


def small(figures: Sequence[Figure]) -> list[Figure]:
    """Figures with so few points that all of them together suit a page."""
    for most in POINTS:
        found = [thinned(figure, most) for figure in figures]
        if sum(map(_numbers, found)) <= ROOM:
            break
    return found


def _numbers(figure: Figure) -> int:
    """How many a page has to hold of a figure: horizontal places are stored once for all series that share them."""
    places = {values.tobytes(): len(values) for one in figure.series for values in one.x.values()}
    return sum(places.values()) + sum(len(one.y) + len(one.low) + len(one.high) for one in figure.series)


def title_of(found: Found) -> str:
    """What the runs are of: their experiment, and the kind of study."""
    names = list(dict.fromkeys(_experiment(record) for record in found.records))
    what = names[0] if len(names) == 1 else f"{len(found.records)} runs"
    studies: list[Study] = found.studies
    return f"{TITLES.get(studies[0].kind, 'Study')} of {what}" if len(studies) == 1 else what


def _experiment(record: Record) -> str:
    return str(record.settings.get("name") or record.name)


def _write(path: Path, text: str) -> Path:
    made = path.with_name(f".{path.name}.new")
    try:
        made.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(made, path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise BadInput(
            f"The page {shown(str(path))} cannot be written: {error.strerror}; choose another -o."
        ) from error
    return path
