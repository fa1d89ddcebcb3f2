"""A run on disk: the resolved experiment, one line of metrics a round, checkpoints, the model. Nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import time
import tomllib
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.tree import flatten, unflatten

PATIENCE = 2.0  # seconds until a run that somebody else holds is given up
KEEP = 2  # checkpoints: should the last be unreadable, the one before serves


class RunDirectory:
    """Reads and writes one run's files; every file but the metrics is replaced whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.new = False  # made by this process, and nothing in it yet

    @classmethod
    def create(cls, out: Path | None, name: str, settings: Mapping[str, Any]) -> RunDirectory:
        """A new run, there with its experiment or not at all."""
        path = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        check_free(path)
        text = tomli_w.dumps(settings).encode()
        whole = path.resolve()
        made = whole.parent / f".{whole.name}.{uuid.uuid4().hex[:8]}"
        try:
            (made / "checkpoints").mkdir(parents=True)
            (made / "experiment.toml").write_bytes(text)
            (made / "metrics.jsonl").touch()
            _move(made, whole)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            raise BadInput(
                f"The run directory {path} cannot be made: {error.strerror}; choose another --out."
            ) from error
        made_here = cls(path)
        made_here.new = True
        return made_here

    def abandon(self) -> None:
        """Bad input that only the engine could find leaves no run."""
        if self.new:
            shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / "experiment.toml").is_file():
            raise BadInput(f"{path} is not a run: a run is a directory that holds an experiment.toml.")
        return cls(path)

    def settings(self) -> dict[str, Any]:
        try:
            return tomllib.loads((self.path / "experiment.toml").read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{self.path} is not a run that can be read: its experiment.toml is broken ({error})."
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock goes with the process that holds it."""
        lock = FileLock(self.path / ".lock")
        self.open(self.path)  # filelock would make the directory of a run that is gone
        try:
            lock.acquire(timeout=PATIENCE, poll_interval=0.05)
        except Timeout:
            self.new = False  # somebody works in it: no longer ours to remove
            raise BadInput(f"Another process is working on the run {self.path}; wait for it, or stop it.") from None
        try:
            yield
        finally:
            lock.release()

    # metrics

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one round's line, in one write."""
        self.new = False
        with self.metrics.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def history(self) -> list[dict[str, Any]]:
        return list(_lines(self.metrics))

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Forget the rounds after a checkpoint's, and a line that a crash cut short."""
        kept = [line for line in _lines(self.metrics) if line["round"] <= round]
        write(self.metrics, b"".join(json.dumps(line).encode() + b"\n" for line in kept))
        return kept

    # checkpoints

    def save(self, round: int, tree: Mapping[str, Any]) -> None:
        """A checkpoint after a round; its name carries the checksum of its content."""
        data = save_arrays({name: a.numpy() for name, a in flatten(tree).items()})
        # a checkpoint must not outlive the lines it stands for; Windows flushes what is open for writing only
        with self.metrics.open("r+b") as file:
            os.fsync(file.fileno())
        write(self.checkpoints / f"round-{round:08d}-{zlib.crc32(data):08x}.safetensors", data)
        for old in sorted(self.checkpoints.glob("round-*.safetensors"))[:-KEEP]:
            old.unlink()

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """The newest readable checkpoint."""
        for path in sorted(self.checkpoints.glob("round-*.safetensors"), reverse=True):
            _, round, crc = path.stem.split("-")
            try:
                data = path.read_bytes()
                if zlib.crc32(data) == int(crc, 16):
                    return int(round), unflatten({n: torch.from_numpy(a) for n, a in load_arrays(data).items()})
            except (OSError, ValueError, SafetensorError):
                continue
        return None

    # the end

    def finish(self, model: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        write(self.path / "model.safetensors", model_bytes(model))
        write(self.path / "result.json", json.dumps(result, indent=1).encode() + b"\n")

    def result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def model_bytes(model: Mapping[str, Tensor]) -> bytes:
    """A model as a safetensors file: the same bytes for the same weights."""
    return save_arrays({name: np.ascontiguousarray(value.numpy()) for name, value in model.items()})


def _move(made: Path, whole: Path) -> None:
    try:
        os.rename(made, whole)  # over an empty directory at most
    except FileExistsError:  # on Windows over nothing at all
        whole.rmdir()
        os.rename(made, whole)


def check_free(path: Path) -> None:
    """Refuse to write over anything."""
    if (path / "experiment.toml").is_file():
        raise BadInput(f"--out {path} holds a run already: 'polyfed resume {path}' continues it; or choose another.")
    if path.is_dir() and any(path.iterdir()):
        raise BadInput(f"--out {path} exists and is not a run; choose a path that is new or an empty directory.")
    if path.exists() and not path.is_dir():
        raise BadInput(f"--out {path} is a file; choose a path that is new or an empty directory.")


def write(path: Path, data: bytes) -> None:
    """Replace a file whole, and only once its bytes are on the disk."""
    made = path.with_name(f".{path.name}.new")
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(made, path)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            yield json.loads(text)
        except ValueError:  # cut short by a crash: the round will be done again
            return
