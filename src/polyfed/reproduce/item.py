"""An item: one figure or table of a paper as a file says it, papers/PAPER/ITEM.toml, read and checked.

What is run is [base], the tables of an experiment, changed by a grid's `set`, then by a row's; with --quick then by the
item's and the grid's `quick.set`, then by the row's `quick`. What a file cannot say is a function of
papers/PAPER/ITEM.py, which a grid names as its `driver`: driver(settings, seed) gives one cell's figures (see
`polyfed.reproduce.driving`).
"""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.settings import Settings, Table, check
from polyfed.experiment.reading import parse

Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]  # of a path, and of a file
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # of a measure
Text = Annotated[str, Field(min_length=1)]
Seeds = Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=0)]]
Cost = Literal["rounds", "bytes_up", "seconds"]  # what a record has of each cell, for runs that do not reach a target
PAPER = "paper.toml"


class Minutes(Table):
    """Expected minutes. quick, full: on two cores; gpu: the whole item on one data-centre GPU."""

    quick: float
    full: float
    gpu: float


class Quick(Table):
    """What is smaller with --quick. seeds: how many; set: changed settings; rows: labels that stay, all if empty.

    skip: whether a grid is left out.
    """

    seeds: Annotated[int, Field(ge=1)] | None = None
    set: Settings = Field(default_factory=dict)
    rows: list[str] = Field(default_factory=list)
    skip: bool = False


class Row(Table):
    """A row of the item's table.

    set: its settings; quick: those that it changes with --quick alone; series, x: where a figure of kind 'lines' has
    its point.
    """

    label: Text
    set: Settings = Field(default_factory=dict)
    quick: Settings = Field(default_factory=dict)
    series: str = ""
    x: float | None = None


class Grid(Table):
    """Rows times seeds. name: of its folder; title: as pages call it; driver: a function of ITEM.py, '' for runs."""

    name: Word
    title: str = ""
    set: Settings = Field(default_factory=dict)
    rows: Annotated[list[Row], Field(min_length=1)]
    seeds: Seeds = 5
    driver: str = ""
    quick: Quick = Field(default_factory=Quick)


class Measure(Table):
    """A figure of each cell.

    name: what claims, published values and texts call it; of: 'left.accuracy', 'mean.loss', 'worst.accuracy',
    'first.loss' (the first objective's; or 'second') or a path in a line of metrics; split: 'train', 'valid' or 'test'
    of evaluate.splits, '' for the run's own; take: the mean of the `last` evaluations, the best one, or what it costs
    to reach the target; cost: in what; limit: evaluations count until so much of the cost is spent, all if not given;
    diverged: what claims and figures count a run as whose numbers have overflowed, in the table's unit; scale: a
    factor, or 'log10'; digits: after the point; column: whether the page's table has it, or drawings and claims alone.
    With a driver, `name` alone counts: it gives the value.
    """

    name: Name
    title: Text
    of: str = ""
    split: Literal["", "train", "valid", "test"] = ""
    take: Literal["last", "best", "reach"] = "last"
    last: Annotated[int, Field(ge=1)] = 1
    quick_last: Annotated[int, Field(ge=1)] | None = None
    target: float | None = None
    quick_target: float | None = None
    cost: Cost = "rounds"
    limit: Annotated[float, Field(gt=0)] | None = None
    quick_limit: Annotated[float, Field(gt=0)] | None = None
    better: Literal["higher", "lower"]
    diverged: float | None = None
    scale: float | Literal["log10"] = 1.0
    digits: Annotated[int, Field(ge=0, le=8)] = 2
    column: bool = True

    @model_validator(mode="after")
    def _has_target(self) -> Measure:
        if (self.take == "reach") != (self.target is not None):
            raise ValueError(f"the measure {self.name!r} should have a target if and only if it takes 'reach'")
        return self

    def text(self, value: float) -> str:
        """A value as pages have it; what has diverged, by its order of magnitude."""
        return f"{value:.{self.digits}f}" if abs(value) < 1e9 else f"{value:.2g}"


class Published(Table):
    """A row of the paper. values: by measure, the value, or the value and its spread."""

    row: Text
    grid: str = ""
    values: dict[str, float | list[float]]


Kind = Literal["greater", "smaller", "level", "ratio", "within", "near", "order", "trend", "spread"]
NEEDS: dict[str, tuple[str, ...]] = {
    "greater": ("row", "than"), "smaller": ("row", "than"), "level": ("row", "than", "margin"),
    "ratio": ("row", "than", "low", "high"), "within": ("rows", "low", "high"),
    "near": ("rows", "margin"), "order": ("rows",), "trend": ("rows", "direction"), "spread": ("row", "than"),
}  # fmt: skip


class Claim(Table):
    """A sentence of the paper that the figures are asked about: see `polyfed.reproduce.claims`.

    grids: whose, all if empty; quick: whether a quick run is asked about it. It is, unless the quick version lacks the
    rows, or the claim is about published values, which need the whole size.
    """

    text: Text
    kind: Kind
    measures: Annotated[list[str], Field(min_length=1)]
    grids: list[str] = Field(default_factory=list)
    row: str = ""
    than: list[str] = Field(default_factory=list)
    rows: list[str] = Field(default_factory=list)
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    direction: Literal["", "rising", "falling"] = ""
    quick: bool = True

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Claim:
        optional = {"greater": {"margin"}, "smaller": {"margin"}, "trend": {"than"}}.get(self.kind, set())
        every = ("row", "than", "rows", "margin", "low", "high", "direction")
        given = {key for key in every if getattr(self, key) not in (None, "", [])}
        needed = set(NEEDS[self.kind])
        if not needed <= given <= needed | optional:
            raise ValueError(
                f"a claim of kind {self.kind!r} should have {', '.join(NEEDS[self.kind])} and no more; found "
                f"{', '.join(sorted(given)) or 'none'}"
            )
        if self.kind == "trend" and self.than and len(self.than) != len(self.rows):
            raise ValueError(
                f"a trend should have as many `than` as rows, or none; found {len(self.than)} and {len(self.rows)}"
            )
        return self


class Draw(Table):
    """A figure. kind: how; measures: of what; of: of curves, paths as a measure's `of`; x: what they are drawn over.

    grids: whose, all if empty. 'lines' draws a measure over the rows' x, a line for each `series`; 'scatter' the second
    measure over the first, a `series` joined. spread: whether curves are of the standard deviation over seeds, in place
    of the mean.
    """

    kind: Literal["curves", "lines", "bars", "dots", "scatter", "radar"]
    title: str = ""
    measures: list[str] = Field(default_factory=list)
    of: list[str] = Field(default_factory=list)
    split: Literal["", "train", "valid", "test"] = ""
    x: Literal["round", "bytes_up", "seconds", "simulated_seconds"] = "round"
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False
    spread: bool = False
    grids: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_what(self) -> Draw:
        if (self.kind == "curves") != bool(self.of) or (self.kind != "curves") != bool(self.measures):
            raise ValueError("a drawing should have `of` if it is of kind 'curves', else `measures`")
        return self


class Item(Table):
    """A figure or a table of a paper.

    title: what it is of; where: 'Table 2'; shows: what the paper shows, a sentence or two; precision: how well
    published values could be read, where they are of a figure; data: data sets that a driver needs whose settings
    have no [data]; timed: whether figures are a machine's times, so that a record is never joined with an earlier one;
    experiment: a built-in one that [base] changes; differs: where we differ and why, tried: what was varied to find out
    why, both with {measure @ row} or {measure @ grid / row} for figures.
    """

    paper: str = ""
    name: str = ""
    title: Text
    where: Text
    shows: Text
    precision: str = ""
    minutes: Minutes
    data: list[str] = Field(default_factory=list)
    timed: bool = False
    experiment: str = ""
    base: Settings = Field(default_factory=dict)
    quick: Quick = Field(default_factory=Quick)
    grids: Annotated[list[Grid], Field(min_length=1)]
    measures: Annotated[list[Measure], Field(min_length=1)]
    published: list[Published] = Field(default_factory=list)
    claims: Annotated[list[Claim], Field(min_length=1)]
    draw: list[Draw] = Field(default_factory=list)
    differs: list[str] = Field(default_factory=list)
    tried: list[str] = Field(default_factory=list)

    @property
    def key(self) -> str:
        """'fsmgda/table2'."""
        return f"{self.paper}/{self.name}"

    def grid(self, name: str) -> Grid:
        """A grid by its name."""
        return next(grid for grid in self.grids if grid.name == name)

    def measure(self, name: str) -> Measure:
        """A measure by its name."""
        return next(one for one in self.measures if one.name == name)

    def command(self, quick: bool) -> str:
        """What runs it."""
        return f"polyfed reproduce {self.key}{' --quick' * quick}"


class Paper(Table):
    """A folder of items. title: of the page; cite: authors, title, year; order: its place in listings."""

    title: Text
    cite: Text
    order: int
    about: Text


def home() -> Path:
    """The folder of the papers' folders."""
    return Path(str(importlib.resources.files("polyfed.reproduce") / "papers"))


def paper_folder(paper: str) -> Path:
    """A paper's folder: 'many-models' is many_models, as Python has it."""
    return home() / paper.replace("-", "_")


def _name(path: Path) -> str:
    return path.parent.name.replace("_", "-")


def papers() -> dict[str, Paper]:
    """All papers in their order."""
    found = {}
    for path in home().glob(f"*/{PAPER}"):
        found[_name(path)] = _checked(Paper, parse(path.read_bytes(), f"{path.parent.name}/{PAPER}"), path)
    return dict(sorted(found.items(), key=lambda pair: (pair[1].order, pair[0])))


def items(paper: str) -> list[Item]:
    """A paper's items: figures, then tables."""
    place = paper_folder(paper)
    files = sorted((path for path in place.glob("*.toml") if path.name != PAPER), key=lambda path: _order(path.stem))
    return [read_item(path) for path in files]


def chosen(asked: str) -> list[Item]:
    """The items that a person names: 'fsmgda', 'fsmgda/table2', or '' for all."""
    known = papers()
    paper, slash, name = asked.strip("/").partition("/")
    if paper and paper not in known:
        raise BadInput(f"There is no paper {shown(paper)}.{nearest(paper, known)}")
    every = [item for one in ([paper] if paper else known) for item in items(one)]
    some = [item for item in every if item.name == name] if slash else every
    if slash and not some:
        raise BadInput(f"{paper} has no item {shown(name)}.{nearest(name, [item.name for item in every])}")
    return some


def read_item(path: Path) -> Item:
    """An item's file, checked: names that it uses are there."""
    where = f"{path.parent.name}/{path.name}"
    item: Item = _checked(Item, parse(path.read_bytes(), where), path)
    item.paper, item.name = _name(path), path.stem
    if wrong := _wrong(item):
        raise BadInput(f"{where}: {wrong}")
    return item


def _checked(kind: type[Any], table: Settings, path: Path) -> Any:
    try:
        return check(lambda: kind(**table), table, "", kind.model_fields)
    except BadInput as error:
        raise BadInput(f"{path.parent.name}/{path.name}: {error}") from error


def _order(stem: str) -> tuple[str, int, str]:
    """Figures before tables, each by its number: fig2 before fig10."""
    match = re.match(r"([a-z-]+?)(\d+)", stem)
    return (match[1], int(match[2]), stem) if match else (stem, 0, stem)


def _wrong(item: Item) -> str:
    """What the file names and does not have, as a sentence; '' for nothing."""
    grids = [grid.name for grid in item.grids]
    measures = [one.name for one in item.measures]
    if twice := _twice(grids, "grid") or _twice(measures, "measure") or _own(item):
        return twice
    uses: list[tuple[str, str, list[str]]] = []
    for grid in item.grids:
        uses += [("row", row, [r.label for r in grid.rows]) for row in grid.quick.rows]
    for one in item.published:
        uses += [("measure", name, measures) for name in one.values]
        uses += [("grid", one.grid, grids)] if one.grid else []
        uses += [("row", one.row, labels(item, [one.grid] if one.grid in grids else []))]
    for claim in item.claims:
        uses += [("measure", name, measures) for name in claim.measures]
        uses += [("grid", name, grids) for name in claim.grids]
        some = [name for name in claim.grids if name in grids]
        uses += [("row", row, labels(item, some)) for row in (claim.row, *claim.than, *claim.rows) if row]
    for draw in item.draw:
        uses += [("measure", name, measures) for name in draw.measures]
        uses += [("grid", name, grids) for name in draw.grids]
    for what, word, known in uses:
        if word not in known:
            return f"there is no {what} {shown(word)}.{nearest(word, {*known})}"
    return ""


def _own(item: Item) -> str:
    """What each grid and measure should have by itself."""
    if item.quick.rows:
        return "`quick.rows` should stand in a grid, whose rows they are."
    for grid in item.grids:
        if twice := _twice([row.label for row in grid.rows], f"row of {grid.name}"):
            return twice
    runs = any(not grid.driver for grid in item.grids)
    lacks = next((one.name for one in item.measures if runs and not one.of), None)
    return f"the measure {shown(lacks)} should say what it is `of`, as in 'mean.accuracy'." if lacks else ""


def labels(item: Item, grids: list[str]) -> list[str]:
    """The rows that some grids have, or all if none is named; and every row as 'grid / row'."""
    own = [row.label for grid in item.grids if not grids or grid.name in grids for row in grid.rows]
    return [*own, *(f"{grid.name} / {row.label}" for grid in item.grids for row in grid.rows)]


def _twice(names: list[str], what: str) -> str:
    twice = next((name for name in names if names.count(name) > 1), None)
    return "" if twice is None else f"each {what} should have a name of its own. Found {shown(twice)} twice."
