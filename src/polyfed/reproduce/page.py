"""Pages of Markdown from items and their records: published beside measured, claims with their statistics.

Every figure on a page comes from a record, or from what an item's file says the paper prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.reproduce.claims import Judged, Part, Word, judge_known, telling, together
from polyfed.reproduce.item import Grid, Item, Measure, Paper, Row
from polyfed.reproduce.record import Made, Record, place_of
from polyfed.study.live import span
from polyfed.study.statistics import FEWEST

MADE_BY = "<!-- Made by tools/results.py from src/polyfed/reproduce: change items or records, not this page. -->"
STATES: tuple[Word, ...] = ("seen", "in part", "not seen", "not run")
Records = Mapping[str, Sequence[Record]]  # by item's key: the whole item's first


def item_text(item: Item, records: Sequence[Record], pictures: Sequence[str] = (), level: int = 2) -> str:
    """An item's section: what the paper shows, the table, the claims, and how it was run.

    Args:
        item: which.
        records: what was measured, the whole item's first; one that no verdict is of is left out.
        pictures: the files of its figures, as a link has them.
        level: of its heading.
    """
    parts = [f"{'#' * level} {item.where}: {item.title}", item.shows]
    some = telling(item, records)
    if not some:
        said = "\n".join(f"- **not run**: {claim.text}" for claim in item.claims)
        return "\n\n".join([*parts, said, f"Not run yet: `{item.command(False)}`."])
    parts += [_tables(item, some), _claims(judge_known(item, records), len(some) > 1)]
    parts += [f"![{_alt(item)}]({picture})" for picture in pictures]
    notes = [_filled(text, item, some) for text in item.differs]
    tried = [_filled(text, item, some) for text in item.tried]
    parts += [_listed("Where we differ", notes), _listed("What was varied to find out why", tried)]
    parts += [_how(item, record) for record in some]
    return "\n\n".join(part for part in parts if part)


def _alt(item: Item) -> str:
    return re.sub(r"[\[\]]", "", f"{item.where}, measured: {item.title}")


# tables


def _tables(item: Item, records: Sequence[Record]) -> str:
    several = len(item.grids) > 1
    made = []
    for grid in item.grids:
        told = {one.row: one.values for one in item.published if one.grid in ("", grid.name)}
        if _there(grid, records, told):
            heading = [f"**{grid.title or grid.name}**"] if several else []
            made += [*heading, _table(item, grid, records)]
    precision = [f"Published values: {item.precision}"] if item.precision else []
    which = "Measured figures" if len(records) == 1 else "Figures under 'quick'"
    quick = any(record.mode == "quick" for record in records)
    smaller = [f"{which} {SMALLER}"] if quick and item.published and _is_smaller(item) else []
    return "\n\n".join([*made, *precision, *smaller])


SMALLER = (
    "are of the quick version, which is smaller than the paper's experiment: only how rows compare "
    "can be held against the published ones."
)


def _is_smaller(item: Item) -> bool:
    """Whether the quick version changes more than how many seeds and rows there are."""
    return bool(item.quick.set) or any(grid.quick.set or any(row.quick for row in grid.rows) for grid in item.grids)


def _table(item: Item, grid: Grid, records: Sequence[Record]) -> str:
    """Rows by measures; each measure published, where the paper has it, and measured."""
    told = {one.row: one.values for one in item.published if one.grid in ("", grid.name)}
    columns = [(m, any(m.name in values for values in told.values())) for m in item.measures if m.column]
    heads = [""]
    for measure, published in columns:
        heads += [f"{measure.title}, published", "measured"] if published else [measure.title]
        heads += ["quick"] * (len(records) - 1)
    lines = []
    for row in _there(grid, records, told):
        cells = [row.label]
        for measure, published in columns:
            cells += [printed(measure, told.get(row.label, {}).get(measure.name))] if published else []
            cells += [measured(measure, record, grid.name, row.label) for record in records]
        lines.append(cells)
    return _markdown(heads, lines)


def _there(grid: Grid, records: Sequence[Record], told: Mapping[str, object]) -> list[Row]:
    """Rows that were run, or that the paper has."""
    places = [place_of(one) for record in records for some in (record.cells, record.failed) for one in some]
    run = {row for of, row, _ in places if of == grid.name}
    return [row for row in grid.rows if row.label in run or row.label in told]


def printed(measure: Measure, value: float | list[float] | None) -> str:
    """A published value, with its spread where the paper has one."""
    if value is None:
        return "-"
    some = value if isinstance(value, list) else [value]
    return " ± ".join(f"{one:.12g}" for one in some)


def measured(measure: Measure, record: Record, grid: str, row: str) -> str:
    """Mean and standard deviation over seeds; how often a target was reached, or a run diverged, where one did."""
    found = list(record.values(measure.name, grid, row).values())
    there = [value for value in found if value is not None]
    lost = len(record.diverged(grid, row))
    if not there:
        none = ["not reached"] if found and measure.take == "reach" else []
        return ", ".join([*none, *([f"diverged ({lost})"] if lost else [])]) or "-"
    spread = f" ± {measure.text(float(np.std(there, ddof=1)))}" if len(there) > 1 else ""
    few = f" ({len(there)} of {len(found)})" if len(there) < len(found) else ""
    return f"{measure.text(float(np.mean(there)))}{spread}{few}{f' ({lost} diverged)' if lost else ''}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# claims and texts


def _claims(judged: Sequence[Judged], several: bool) -> str:
    """Verdicts and what they follow from; of which record, where there are several."""
    lines = []
    for one in judged:
        lines.append(f"- **{one.verdict}{_mark(one) * several}**: {one.claim.text}")
        lines += [f"  - {part.what}{_statistic(part)}: {part.verdict}" for part in one.parts]
        lines += [f"  - {'; '.join(one.waits)}: not run yet"] * bool(one.parts and one.waits)
    return "\n".join(lines)


def _mark(one: Judged) -> str:
    """' (quick)' where the quick version's verdict is told."""
    return " (quick)" if one.verdict != "not run" and one.record is not None and one.record.mode == "quick" else ""


def _statistic(part: Part) -> str:
    words = [part.statistic] if part.statistic else []
    words += [] if part.p is None else [f"p {'< 0.001' if part.p < 0.001 else f'= {part.p:.2g}'}"]
    words += [] if part.effect is None else [f"effect {part.effect:.2g}"]
    return f" ({', '.join(words)})" if words else ""


def _listed(title: str, texts: Sequence[str]) -> str:
    return "\n".join([f"{title}:", "", *(f"- {text}" for text in texts)]) if texts else ""


def _filled(text: str, item: Item, records: Sequence[Record]) -> str:
    """A text with {measure @ row} and {measure @ grid / row} replaced by what was measured."""
    return re.sub(r"\{([^{}]+)\}", lambda match: _figure(match[1], item, records), text)


def _figure(asked: str, item: Item, records: Sequence[Record]) -> str:
    name, at, place = (word.strip() for word in asked.partition("@"))
    measures = [one.name for one in item.measures]
    if not at or name not in measures:
        raise BadInput(f"{item.key}: {{{asked}}} should be {{measure @ row}}.{nearest(name, measures)}")
    first, slash, rest = place.partition(" / ")
    grids = [grid for grid in item.grids if not slash or grid.name == first]
    row = rest if slash else place
    for grid in grids:
        if any(one.label == row for one in grid.rows):
            known = (one for one in records if one.values(name, grid.name, row) or one.diverged(grid.name, row))
            run = next(known, records[0])
            quick = " (quick)" if run is not records[0] else ""
            return measured(item.measure(name), run, grid.name, row) + quick
    raise BadInput(f"{item.key}: {{{asked}}} names no row. Found {shown(place)}.")


def _how(item: Item, record: Record) -> str:
    """Seeds, rounds, machine, date and command."""
    first = item.measures[0].name
    places = {(cell.grid, cell.row) for cell in record.cells}
    seeds = sorted({len(record.values(first, *place)) + len(record.diverged(*place)) for place in places})
    rounds = sorted({cell.rounds for cell in record.cells if cell.rounds is not None})
    seconds = sum(cell.seconds or 0.0 for cell in record.cells)
    words = [f"{_span(seeds)} seed{'s' * (seeds != [1])} a row"] if seeds else []
    words += [f"{_span(rounds)} rounds"] if rounds else []
    words += [f"{span(seconds)} of work"] if seconds else []
    words += [f"{'the quick version' if record.mode == 'quick' else 'the whole item'}"]
    words += [] if record.whole else [f"{len(record.cells)} of {record.wanted} runs so far"]
    words += [f"{len(record.failed)} failed"] if record.failed else []
    said = ", ".join(words)
    several = len(record.made) > 1
    where = [f"{'; '.join(_made(one, several) for one in record.made)}."] if record.made else []
    return " ".join([f"{said[:1].upper()}{said[1:]}.", *where, f"`{_command(item, record)}`"])


def _command(item: Item, record: Record) -> str:
    return " ".join([item.command(record.mode == "quick"), *(f"--set {shlex.quote(text)}" for text in record.changes)])


def _made(made: Made, several: bool) -> str:
    """Where and when; how many runs, too, where others were made elsewhere."""
    runs = f"{made.cells} run{'s' * (made.cells != 1)} on" if several else "On"
    return f"{runs} {made.machine}, {made.date}, polyfed {made.version}"


def _span(values: Sequence[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 1 else str(values[0])


# pages


def paper_page(paper: Paper, some: Sequence[Item], records: Records, pictures: Mapping[str, Sequence[str]]) -> str:
    """A paper's page.

    Args:
        paper: which.
        some: its items.
        records: by key of an item, what was measured.
        pictures: by key of an item, the files of its figures, as the page links them.
    """
    parts = [MADE_BY, f"# {paper.title}", f"{paper.cite}.", paper.about]
    parts += [item_text(item, records[item.key], pictures.get(item.key, ())) for item in some]
    return "\n\n".join(parts) + "\n"


def index_page(every: Mapping[str, tuple[Paper, Sequence[Item]]], records: Records) -> str:
    """The summary, claim by claim.

    Args:
        every: by name, papers and their items.
        records: by key of an item, what was measured.
    """
    judged = {item.key: judge_known(item, records[item.key]) for _, some in every.values() for item in some}
    counted = [one.verdict for some in judged.values() for one in some]
    counts = ", ".join(f"{counted.count(word)} {word if word != 'in part' else 'seen in part'}" for word in STATES)
    parts = [MADE_BY, "# Results", INTRODUCTION, f"Of {len(counted)} claims: {counts}. {_how_sure(judged)}"]
    for name, (paper, some) in every.items():
        heads = ["item", "claim", "verdict", "seeds"]
        rows = [
            [f"[{item.where}]({name}.md)", one.claim.text, one.verdict, _seeds(one)]
            for item in some
            for one in judged[item.key]
        ]
        parts += [f"## {paper.title}", f"{paper.cite}.", _markdown(heads, rows) if rows else "No item yet."]
    names = "\n".join(every)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
Figures and tables of the five papers whose methods are here, run again: claim by claim, seen, seen in part or not seen.
Each page has the published values beside ours, the test behind each verdict, and where and when it was run.
[Reproduce a paper](../guides/reproduce.md) says how to run any of them, and what the verdicts mean."""


def _how_sure(judged: Mapping[str, Sequence[Judged]]) -> str:
    """How many verdicts are of quick versions, how many rest on too few seeds for a test, and how many on a part."""
    ran = [(one, one.record) for some in judged.values() for one in some if one.record and one.verdict != "not run"]
    quick = sum(record.mode == "quick" for _, record in ran)
    part = [one for one, _ in ran if one.verdict == "in part"]
    few = sum(all(p.p is None for p in one.parts) and one.seeds[0] < FEWEST for one in part)
    waits = sum(all(p.verdict == "seen" for p in one.parts) for one in part)
    return (
        f"{quick} of these verdicts are of quick versions, which are smaller than the papers' experiments. {few} of "
        f"those seen in part have rows with fewer than {FEWEST} seeds, which allow no test: means are as claimed, in "
        f"half of the comparisons or more, and no more is known. {waits} are seen in all that was run; some data sets "
        "or settings that they are about have not been."
    )


def _seeds(one: Judged) -> str:
    if one.record is None or one.verdict == "not run":
        return ""
    return f"{_span(one.seeds)}{', quick' if one.record.mode == 'quick' else ''}"


def state_of(item: Item, records: Sequence[Record]) -> Word:
    """What became of an item: all its claims together; in part at most where some have no verdict yet."""
    words = [one.verdict for one in judge_known(item, records)]
    found = together([word for word in words if word != "not run"])
    return "in part" if found == "seen" and "not run" in words else found


def write_pages(folder: Path, every: Mapping[str, tuple[Paper, Sequence[Item]]], records: Records) -> list[Path]:
    """All pages; figures are linked where a record has any, and drawn when the site is built.

    Args:
        folder: where to.
        every: by name, papers and their items.
        records: by key of an item, what was measured.
    """
    from polyfed.reproduce.drawing import figures_of

    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index": index_page(every, records)}
    for name, (paper, some) in every.items():
        pictures = {
            item.key: [
                f"figures/{name}/{figure.key}.svg"
                for record in telling(item, records[item.key])[:1]
                for figure in figures_of(item, record)
            ]
            for item in some
        }
        pages[name] = paper_page(paper, some, records, pictures)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return [folder / f"{name}.md" for name in pages]
