"""Runs that are looked at, kept open: of a run that goes on, only its new rounds are read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polyfed.core.errors import BadInput, cut
from polyfed.report.records import Record
from polyfed.view.listing import Folder
from polyfed.view.reading import check_plain

KEPT = 64  # runs whose rounds stay in memory
TOGETHER = 50  # runs in one comparison
LARGEST = 512 << 20  # bytes of a file of rounds or of clients
FILES = ("experiment.toml", "result.json", "metrics.jsonl", "clients.jsonl", "model.safetensors", ".lock")
# what goes wrong where a file has other things in it than a run writes
ODD = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


class Shelf:
    """Records by their ids, the last used ones.

    Args:
        folder: the list; what it does not have cannot be opened.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._records: OrderedDict[str, tuple[tuple[int, ...], Record]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def records(self, ids: Sequence[str]) -> Iterator[tuple[list[tuple[str, Record]], dict[str, str]]]:
        """Runs as they are now, and a sentence for each that cannot be read; nobody else reads while they are used.

        Args:
            ids: as the list calls them.
        """
        wanted = list(dict.fromkeys(ids))
        if len(wanted) > TOGETHER:
            raise BadInput(f"At most {TOGETHER} runs are shown at once. Found {len(wanted)}; choose fewer.")
        with self._lock:
            found: list[tuple[str, Record]] = []
            skipped: dict[str, str] = {}
            for id in wanted:
                try:
                    found.append((id, self._record(id)))
                except BadInput as error:
                    skipped[id] = str(error)
                except ODD as error:
                    skipped[id] = f"Its files cannot be read ({cut(str(error), 120)})."
            names = [self.folder.root.name if id == "." else Path(id).name for id, _ in found]
            for name, (id, record) in zip(names, found, strict=True):
                record.name = name if names.count(name) == 1 else id
            yield found, skipped

    def _record(self, id: str) -> Record:
        path = self.folder.path(id)
        check_plain(path, FILES)
        for file in ("experiment.toml", "result.json", "metrics.jsonl", "clients.jsonl"):
            if (path / file).is_file() and (path / file).stat().st_size > LARGEST:
                raise BadInput(f"{file} has more than {LARGEST >> 20} MB; 'polyfed report' draws runs of that size.")
        try:
            status = (path / "experiment.toml").stat()
        except OSError as error:
            raise BadInput(f"experiment.toml cannot be read: {error.strerror}.") from error
        stamp = (status.st_ino, status.st_mtime_ns)
        kept = self._records.get(id)
        record = kept[1] if kept and kept[0] == stamp else Record.read(path)
        record.update()
        self._records[id] = stamp, record
        self._records.move_to_end(id)
        while len(self._records) > KEPT:
            self._records.popitem(last=False)
        return record
