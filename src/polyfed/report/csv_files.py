"""Every point of a figure as a table, for people who draw it anew."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from polyfed.core.errors import BadInput
from polyfed.report.figure import Figure, Numbers, Series


def write_csv(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """A file for each figure, named by its key, with all of its points; those that are there are replaced.

    Args:
        figures: not thinned.
        folder: it is made where it is missing.
    """
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            path = folder / f"{figure.key}.csv"
            path.write_text(as_csv(figure), encoding="utf-8", newline="")
            made.append(path)
    except OSError as error:
        raise BadInput(f"Tables cannot be written to {folder}: {error.strerror}; choose another folder.") from error
    return made


def as_csv(figure: Figure) -> str:
    """The figure's points, one a row; an empty cell is a value that is not there."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_head(figure))
    rows.writerows(_matrix(figure) if figure.matrix is not None else _points(figure))
    return text.getvalue()


def _head(figure: Figure) -> list[str]:
    if figure.matrix is not None:
        return ["row", "column", figure.y.key]
    ranged = any(len(one.low) for one in figure.series)
    places = ["category"] if figure.categories and figure.kind != "ternary" else _axes(figure)
    value = figure.y.key if figure.y.key not in places else "value"
    return ["panel", "series", "run", *places, value, *(["low", "high"] if ranged else []), "label"]


def _axes(figure: Figure) -> list[str]:
    return list(dict.fromkeys(key for one in figure.series for key in one.x))


def _matrix(figure: Figure) -> Iterator[list[str]]:
    assert figure.matrix is not None
    for name, row in zip(figure.rows, figure.matrix, strict=True):
        for column, value in zip(figure.categories, row.tolist(), strict=True):
            yield [safe(name), safe(column), _cell(value)]


def _points(figure: Figure) -> Iterator[list[str]]:
    ranged = any(len(one.low) for one in figure.series)
    categories = figure.categories if figure.kind != "ternary" else ()
    axes = _axes(figure)
    for one in figure.series:
        columns = [categories] if categories else [_column(one, key) for key in axes]
        for i, value in enumerate(one.y.tolist()):
            bounds = [_at(one.low, i), _at(one.high, i)] if ranged else []
            run = one.ids[i] if one.ids else one.run
            label = one.labels[i] if one.labels else ""
            where = [safe(column[i]) for column in columns]
            yield [safe(one.panel), safe(one.name), safe(run), *where, _cell(value), *bounds, safe(label)]


def _column(one: Series, key: str) -> list[str]:
    return [_cell(value) for value in one.x[key].tolist()] if key in one.x else [""] * len(one)


def _at(values: Numbers, i: int) -> str:
    return _cell(float(values[i])) if len(values) else ""


def _cell(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def safe(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    risky = text[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{text}" if risky and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
