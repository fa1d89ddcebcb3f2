"""The numbers of every round as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfed.callbacks.checked import checked
from polyfed.callbacks.tracker import Tracker, numbers, place
from polyfed.run.callbacks import RunView, callbacks
from polyfed.run.directory import write


@callbacks("csv")
@checked
class CSV(Tracker):
    """A row a round, a column a number, empty where a round does not have it.

    Args:
        file: where, in the run's directory unless the path is absolute.
    """

    def __init__(self, *, file: str = "metrics.csv", optional: bool = True) -> None:
        super().__init__(optional=optional)
        self.file = file
        self._path, self._columns = Path(), [""]

    def begin(self, run: RunView) -> None:
        self._path = place(run, self.file)
        self._write_all(run)

    def log(self, run: RunView, values: Mapping[str, float]) -> None:
        if not set(values) <= set(self._columns):
            self._write_all(run)  # with columns that no round had before
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(_rows([values], self._columns))

    def _write_all(self, run: RunView) -> None:
        rows = [numbers(line) for line in run.history()]
        self._columns = list(dict.fromkeys(["round", *(name for row in rows for name in row)]))
        head = dict(zip(self._columns, self._columns, strict=True))
        write(self._path, _rows([head, *rows], self._columns).encode())


def _rows(rows: Sequence[Mapping[str, float | str]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[row.get(name, "") for name in columns] for row in rows])
    return text.getvalue()
