"""Rows from a file and predictions into one: .csv and .npz, without pickle, nothing half-written."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.inputs import Array, Inputs
from polyfed.experiment.predicting import columns
from polyfed.run.directory import write

ENDINGS = (".csv", ".npz")
Arrays = dict[str, NDArray[Any]]


def read_rows(path: Path, inputs: Inputs) -> Any:
    """The inputs that a file holds, in the structure that the run's data had.

    Args:
        path: a .csv or .npz file.
        inputs: what the run's data looked like.
    """
    check_ending(path, "The data")
    found = _csv(path, inputs) if path.suffix == ".csv" else _npz(path)
    return inputs.joined(inputs.checked(found))


def check_ending(path: Path, what: str) -> None:
    """Refuse a kind of file that is not read or written."""
    if path.suffix not in ENDINGS:
        raise BadInput(f"{what} should be a .csv or an .npz file. Found {shown(str(path))}.")


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile, MemoryError) as error:
        raise BadInput(f"{path} cannot be read as arrays of numbers: {cut(str(error), 120)}.") from error


def _csv(path: Path, inputs: Inputs) -> Arrays:
    lines = _lines(path)
    header = lines[0] if not all(_is_number(cell) for cell in lines[0]) else None
    if header is not None and any(header.count(name) > 1 for name in header if name):
        raise BadInput(f"The columns of {path} should have names of their own. Found {shown(header)}.")
    rows = lines[1:] if header is not None else lines
    for number, row in enumerate(rows, 2 if header is not None else 1):
        if len(row) != len(lines[0]):
            raise BadInput(f"Line {number} of {path} has {len(row)} cells, its first line {len(lines[0])}.")
    if not rows:
        raise BadInput(f"{path} should have a row. Found none.")
    places = {name: _places(path, name, array, header, len(lines[0]), inputs) for name, array in inputs.arrays.items()}
    first = 1 if header is None else 2
    return {
        name: _matrix(path, rows, places[name], first).reshape(len(rows), *array.shape)
        for name, array in inputs.arrays.items()
    }


def _lines(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table: {cut(str(error), 120)}.") from error
    if not lines:
        raise BadInput(f"{path} should have a row. Found an empty file.")
    return lines


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _places(path: Path, name: str, array: Array, header: list[str] | None, width: int, inputs: Inputs) -> list[int]:
    """Where the columns of an input stand: by their names, where the run's data had names, or all in their order."""
    if not array.columns:
        if len(inputs.arrays) > 1:
            raise BadInput(
                f"The run's inputs are {shown(list(inputs.arrays))}, no columns of a table: give an .npz file."
            )
        size = int(np.prod(array.shape, dtype=np.int64))
        if width != size:
            raise BadInput(
                f"{path} should have {size} columns, the numbers of an example of shape {array.shape}, and no others. "
                f"Found {width}."
            )
        return list(range(width))
    if header is None:
        raise BadInput(
            f"{path} should begin with a line of names, among them {shown(list(array.columns))}. Found none."
        )
    for column in array.columns:
        if column not in header:
            raise BadInput(f"{path} should have the column {shown(column)}.{nearest(column, header)}")
    return [header.index(column) for column in array.columns]


def _matrix(path: Path, rows: list[list[str]], places: list[int], first: int) -> NDArray[np.float64]:
    made = np.empty((len(rows), len(places)))
    for i, row in enumerate(rows):
        for j, place in enumerate(places):
            try:
                made[i, j] = float(row[place] or "nan")
            except ValueError:
                found = f"{shown(row[place])} in line {i + first}, column {place + 1}"
                raise BadInput(f"The inputs in {path} should be numbers. Found {found}.") from None
    return made


# predictions


def as_csv(predictions: Mapping[str, NDArray[Any]], classes: Mapping[str, Any]) -> str:
    """Predictions as a table with a line of names."""
    table = columns(predictions, classes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(map(str, values) for values in table.values()), strict=True))  # as short as the type allows
    return text.getvalue()


def write_predictions(path: Path, predictions: Mapping[str, NDArray[Any]], classes: Mapping[str, Any]) -> None:
    """Predictions into a file, whole or not at all.

    Args:
        path: .csv: a column, or several, for each objective; .npz: an array for each.
        predictions: by objective.
        classes: what the numbers of classes stand for.
    """
    data = as_csv(predictions, classes).encode() if path.suffix == ".csv" else _as_npz(predictions)
    try:
        write(path, data)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from error


def _as_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """As `numpy.savez`, whatever the arrays are called."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
    return data.getvalue()
