"""A damaged run directory made whole again: what cannot be read is set aside, never deleted."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from polyfed.core.errors import BadInput, PolyfedError, RunStopped
from polyfed.run.directory import RunDirectory, read_checkpoint, round_of, write


@dataclass
class Repaired:
    """What `repair` did.

    Args:
        round: the round that the run goes on from, 0 for its beginning.
        complete: whether it is complete, and there is nothing to go on with.
        aside: files that were moved to the folder of damaged ones, by the names they had.
        done: everything that was done, as sentences.
    """

    round: int = 0
    complete: bool = False
    aside: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """How it stands now."""
        if self.complete:
            return "the run is complete."
        where = f"from round {self.round}" if self.round else "from the beginning"
        return f"{'mended' if self.done else 'nothing to mend'}; 'polyfed resume' goes on {where}."


def repair(path: Path, back_to: int | None = None) -> Repaired:
    """Mend a run: damaged files are set aside, and the metrics end where the newest good checkpoint does.

    The newest checkpoint counts whose rounds are all in metrics.jsonl: later ones are set aside with the rest, since
    totals over missing rounds would be wrong, and rounds that are done again come to the same bits.

    Args:
        path: the run's directory.
        back_to: a round that was still good: what came after it is set aside, and the run goes on from the newest
            checkpoint at or before it, or from the beginning where there is none.
    """
    if not path.is_dir():
        raise BadInput(f"{path} is not a run: a run is a directory that holds an experiment.toml.")
    found = Repaired()
    try:
        _experiment(path, found)
        directory = RunDirectory.open(path)
        with directory.locked():
            _mend(directory, found, back_to)
    except OSError as error:
        raise RunStopped(f"The run {path} cannot be mended: {error.strerror or error}.") from error
    return found


def _experiment(path: Path, found: Repaired) -> None:
    """An experiment.toml that cannot be read is as it was when the run began."""
    if _readable(path / "experiment.toml"):
        return
    if not _readable(path / "started.toml"):
        raise BadInput(
            f"{path} cannot be mended: neither its experiment.toml nor its started.toml can be read. Put the "
            "experiment there, or begin a new run."
        )
    _aside(path, path / "experiment.toml", found)
    write(path / "experiment.toml", (path / "started.toml").read_bytes())
    found.done.append("experiment.toml is again what it was when the run began (started.toml).")


def _readable(path: Path) -> bool:
    try:
        return bool(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return False


def _mend(directory: RunDirectory, found: Repaired, back_to: int | None) -> None:
    """A run that is complete and whole needs no checkpoints: of such, only what lies broken among them is set aside."""
    path, rounds = directory.path, len(directory.history())
    last = rounds if back_to is None else back_to
    if not 0 <= last <= rounds:
        raise BadInput(f"--back-to should be from 0 to {rounds}, the rounds that {path} has done. Found {last}.")
    found.complete = last == rounds and _whole(directory, rounds)
    if not directory.checkpoints.is_dir() and not (found.complete and not directory.checkpoints.exists()):
        _aside(path, directory.checkpoints, found)
        directory.checkpoints.mkdir()
    good = []
    for one in sorted(directory.checkpoints.glob("*"), reverse=True):
        if one in directory.saved() and round_of(one) <= last and read_checkpoint(one) is not None:
            good.append(one)
        else:
            _aside(path, one, found)
    found.round = rounds if found.complete else round_of(good[0]) if good else 0
    _metrics(directory, found, keep=found.round)
    _clients(directory, found, keep=found.round)
    if not found.complete:
        later = [one for one in path.glob("best/round-*.safetensors") if one.stem > f"round-{found.round:08d}"]
        for one in (path / "result.json", path / "model.safetensors", *later):  # resuming makes them again
            _aside(path, one, found)


def _metrics(directory: RunDirectory, found: Repaired, keep: int) -> None:
    kept = b"".join(json.dumps(line).encode() + b"\n" for line in directory.history()[:keep])
    before = directory.metrics.read_bytes() if directory.metrics.is_file() else None
    if before == kept:
        return
    lost = 0 if before is None else max(before.count(b"\n") - keep, 0)
    _aside(directory.path, directory.metrics, found, copy=directory.metrics.is_file())
    write(directory.metrics, kept)
    found.done.append(f"metrics.jsonl holds rounds 1 to {keep}; {lost} lines after them were set aside." if keep else
                      f"metrics.jsonl is empty; {lost} lines were set aside.")  # fmt: skip


def _clients(directory: RunDirectory, found: Repaired, keep: int) -> None:
    """What clients.jsonl says of later rounds would be lost when the run is resumed."""
    if directory.clients.reaches_beyond(keep):
        _aside(directory.path, directory.clients.path, found, copy=True)
        directory.clients.rewind(keep)


def _whole(directory: RunDirectory, rounds: int) -> bool:
    """Whether the run is complete: its result, all rounds that this adds up, and the very model that it is of."""
    try:
        summary = directory.result()
        if summary is None or summary["rounds"] != rounds:
            return False
        load_file(directory.path / "model.safetensors")
        found = hashlib.sha256((directory.path / "model.safetensors").read_bytes()).hexdigest()
        return bool(summary.get("model_sha256", found) == found)
    except (PolyfedError, OSError, ValueError, SafetensorError):
        return False


def _aside(run: Path, path: Path, found: Repaired, copy: bool = False) -> None:
    """Move a file to the run's folder of damaged ones, under a name that is free; or copy one that stays, shortened."""
    if not path.exists() and not path.is_symlink():
        return
    folder = run / "damaged" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    to, n = folder / path.name, 1
    while to.exists() or to.is_symlink():
        to, n = folder / f"{path.name}.{n}", n + 1
    if copy:
        shutil.copy2(path, to)
    else:
        path.rename(to)
    name = str(path.relative_to(run))
    found.aside.append(name)
    found.done.append(f"{name} was set aside: {to.relative_to(run)}.")
