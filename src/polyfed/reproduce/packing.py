"""One small file of what there is: a later call, also on another machine, merges it and goes on from there.

A pack is a zip with an entry PAPER/ITEM[-quick]/GRID/CELL/FILE for each file of a finished cell, or .../CELL.json of a
driver's, and its signature, or .../CELL.failed.json, which says why there is none. A cell's name carries the checksum
of its settings, so that whoever has other settings runs them anew. Of metrics, every round stays, with the numbers that
an item can measure; models stay behind. Of a run that is under way there is its newest checkpoint, unless that is
large.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from polyfed import __version__
from polyfed.core.errors import BadInput, shown
from polyfed.reproduce.record import FAILED, note_failure
from polyfed.reproduce.running import MADE, signature
from polyfed.run.directory import CHECKPOINT, RunDirectory, round_of, write

PACK = "reproduce.zip"
DROPPED = ("cohort", "groups", "train", "rates", "per_client", "far", "names")  # of a line: no measure's
RUN_FILES = ("experiment.toml", "started.toml", "result.json", "metrics.jsonl", MADE)
LARGEST = 200_000_000  # bytes of an entry, unpacked
STATE = 10_000_000  # bytes of a checkpoint that is packed
NAME = re.compile(r"[\w.+-]+")
EPOCH = (1980, 1, 1, 0, 0, 0)


def write_pack(out: Path, file: Path) -> Path:
    """Pack the cells of a folder; the same cells give the same bytes.

    Args:
        out: the folder of all items.
        file: the pack; it is replaced whole.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as pack:
            for path in sorted({*_finished(out), *_under_way(out), *_failed(out)}):
                for name, data in _files(path):
                    entry = zipfile.ZipInfo((path.parent.relative_to(out) / name).as_posix(), EPOCH)
                    pack.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)
    return file


def _finished(out: Path) -> Iterator[Path]:
    """Cells that are finished and signed: run directories, and files of drivers."""
    for path in out.glob("*/*/*/*/result.json"):
        if signature(path.parent).is_file():
            yield path.parent
    for path in out.glob("*/*/*/*-seed*.json"):
        if path.is_file() and not path.name.endswith((f".{MADE}", FAILED)) and signature(path).is_file():
            yield path


def _failed(out: Path) -> Iterator[Path]:
    """What says why there is no cell."""
    for path in out.glob(f"*/*/*/*{FAILED}"):
        cell = path.with_name(path.name.removesuffix(FAILED))
        if not (cell / "result.json").is_file() and not cell.with_name(f"{cell.name}.json").is_file():
            yield path


def _under_way(out: Path) -> Iterator[Path]:
    """Runs that have begun and not ended, with a small checkpoint."""
    for path in out.glob("*/*/*/*/experiment.toml"):
        saved = RunDirectory(path.parent).saved()
        if not (path.parent / "result.json").is_file() and saved and saved[0].stat().st_size <= STATE:
            yield path.parent


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """A cell's files, by their names in the cell's folder's parent."""
    if path.name.endswith(FAILED):
        yield path.name, path.read_bytes()
        return
    if path.is_file():
        yield path.name, path.read_bytes()
        yield signature(path).name, signature(path).read_bytes()
        return
    done = (path / "result.json").is_file()
    if not done:
        newest = RunDirectory(path).saved()[0]
        yield f"{path.name}/checkpoints/{newest.name}", newest.read_bytes()
    for name in RUN_FILES:
        file = path / name
        if name == "metrics.jsonl" and done:
            lines = [json.dumps(_short(line), separators=(",", ":")) for line in RunDirectory(path).history()]
            yield f"{path.name}/{name}", "".join(f"{line}\n" for line in lines).encode()
        elif name == "result.json" and done:
            told = {**json.loads(file.read_text(encoding="utf-8")), "run": path.name}  # no path of this machine
            yield f"{path.name}/{name}", json.dumps(told, indent=1).encode() + b"\n"
        elif file.is_file():
            yield f"{path.name}/{name}", file.read_bytes()


def _short(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics without what no item measures; failures are counted elsewhere."""
    return {key: value for key, value in line.items() if key not in DROPPED} | {"failures": []}


def merge_packs(packs: Sequence[Path], out: Path) -> list[str]:
    """Put the cells of packs in place, where they are not there or less far; a sentence for each pack.

    Args:
        packs: files, or folders with packs in them.
        out: the folder of all items.
    """
    said = []
    for path in packs:
        if not path.exists():
            raise BadInput(f"--merge {path}: there is no such file or folder.")
        found = sorted(path.glob("**/*.zip")) if path.is_dir() else [path]
        if not found:
            raise BadInput(f"--merge {path}: there is no pack in that folder.")
        for file in found:
            new, known, versions = _merge(file, out)
            others = f" Some are of polyfed {', '.join(versions)}, this is {__version__}." if versions else ""
            said.append(f"{file}: {new} cell{'s' * (new != 1)} taken over, {known} known already.{others}")
    return said


def _merge(file: Path, out: Path) -> tuple[int, int, list[str]]:
    """How many cells were new, how many were not, and of which other versions of polyfed the new ones are."""
    try:
        with zipfile.ZipFile(file) as pack:
            cells: dict[PurePosixPath, list[zipfile.ZipInfo]] = {}
            failures: dict[PurePosixPath, str] = {}
            for entry in pack.infolist():
                if (cell := _cell(entry, file)).name.endswith(FAILED):
                    failures[cell] = str(json.loads(pack.read(entry))["why"])
                else:
                    cells.setdefault(cell, []).append(entry)
            new = [cell for cell, files in cells.items() if not _known(out / cell, files)]
            for cell in new:
                _place(pack, cells[cell], out / cell)
            for path, why in failures.items():
                note_failure((out / path).with_name(path.name.removesuffix(FAILED)), why)
            signed = [entry for cell in new for entry in cells[cell] if entry.filename.endswith(MADE)]
            versions = {str(json.loads(pack.read(entry)).get("version")) for entry in signed}
            return len(new), len(cells) - len(new), sorted(versions - {__version__})
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"--merge {file}: no pack that can be read ({type(error).__name__}).") from error


def _cell(entry: zipfile.ZipInfo, file: Path) -> PurePosixPath:
    """The cell that an entry is of; names that lead elsewhere are refused."""
    path = PurePosixPath(entry.filename)
    words = path.parts
    plain = all(NAME.fullmatch(word) and word.strip(".") for word in words)
    run = len(words) == 5 and words[-1] in RUN_FILES
    driven = len(words) == 4 and words[-1].endswith(".json")
    state = len(words) == 6 and words[4] == "checkpoints" and bool(CHECKPOINT.fullmatch(words[5]))
    if not plain or not (run or driven or state) or entry.file_size > LARGEST:
        raise BadInput(f"--merge {file} has an entry that is no cell's: {shown(entry.filename)}.")
    if driven and words[-1].endswith(FAILED):
        return path
    return (
        PurePosixPath(*words[:4])
        if run or state
        else path.with_name(f"{words[-1].removesuffix(f'.{MADE}').removesuffix('.json')}.json")
    )


def _known(path: Path, entries: Sequence[zipfile.ZipInfo]) -> bool:
    """Whether a cell is finished here, or has come as far as the pack's."""
    names = [PurePosixPath(entry.filename).name for entry in entries]
    if path.is_file() or (path / "result.json").is_file():
        return True
    if path.suffix == ".json" or "result.json" in names:
        return False
    here, there = (
        max((round_of(Path(one)) for one in some), default=0) for some in (RunDirectory(path).saved(), names)
    )
    return here >= there


def _place(pack: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], cell: Path) -> None:
    """A cell is there whole or not at all; one that was under way makes room."""
    cell.parent.mkdir(parents=True, exist_ok=True)
    if cell.suffix == ".json":
        ordered = sorted(entries, key=lambda entry: not entry.filename.endswith(f".{MADE}"))
        for entry in ordered:  # the signature first
            write(cell.parent / PurePosixPath(entry.filename).name, pack.read(entry))
        return
    made = cell.with_name(f".{cell.name}.{uuid.uuid4().hex[:8]}")
    (made / "checkpoints").mkdir(parents=True)
    for entry in entries:
        made.joinpath(*PurePosixPath(entry.filename).parts[4:]).write_bytes(pack.read(entry))
    shutil.rmtree(cell, ignore_errors=True)
    made.rename(cell)
