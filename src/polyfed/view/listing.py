"""The runs below a folder, as rows of a list. A look costs a stat or two a run; only what changed is read."""

from __future__ import annotations

import json
import os
import stat
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from polyfed.core.errors import BadInput, cut
from polyfed.report.records import STUDIES, running
from polyfed.view.reading import last_lines, read
from polyfed.view.rows import TAG, Row, of_lines, of_result, tags, whole

RUN = "experiment.toml"
DEPTH = 8  # folders below the first
MOST = 20_000  # directories that are looked into
SETTLED = 2 * 10**9  # nanoseconds after which a directory's time tells of every change in it


@dataclass
class Change:
    """What is new since the last look.

    Args:
        rows: runs that came or changed.
        groups: studies that came or changed.
        gone: the ids of what is no longer there.
    """

    rows: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.groups or self.gone)


@dataclass(frozen=True)
class _Inside:
    """What a directory had when it was last listed."""

    stamp: int
    settled: bool
    files: frozenset[str]
    folders: tuple[str, ...]


class Folder:
    """Runs and studies below a folder; an id is a path from it, with '/', and '.' for the folder itself.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        try:
            self.root = root.resolve(strict=True)
        except OSError as error:
            raise BadInput(f"There is no folder {root} to view. Give one that holds runs.") from error
        if not self.root.is_dir():
            raise BadInput(f"{root} is a file; polyfed view takes a folder that holds runs.")
        self.rows: dict[str, Row] = {}
        self.groups: dict[str, Row] = {}
        self.cut = False  # whether there are more directories than are looked into
        self._inside: dict[str, _Inside] = {}
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._settings: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def path(self, id: str) -> Path:
        """The directory of a run or study that the list has; nothing else can be asked for.

        Args:
            id: as the list calls it.
        """
        if id not in self.rows and id not in self.groups:
            raise BadInput("There is no such run in this folder.")
        path = self.root / PurePosixPath(id)
        try:
            inside = path.resolve(strict=True) == path
        except OSError:
            inside = False
        if not inside:  # moved away or made a link since
            raise BadInput("That run is no longer in this folder.")
        return path

    def look(self) -> Change:
        """What came, changed or went since the last look."""
        change, runs, groups = Change(), set[str](), set[str]()
        for id, inside, group in self._walk():
            if RUN in inside.files:
                runs.add(id)
                self._look_at_run(id, inside, group, change)
            if study := next((name for name in STUDIES if name in inside.files), ""):
                groups.add(id)
                self._look_at_study(id, study, change)
        for kept, found in ((self.rows, runs), (self.groups, groups)):
            for id in set(kept) - found:
                del kept[id]
                change.gone.append(id)
        self._forget(runs | groups)
        return change

    def _walk(self) -> Iterator[tuple[str, _Inside, str]]:
        """Every directory by its id, with what is in it and the study that it belongs to; links are not followed."""
        waiting = [(".", "", 0)]
        seen = set[str]()
        while waiting and len(seen) < MOST:
            id, group, depth = waiting.pop()
            if (inside := self._listed(id)) is None:
                continue
            seen.add(id)
            yield id, inside, group
            if any(name in inside.files for name in STUDIES):
                group = id
            if RUN not in inside.files and depth < DEPTH:
                waiting += [(name if id == "." else f"{id}/{name}", group, depth + 1) for name in inside.folders]
        self.cut = bool(waiting)
        for id in set(self._inside) - seen:
            del self._inside[id]

    def _listed(self, id: str) -> _Inside | None:
        path = os.path.join(self.root, id)
        try:
            stamp = os.lstat(path).st_mtime_ns
            kept = self._inside.get(id)
            if kept and kept.settled and kept.stamp == stamp:
                return kept
            now = time.time_ns()
            files, folders = set(), []
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name in (RUN, *STUDIES):  # a link is among them, and said to be one when it is read
                        files.add(entry.name)
                    elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        except OSError:  # gone, or not ours to read
            return None
        found = _Inside(stamp, now - stamp > SETTLED, frozenset(files), tuple(sorted(folders, reverse=True)))
        self._inside[id] = found
        return found

    def _look_at_run(self, id: str, inside: _Inside, group: str, change: Change) -> None:
        folder = Path(os.path.join(self.root, id))
        done = self.rows.get(id, {}).get("state") == "done"
        working = not (done and inside.settled) and _held(folder)
        metrics = _stamp(folder / "metrics.jsonl")
        stamp = (inside.stamp, *metrics, working)
        if self._stamps.get(id) == stamp and inside.settled:
            return
        row: Row = {"id": id, "group": group, "version": f"{metrics[1]}.{metrics[0]}"}
        row |= self._row(folder, id, working) | {"changed": max(inside.stamp, metrics[0]) / 1e9}
        self._stamps[id] = stamp
        if self.rows.get(id) != row:
            self.rows[id] = row
            change.rows.append(row)

    def _row(self, folder: Path, id: str, working: bool) -> Row:
        """A run's row; one that cannot be read has a sentence in place of figures."""
        row: Row = {"name": folder.name, "state": "running" if working else "stopped"}
        try:
            settings = self._settings_of(folder, id)
            row |= {"tags": tags(settings), "rounds": whole(settings.get("rounds"))}
            result = _json(folder / "result.json")
            if isinstance(result, dict):
                return row | {"state": "done"} | of_result(result)
            return row | of_lines(last_lines(folder / "metrics.jsonl"))
        except FileNotFoundError as error:
            why = f"{Path(error.filename or '').name} is missing; 'polyfed runs repair' says what is left of the run."
        except PermissionError as error:
            why = f"{Path(error.filename or '').name} is not yours to read."
        except BadInput as error:
            why = str(error)
        except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
            why = f"This run cannot be read: {cut(str(error), 120)}."
        return {**row, "state": "broken", "why": why}

    def _settings_of(self, folder: Path, id: str) -> dict[str, Any]:
        stamp = _stamp(folder / RUN)
        kept = self._settings.get(id)
        if not kept or kept[0] != stamp:
            try:
                kept = stamp, tomllib.loads(read(folder / RUN).decode())
            except (ValueError, RecursionError) as error:
                raise BadInput(f"Its {RUN} is broken: {cut(str(error), 120)}.") from error
            self._settings[id] = kept
        return kept[1]

    def _look_at_study(self, id: str, file: str, change: Change) -> None:
        path = Path(os.path.join(self.root, id, file))
        stamp = _stamp(path)
        if self._stamps.get(f"{id}/{file}") == stamp:
            return
        row: Row = {"id": id, "name": path.parent.name, "kind": STUDIES[file]}
        try:
            found = _json(path)
            if not isinstance(found, dict):
                raise ValueError("it is no table")
            row |= {key: str(found[key])[:TAG] for key in ("kind", "state") if isinstance(found.get(key), str)}
        except (OSError, ValueError, RecursionError, BadInput) as error:
            row["why"] = f"{file} cannot be read: {cut(str(error), 120)}"
        self._stamps[f"{id}/{file}"] = stamp
        row["version"] = f"{stamp[1]}.{stamp[0]}"
        if self.groups.get(id) != row:
            self.groups[id] = row
            change.groups.append(row)

    def _forget(self, there: set[str]) -> None:
        files = {f"{id}/{name}" for id in there for name in STUDIES}
        for kept in (self._stamps, self._settings):
            for id in set(kept) - there - files:
                del kept[id]


def _held(folder: Path) -> bool:
    """Whether a process works on a run; a lock that is a pipe would keep who opens it."""
    try:
        return stat.S_ISREG(os.lstat(folder / ".lock").st_mode) and running(folder)
    except OSError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    """When a file was last written, and its size; zeros where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _json(path: Path) -> Any:
    """What a file says; None where there is none."""
    try:
        return json.loads(read(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"Its {path.name} is broken: {cut(str(error), 120)}.") from error
