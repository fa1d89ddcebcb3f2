"""A run on disk: the resolved experiment, one line of metrics a round, checkpoints, the model. Nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import tomllib
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors
from torch import Tensor

from polyfed.core.errors import BadInput, RunStopped, cut, shown
from polyfed.core.format import FORMAT, check_format
from polyfed.core.tree import flatten, unflatten
from polyfed.rates import check_horizon
from polyfed.run.clients import ClientLog
from polyfed.run.history import History

PATIENCE = 2.0  # seconds until a run that somebody else holds is given up
CHECKPOINT = re.compile(r"round-(\d{8,})-([0-9a-f]{8})\.safetensors")
# may change; guard not without a word
FREE = ("rounds", "engine", "evaluate", "callbacks", "guard", "check_rows", "name", "folder")
BEST = "best.safetensors"  # the model of the best round, where a callback looks for it
TOTALS = ("seconds", "bytes_up", "bytes_down")  # of a round; a summary adds them up
REPAIR = "'polyfed runs repair {path}' mends what can be mended"


class RunDirectory:
    """Reads and writes one run's files; every file but the metrics is replaced whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.clients = ClientLog(path)
        self.checkpoints = path / "checkpoints"
        self.new = False  # made by this process, and nothing in it yet
        self.passing = False  # gone when the call that made it returns
        self.call = ""  # the function of Python that began it

    @classmethod
    def create(cls, out: Path | None, name: str, settings: Mapping[str, Any]) -> RunDirectory:
        """A new run, there with its experiment or not at all."""
        path = out or Path("runs") / f"{_word(name)}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        call = _call(settings)
        check_free(path, from_python=bool(call))
        text = tomli_w.dumps({"format": FORMAT, **settings}).encode()
        whole = path.resolve()
        made = whole.parent / f".{whole.name}.{uuid.uuid4().hex[:8]}"
        try:
            (made / "checkpoints").mkdir(parents=True)
            for copy in ("experiment.toml", "started.toml"):  # the second is to stay as it is
                (made / copy).write_bytes(text)
            (made / "metrics.jsonl").touch()
            _move(made, whole)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            raise BadInput(
                f"The run directory {shown(str(path))} cannot be made: {error.strerror}; choose another "
                f"{'out=' if call else '--out'}."
            ) from error
        made_here = cls(path)
        made_here.new, made_here.call = True, call
        return made_here

    def keep(self) -> None:
        """From now on it stays, whatever is found: clients have worked for it, or somebody else works in it."""
        self.new = False

    def abandon(self) -> None:
        """Bad input that only the engine could find leaves no run, unless it was found too late (`keep`)."""
        if self.new:
            shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / "experiment.toml").is_file():
            raise BadInput(f"{path} is not a run: a run is a directory that holds an experiment.toml.")
        with suppress(OSError, ValueError, RecursionError):  # one that cannot be read is refused when it is
            check_format(tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8")), str(path))
        found = cls(path)
        with suppress(BadInput):  # what is broken is said when it is needed
            found.call = _call(found.settings())
        return found

    def settings(self) -> dict[str, Any]:
        """What the run is of, as experiment.toml says."""
        return self._table("experiment.toml")

    def started(self) -> dict[str, Any]:
        """What the run was of when it began; a run of older versions has no record of it but experiment.toml."""
        return self._table("started.toml") if (self.path / "started.toml").is_file() else self.settings()

    def check_unchanged(self) -> tuple[str, ...]:
        """Refuse to go on with an experiment that was edited since, where that would make another model.

        What comes back is to be said of changes that are allowed (see `check_same`).
        """
        return check_same(self.path, self.started(), self.settings(), "The experiment.toml of that run")

    def _table(self, name: str) -> dict[str, Any]:
        try:
            table = tomllib.loads((self.path / name).read_text(encoding="utf-8"))
            table.pop("format", None)  # `open` has looked at it
            return table
        except (OSError, ValueError, RecursionError) as error:
            raise BadInput(
                f"{self.path} is not a run that can be read: its {name} is broken ({cut(str(error), 80)})."
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock goes with the process that holds it."""
        lock = FileLock(self.path / ".lock")
        self.open(self.path)  # filelock would make the directory of a run that is gone
        try:
            lock.acquire(timeout=PATIENCE, poll_interval=0.05)
        except Timeout:
            self.keep()  # somebody works in it: no longer ours to remove
            if why := _never_locked(self.path / ".lock"):
                raise BadInput(f"The run {self.path} cannot be locked: {why}; copy it to where it can.") from None
            raise BadInput(f"Another process is working on the run {self.path}; wait for it, or stop it.") from None
        except OSError as error:  # read-only, or a file system without locks
            raise BadInput(
                f"The run {self.path} cannot be locked for writing: {error.strerror}; copy it to where it can."
            ) from error
        try:
            yield
        finally:
            lock.release()

    # metrics

    def log(self, line: Mapping[str, Any], clients: Mapping[str, Any] | None = None) -> None:
        """Append one round's line, in one write; every client's own figures before it, so that no round lacks them."""
        self.keep()
        with self._writing():
            if clients is not None:
                self.clients.add(clients)
            with self.metrics.open("ab") as file:
                file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def history(self) -> History:
        """The rounds from the first on, as far as they are all there."""
        return History(_lines(self.metrics))

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Forget the rounds after a checkpoint's, and a line that a crash cut short."""
        kept = self.history()[:round]
        if len(kept) < round:
            raise BadInput(
                f"The metrics.jsonl of {self.path} has no round {len(kept) + 1}, and the checkpoint is of round "
                f"{round}: totals would be wrong. {REPAIR.format(path=self.path)}."
            )
        with self._writing():
            write(self.metrics, b"".join(json.dumps(line).encode() + b"\n" for line in kept))
            self.clients.rewind(round)
        return kept

    # checkpoints

    def save(self, round: int, tree: Mapping[str, Any]) -> None:
        """A checkpoint after a round; its name carries the checksum of its content."""
        data = save_arrays({name: a.numpy() for name, a in flatten(tree).items()})
        with self._writing():
            # a checkpoint must not outlive the lines it stands for; Windows flushes what is open for writing only
            with self.metrics.open("r+b") as file:
                os.fsync(file.fileno())
            self.checkpoints.mkdir(exist_ok=True)
            made = self.checkpoints / f"round-{round:08d}-{zlib.crc32(data):08x}.safetensors"
            write(made, data)
            mine = [path for path in self.saved() if round_of(path) <= round and path != made]
            for old in mine:
                if old not in _worth_keeping(mine, round):
                    old.unlink()

    def saved(self) -> list[Path]:
        """The files that are called as checkpoints are, newest first; a stranger's are not."""
        found = [path for path in self.checkpoints.glob("round-*") if CHECKPOINT.fullmatch(path.name)]
        return sorted((path for path in found if path.is_file()), key=lambda path: path.name, reverse=True)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """The newest readable checkpoint; None where there is none yet, not where all are broken."""
        for path in self.saved():
            if (tree := read_checkpoint(path)) is not None:
                return round_of(path), tree
        if some := self.saved():
            raise BadInput(
                f"None of the {len(some)} checkpoints of {self.path} can be read, and the run would begin anew. "
                f"{REPAIR.format(path=self.path)}."
            )
        return None

    # the end

    def finish(self, model: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        with self._writing():
            write(self.path / "model.safetensors", model_bytes(model))
            write(self.path / "result.json", json.dumps(result, indent=1).encode() + b"\n")

    def result(self) -> dict[str, Any] | None:
        """The summary of a run that is complete."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            numbers = all(isinstance(found[key], int | float) for key in (*TOTALS, "rounds", "failures"))
            if numbers and all(isinstance(row, dict) for row in found["objectives"].values()):
                return {"algorithm": "", "seed": "", "engine": "", "run": str(self.path), **found}
        except (OSError, ValueError, RecursionError, TypeError, AttributeError, KeyError):
            pass
        raise BadInput(f"The result.json of {self.path} cannot be read. {REPAIR.format(path=self.path)}.")

    @property
    def failures(self) -> Path:
        """Where the tracebacks of what went wrong are."""
        return self.path / "failures"

    def how_to_resume(self) -> str:
        """What goes on with the run, where it was started: a call in Python, or a command."""
        if self.call:
            return f"polyfed.{self.call}(..., out={str(self.path)!r}, resume=True)"
        quoted = subprocess.list2cmdline if os.name == "nt" else shlex.join
        return quoted(["polyfed", "resume", str(self.path)])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full or read-only disk ends the run in a sentence; what is there stays readable."""
        try:
            yield
        except OSError as error:
            how = self.how_to_resume() if self.call else f"'{self.how_to_resume()}'"
            raise RunStopped(
                f"The run {self.path} cannot be written: {error.strerror or error}. Make room, or the right to write; "
                f"then {how} goes on from the last checkpoint."
            ) from error


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """A checkpoint's tree, if it is whole."""
    match = CHECKPOINT.fullmatch(path.name)
    try:
        data = path.read_bytes()
        if match and zlib.crc32(data) == int(match[2], 16):
            return unflatten({n: torch.from_numpy(a) for n, a in load_arrays(data).items()})
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        pass
    return None


def spaced(round: int) -> list[int]:
    """The rounds that one can go back to after a round, newest first: one for each power of two up to it.

    Of the rounds that 2^k divides and 2^(k+1) does not, the last. So the round itself and the one before it are among
    them, and whoever wants to go back a rounds finds one that is less than 3a back. What is not among them now is not
    later, either: a client that keeps to the same rule has the states that the server's checkpoints name.

    Args:
        round: the newest round, from 1 on; of 0 there are none.
    """
    powers = [1 << k for k in range(round.bit_length())]
    return sorted((round - (round - power) % (2 * power) for power in powers), reverse=True)


def _worth_keeping(saved: list[Path], round: int) -> set[Path]:
    """Of checkpoints before the one of a round, newest first: for each round to go back to, the last by then.

    Args:
        saved: their files.
        round: the newest checkpoint's.
    """
    ends = [[path for path in saved if round_of(path) <= end][:1] for end in spaced(round) if end < round]
    return {path for some in ends for path in some}


def round_of(path: Path) -> int:
    """The round that a checkpoint's name says."""
    match = CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else 0


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """Refuse settings that would make another model of a run that is under way.

    What comes back is to be said of changes that are allowed and matter.

    Args:
        path: the run's directory.
        before: the settings that it began with.
        now: those that it is to go on with.
        what: where these come from, as a message begins.
    """
    check_horizon(now, before.get("rounds"), now.get("rounds"))
    keys = sorted({*before, *now} - {*FREE})
    found = [one for key in keys for one in differences(key, before.get(key), now.get(key))]
    if found:
        some = "; ".join(f"{key}: {shown(was)} -> {shown(given)}" for key, was, given in found[:2])
        more = f" and {len(found) - 2} more" if len(found) > 2 else ""
        raise BadInput(
            f"{what} was changed since {path} began, which makes another model: {some}{more}. Undo that (started.toml "
            "is as it was), or begin a new run."
        )
    return guard_note(before, now)


def guard_note(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What is said of a guard that changes while a run is under way: no round that was done, but who is let in now."""
    was, is_now = (str(table.get("guard", "on")) for table in (before, now))
    return () if was == is_now else (f"guard is {shown(is_now)} from here on; the run began with {shown(was)}.",)


def differences(name: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ, each by its whole name."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            yield from differences(f"{name}.{key}", was.get(key), now.get(key))
    elif was != now:
        yield name, was, now


def _never_locked(path: Path) -> str:
    """Why a file cannot be locked, where that is not because somebody holds it: older versions of filelock wait."""
    try:
        import fcntl
    except ImportError:  # Windows
        return ""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return "" if error.errno in (errno.EACCES, errno.EAGAIN) else str(error.strerror)
    return ""


def model_bytes(model: Mapping[str, Tensor]) -> bytes:
    """A model as a safetensors file: the same bytes for the same weights."""
    if any(value.dtype == torch.bfloat16 for value in model.values()):  # of a frozen base, which numpy cannot hold
        return save_tensors({name: value.reshape(value.shape or (1,)).contiguous() for name, value in model.items()})
    return save_arrays({name: np.ascontiguousarray(value.numpy()) for name, value in model.items()})


def _move(made: Path, whole: Path) -> None:
    try:
        os.rename(made, whole)  # over an empty directory at most
    except FileExistsError:  # on Windows over nothing at all
        whole.rmdir()
        os.rename(made, whole)


def _call(settings: Mapping[str, Any]) -> str:
    """The function of Python that began a run; '' where the command line did."""
    return "" if not settings.get("python") else "train_many" if "models" in settings else "train"


def check_free(path: Path, *, from_python: bool = False) -> None:
    """Refuse to write over anything; from_python: whether the path was given as out=, and not as --out."""
    given = f"out={str(path)!r}" if from_python else f"--out {path}"
    if (path / "experiment.toml").is_file():
        how = "resume=True" if from_python else f"'polyfed resume {path}'"
        raise BadInput(f"{given} holds a run already: {how} continues it; or choose another.")
    if path.is_dir() and any(path.iterdir()):
        raise BadInput(f"{given} exists and is not a run; choose a path that is new or an empty directory.")
    if path.exists() and not path.is_dir():
        raise BadInput(f"{given} is a file; choose a path that is new or an empty directory.")


def write(path: Path, data: bytes) -> None:
    """Replace a file whole, and only once its bytes are on the disk."""
    made = path.with_name(f".{path.name}.new")
    try:
        with made.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except OSError:
        with suppress(OSError):
            made.unlink(missing_ok=True)  # the room it takes is wanted
        raise


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of rounds 1, 2, ...; what a crash cut short, and whatever follows, will be done again."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    for round, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict) or line.get("round") != round or not _whole(line):
            return
        yield line


def _whole(line: Mapping[str, Any]) -> bool:
    """Whether a line has what a summary adds up."""
    numbers = all(isinstance(line.get(key), int | float) for key in TOTALS)
    return numbers and isinstance(line.get("failures"), list)


def _word(name: str) -> str:
    """A name as one word of a path: whatever it is, the run stays under runs/."""
    return re.sub(r"[^\w .+-]+", "-", name).strip(" .-")[:80] or "run"
