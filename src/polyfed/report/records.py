"""Run directories as they are, read without torch and without writing: settings, rounds, clients, summary, state."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.format import check_format
from polyfed.report.columns import Columns
from polyfed.report.directions import Better, better_of
from polyfed.report.opening import text_of
from polyfed.report.tail import Tail

State = Literal["done", "running", "stopped"]
STUDIES = {"study.json": "compare", "front.json": "front"}  # what marks a folder of several runs
DEEPEST = 4  # folders below the one that is searched
NESTED = 50  # tables in tables of an experiment

__all__ = ["Found", "Record", "State", "Study", "Tail", "find", "is_run", "name_methods", "running"]


class Record:
    """One run: what its files say now, and after `update` what has come since.

    Args:
        name: what figures call it.
        settings: the resolved experiment.
        path: its directory; None of a run that was not kept.
        summary: of a run that is complete, else None.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        path: Path | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.method = ""  # what the comparison that it is of calls its method
        self.settings: dict[str, Any] = dict(settings or {})
        self.path = path
        self.summary: dict[str, Any] | None = None if summary is None else dict(summary)
        self._columns = Columns()
        self._clients: list[dict[str, Any]] = []
        self._given: list[dict[str, Any]] = []
        self._tail = None if path is None else Tail(path / "metrics.jsonl")
        self._read = path is None

    @classmethod
    def read(cls, path: Path, name: str = "") -> Record:
        """A run's directory; its rounds are read when they are first asked for.

        Args:
            path: the directory.
            name: what figures call it; '' for the directory's own name.
        """
        settings = _settings(path)
        return cls(name or path.resolve().name, settings, path, _summary(path))

    @classmethod
    def of(
        cls,
        lines: Iterable[Mapping[str, Any]],
        name: str,
        settings: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
        clients: Sequence[Mapping[str, Any]] = (),
    ) -> Record:
        """A run that is in memory: the lines of its rounds.

        Args:
            lines: of the rounds, as metrics.jsonl has them.
            name: what figures call it.
            settings: the resolved experiment, as far as it is known.
            summary: of a run that is complete.
            clients: the lines of clients.jsonl.
        """
        made = cls(name, settings, None, summary)
        for line in lines:
            made._given.append(dict(line))
            made._columns.add(line)
        made._clients = [dict(line) for line in clients]
        return made

    def update(self) -> bool:
        """Read what was appended since, and the summary of a run that has ended; whether there was anything new."""
        if self.path is None or self._tail is None:
            return False
        before = self.summary
        self.summary = _summary(self.path)
        new = self._tail.read()
        if self._tail.began_again:
            self._columns = Columns()
        for line in new:
            self._columns.add(line)
        self._read = True
        return bool(new) or self._tail.began_again or before != self.summary

    @property
    def columns(self) -> Columns:
        """The numbers of all rounds by their paths of keys: `columns.curve('losses', 'left')`."""
        if not self._read:
            self.update()
        return self._columns

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of all rounds, read anew each time: large runs are better taken by `columns`."""
        return Tail(self.path / "metrics.jsonl").read() if self.path is not None else list(self._given)

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest round's line, read from the end of the file."""
        if self.path is not None:
            return Tail(self.path / "metrics.jsonl").last()
        return self._given[-1] if self._given else None

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl, 'round', 'split', 'names' and 'clients'; empty where they were not asked for."""
        return list(self.each_clients_line())

    def each_clients_line(self) -> Iterator[dict[str, Any]]:
        """The lines of clients.jsonl one by one: those of a million clients are long."""
        lines = self._clients if self.path is None else Tail(self.path / "clients.jsonl").one_by_one()
        return (line for line in lines if isinstance(line.get("clients"), dict))

    @property
    def state(self) -> State:
        """'running' while a process holds it, 'done' where it has a summary, else 'stopped'."""
        if self.path is not None and running(self.path):
            return "running"
        return "stopped" if self.summary is None else "done"

    @property
    def algorithm(self) -> str:
        """The method's name; of several models, the schedule's."""
        told = (self.summary or {}).get("algorithm") or self._name_of("schedule") or self._name_of("algorithm")
        return str(told or "")

    @property
    def seed(self) -> Any:
        """The run's seed, None where it is not known."""
        return self.settings.get("seed", (self.summary or {}).get("seed"))

    @property
    def rounds(self) -> int:
        """How many rounds it is to have; 0 where that is not known."""
        asked = self.settings.get("rounds", (self.summary or {}).get("rounds", 0))
        return asked if isinstance(asked, int) else 0

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to search for: the experiment, the method, the data, the model, the engine and the seed."""
        tables = [self._name_of(key) for key in ("data", "model", "engine")]
        seed = "" if self.seed is None else f"seed {self.seed}"
        found = [str(self.settings.get("name", "")), self.algorithm, *tables, *self.models, seed]
        return tuple(dict.fromkeys(word for word in found if word))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of several models; empty of one."""
        models = self.settings.get("models")
        return tuple(models) if isinstance(models, dict) else ()

    @property
    def objectives(self) -> tuple[str, ...]:
        """The names of the objectives that were measured; of several models 'model/objective'."""
        known = (self.summary or {}).get("objectives")
        measured = self.columns.keys("losses")
        return tuple(dict.fromkeys([*(known if isinstance(known, dict) else ()), *measured]))

    def better(self, objective: str, metric: str) -> Better:
        """Whether more or less of a metric is better, as the run says; '' where nobody knows."""
        return better_of(self.summary, objective, metric)

    def _name_of(self, key: str) -> str:
        table = self.settings.get(key)
        name = table.get("name", "") if isinstance(table, dict) else table
        return name if isinstance(name, str) else ""


@dataclass(frozen=True)
class Study:
    """A folder of several runs that one command made.

    Args:
        path: the folder.
        kind: 'compare', 'front' or 'tune'.
        told: what its file says.
        records: its runs.
    """

    path: Path
    kind: str
    told: dict[str, Any]
    records: tuple[Record, ...] = ()


@dataclass
class Found:
    """What there is below some paths; `skipped` has a sentence for each thing that could not be read."""

    records: list[Record] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def find(paths: Sequence[Path]) -> Found:
    """The runs and studies in and below some folders, in the order of their names; a run is named by its path there.

    Args:
        paths: run directories, studies, or folders of them.
    """
    found = Found()
    for path in paths:
        if not path.exists():
            found.skipped.append(f"{shown(str(path))} does not exist.")
        for folder in _folders(path):
            if is_run(folder):
                _take(folder, path, found)
            else:
                _take_study(folder, found)
    unique = {record.path.resolve(): record for record in found.records if record.path is not None}
    found.records = list(unique.values())
    found.studies = [
        Study(one.path, one.kind, one.told, tuple(r for p, r in unique.items() if one.path.resolve() in p.parents))
        for one in found.studies
    ]
    for study in found.studies:
        name_methods(study.records, study.told)
    return found


def name_methods(records: Iterable[Record], told: Mapping[str, Any]) -> None:
    """Have runs of a comparison know by which name its table has their methods.

    Args:
        records: the runs.
        told: what study.json says; of other studies, it has no such names.
    """
    cells = told.get("cells")
    tables = [one for one in cells if isinstance(one, dict)] if isinstance(cells, list) else []
    rows = {str(one.get("run")): one.get("row") for one in tables}
    for record in records:
        found = rows.get(record.path.name) if record.path is not None else None
        record.method = found if isinstance(found, str) else ""


def is_run(path: Path) -> bool:
    """Whether a directory is a run's; one whose experiment cannot be read is said to be broken later."""
    return os.path.lexists(path / "experiment.toml")


def running(path: Path) -> bool:
    """Whether a process works on a run: whether its lock is held. The lock is looked at and not taken from anybody."""
    try:
        import fcntl
    except ImportError:  # Windows refuses to open what is locked
        return _refused(path / ".lock")
    try:
        file = os.open(path / ".lock", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # it may be a pipe
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment; a writer tries for two seconds
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _refused(lock: Path) -> bool:
    try:
        lock.read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _folders(path: Path) -> Iterator[Path]:
    """A folder and those below it that are runs or studies; nothing is looked for inside a run."""
    top = len(path.parts)
    for place, folders, files in os.walk(path):
        here = Path(place)
        run = "experiment.toml" in files
        deep = len(here.parts) - top >= DEEPEST
        folders[:] = [] if run or deep else sorted(one for one in folders if not one.startswith("."))
        if run or any(mark in files for mark in STUDIES):
            yield here


def _take(folder: Path, top: Path, found: Found) -> None:
    name = folder.resolve().name if folder == top else folder.relative_to(top).as_posix()
    try:
        found.records.append(Record.read(folder, name))
    except BadInput as error:
        found.skipped.append(str(error))


def _take_study(folder: Path, found: Found) -> None:
    mark = next(mark for mark in STUDIES if os.path.lexists(folder / mark))
    try:
        told = json.loads(text_of(folder / mark))
        kind = told.get("kind", STUDIES[mark])
        found.studies.append(Study(folder, str(kind), told))
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        found.skipped.append(f"The {mark} of {folder} cannot be read ({cut(str(error), 80)}).")


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(text_of(path / "experiment.toml"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{path} is not a run that can be read: its experiment.toml is broken or missing ({cut(str(error), 80)})."
        ) from error
    check_format(settings, str(path))
    settings.pop("format", None)
    _check_nesting(settings, path)
    return settings


def _check_nesting(settings: Mapping[str, Any], path: Path) -> None:
    """Refuse tables in tables in tables without end, which a few letters can make: what shows them goes down them."""
    level: list[Any] = [settings]
    for _ in range(NESTED):
        inside = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inside if isinstance(value, dict | list)]
        if not level:
            return
    raise BadInput(
        f"{path} is not a run that can be read: its experiment.toml has more than {NESTED} tables in tables."
    )


def _summary(path: Path) -> dict[str, Any] | None:
    """A broken one is as good as none: the rounds are shown all the same."""
    try:
        found = json.loads(text_of(path / "result.json"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
