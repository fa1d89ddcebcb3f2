"""The cells of a study: each is one run, in a directory whose name says what it is of.

A study is a folder; a cell's directory in it is an ordinary run (`polyfed resume`, `report`, `load`, ... take it):

    runs/compare-two-digits/
        study.json                                  what the study is of, and its table
        fedcmoo-lr0.1-seed0-1a2b3c4d/               a cell: readable words, then 8 digits of `checksum`
        fedcmoo-lr0.1-seed1-5e6f7a8b/

The checksum is of the settings with their defaults filled in, without what changes no figure (engine, check_rows). So a
finished cell is found by its name and not run again, a killed one goes on from its checkpoint, and changed settings are
another cell in the same folder.

Use: `make_cell(row, seed, settings, values)`, then `polyfed.study.runner`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from polyfed.core.errors import BadInput, shown
from polyfed.core.settings import Settings, accepts, arguments
from polyfed.experiment.schema import NAMES, Evaluate, Model, Top
from polyfed.run.directory import write

STUDY = "study.json"
LOCK = ".lock"
OUTPUT = "output.log"  # what processes print, and tracebacks
LONGEST = 80  # characters of a cell's name that are words
INDIFFERENT = ("engine", "check_rows")  # same seed, same model, on every engine


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Args:
        row: the row of the study's table that it belongs to, 'fedcmoo lr=0.1'; cells of one row differ by seed.
        seed: the run's.
        settings: the experiment's keys, as `polyfed.experiment.building.plan` takes them, the seed among them.
        name: of its directory in the study's folder.
        values: what the row stands for, by key: {'algorithm.name': 'fedcmoo', 'algorithm.lr': 0.1}.
    """

    row: str
    seed: int
    settings: Settings
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """What its data are made from: cells that have it in common can share them."""
        models = self.settings.get("models") or {}
        own = {m: [t.get("data"), t.get("seed")] for m, t in models.items() if isinstance(t, dict)}
        return json.dumps([self.seed, self.settings.get("data"), own], sort_keys=True, default=str)


def make_cell(row: str, seed: int, settings: Settings, values: Mapping[str, Any] | None = None) -> Cell:
    """A cell with its name.

    Args:
        row, seed, values: as in `Cell`.
        settings: the experiment's keys; they get the seed.
    """
    own = {**settings, "seed": seed}
    words = re.sub(r"[^\w.+-]+", "-", row.replace("=", "")).strip("-._") or "run"
    return Cell(row, seed, own, f"{words[:LONGEST]}-seed{seed}-{checksum(own)}", values or {})


def checksum(settings: Settings) -> str:
    """8 hexadecimal digits that tell settings from others that may give other figures."""
    text = json.dumps(filled(settings), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def filled(settings: Settings) -> Settings:
    """Settings with their defaults, as far as they are known before data are loaded; what is wrong stays as it is.

    Building says what is wrong, in its own words.
    """
    found = {key: field.get_default(call_default_factory=True) for key, field in Top.model_fields.items()}
    found |= settings
    for key, fill in (("data", _data), ("model", _model), ("algorithm", _algorithm), ("evaluate", _evaluate)):
        table = found[key]
        with suppress(BadInput, TypeError, ValueError, AttributeError):
            found[key] = fill({"name": table} if isinstance(table, str) else table)
    return {key: value for key, value in found.items() if key not in INDIFFERENT}


def _algorithm(table: Settings) -> Settings:
    from polyfed.experiment.building import build_algorithm

    return build_algorithm(table)[1]


def _evaluate(table: Settings) -> Settings:
    return Evaluate(**table).model_dump(exclude_none=True)


def _model(table: Settings) -> Settings:
    from polyfed.models import models

    named = {"name": NAMES["model"], **table}
    own = {key: value for key, value in named.items() if key in Model.model_fields}
    rest = {key: value for key, value in named.items() if key not in own}
    return Model(**own).model_dump() | arguments(models[named["name"]], rest, "model", ("dataset",))[1]


def _data(table: Settings) -> Settings:
    from polyfed.data import datasets, partitions
    from polyfed.data.build import Data

    named = {"name": NAMES["data"], **table}
    general = Data(**{key: value for key, value in named.items() if key in Data.model_fields})
    found = general.model_dump()
    makers = (datasets[general.name], ("seed",)), (partitions[general.partition], ("dataset", "rng"))
    for maker, given in makers:
        some = {key: value for key, value in named.items() if key in accepts(maker, given)}
        found |= arguments(maker, some, "data", given)[1]
    return named | found


# the study's own files


@contextmanager
def locked(study: Path) -> Iterator[None]:
    """One process works on a study at a time; the folder is made."""
    try:
        study.mkdir(parents=True, exist_ok=True)
        lock = FileLock(study / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"Another process is working on the study {study}; wait for it, stop it, or choose another folder with "
            "--out."
        ) from None
    except OSError as error:
        raise BadInput(
            f"The study's folder {shown(str(study))} cannot be written: {error.strerror}; choose another with --out."
        ) from error
    try:
        yield
    finally:
        lock.release()


def write_study(study: Path, about: Mapping[str, Any], file: str = STUDY) -> None:
    """Replace what the study says of itself, whole.

    Args:
        study: its folder.
        about: what is written, as JSON.
        file: the file's name.
    """
    write(study / file, json.dumps(about, indent=1, allow_nan=False).encode() + b"\n")


def read_study(study: Path, file: str = STUDY) -> dict[str, Any] | None:
    """What a study says of itself; None where there is none, or none that can be read."""
    try:
        found = json.loads((study / file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def restore_study(study: Path, before: Mapping[str, Any] | None) -> None:
    """Bad input changes nothing: what the study said of itself is said again, a folder made for it goes.

    Args:
        study: its folder; where runs have begun in it, it stays.
        before: what it said; None if it was new.
    """
    if before is not None:
        write_study(study, before)
    elif not any(study.glob("*/experiment.toml")):
        with suppress(OSError):
            for name in (STUDY, OUTPUT, LOCK):
                (study / name).unlink(missing_ok=True)
            study.rmdir()


def check_folder(study: Path, kind: str, file: str = STUDY) -> None:
    """Refuse a folder that holds something else: a run, another kind of study, a person's files.

    Args:
        study: the folder.
        kind: 'compare', 'front' or 'tune'.
        file: in which such a study says what it is.
    """
    if study.exists() and not study.is_dir():
        raise BadInput(f"--out {study} is a file; choose a folder that is new, empty, or of this study.")
    if (study / "experiment.toml").is_file():
        raise BadInput(f"--out {study} is a run; a study is a folder of runs: choose another.")
    found = read_study(study, file)
    if found is not None and found.get("kind") != kind:
        raise BadInput(f"--out {study} holds a study of kind {shown(found.get('kind'))}; choose another folder.")
    strangers = study.is_dir() and found is None and any(path.name != LOCK for path in study.iterdir())
    if strangers and not any(study.glob("*/experiment.toml")):
        raise BadInput(f"--out {study} is not empty and holds no study; choose a folder that is new or empty.")
