"""`polyfed doctor`: whether this machine can do what is asked of it, on one screen."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import typer

from polyfed.cli.common import AsJson, errors_as_sentences
from polyfed.core.errors import cut, visible

LITTLE = 1e9  # bytes of disk below which a run may not end
OPTIONAL = {
    "flower": "flwr",
    "ray": "ray",
    "torchjd": "torchjd",
    "front": "moocore",
    "data": "pooch",
    "molecules": "rdkit",
    "onnx": "onnxruntime",
    "report": "plotly",
}


class Finding(NamedTuple):
    """One thing that was looked at: 'ok', 'note' (something is not there, and may not be wanted) or 'bad'."""

    what: str
    state: str
    text: str


def doctor(json_: AsJson = False) -> None:
    """Look at versions, GPU, Triton, disk, rights, data, Flower and Ray; exit code 1 if something is bad."""
    with errors_as_sentences():
        found = [finding for look in LOOKS for finding in _told(look)]
        bad = any(finding.state == "bad" for finding in found)
        if json_:
            print(json.dumps({"ok": not bad, "findings": [finding._asdict() for finding in found]}))
        else:
            _show(found)
        if bad:
            raise typer.Exit(1)


def _told(look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What one look found; one that fails is a finding, too."""
    try:
        return list(look())
    except Exception as error:  # a broken installation may raise anything
        return [Finding(look.__name__.strip("_"), "bad", cut(f"{type(error).__name__}: {error}"))]


def _versions() -> Iterator[Finding]:
    from polyfed import __version__

    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("polyfed", "ok", f"{__version__}, {system}, {os.cpu_count()} cores")
    wrong = [text for need in _needs("") if (text := need.wrong())]
    here = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy"))
    yield Finding("packages", "bad" if wrong else "ok", f"{'; '.join(wrong)}: reinstall polyfed" if wrong else here)


class Need(NamedTuple):
    """A package, and the versions that fit: from `low` on, below `high`."""

    name: str
    low: tuple[int, ...]
    high: tuple[int, ...]

    def wrong(self) -> str:
        """What is wrong with the one that is installed, if anything."""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return f"{self.name} is not installed"
        fits = self.low <= _numbers(version) < self.high
        return "" if fits else f"{self.name} {version} does not fit"


def _needs(extra: str) -> list[Need]:
    """What polyfed asks for, as it was installed: always (''), or with one of its extras."""
    found = []
    for line in metadata.requires("polyfed") or ():
        need, _, marker = line.partition(";")
        of = re.findall(r"extra == [\"'](\w+)", marker) or [""]
        name = re.match(r"[\w.-]+", need)
        if extra in of and name:
            bounds = dict(re.findall(r"(>=|<)\s*([\d.]+)", need))
            found.append(Need(name[0], _numbers(bounds.get(">=", "0")), _numbers(bounds.get("<", "99999"))))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    words = version.partition("+")[0].split(".")[:3]
    return tuple(int("".join(c for c in word if c.isdigit()) or 0) for word in words)


def _gpu() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding("GPU", "note", "none that torch can use: engines work on the CPU")
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    free, total = torch.cuda.mem_get_info()
    yield Finding("GPU", "ok", f"{', '.join(names)}; {free / 1e9:.0f} of {total / 1e9:.0f} GB free")


def _triton() -> Iterator[Finding]:
    import importlib.util

    import torch

    there = importlib.util.find_spec("triton") is not None
    version = f"Triton {metadata.version('triton')}" if there else "not installed"
    wanted = torch.cuda.is_available()
    text = version if there or not wanted else f"{version}: convolutions on the GPU are slower without it"
    yield Finding("Triton", "ok" if there else "note", text)


def _memory() -> Iterator[Finding]:
    from polyfed.core.room import memory

    yield Finding("memory", "ok", f"{memory() / 1e9:.0f} GB")


def _disk() -> Iterator[Finding]:
    for what, path in (("disk here", Path.cwd()), ("disk for temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(path).free
        little = free < LITTLE
        text = f"{free / 1e9:.1f} GB free in {path}"
        yield Finding(what, "bad" if little else "ok", f"{text}: too little, make room" if little else text)


def _rights() -> Iterator[Finding]:
    """Whether runs can be written and locked here."""
    from polyfed.core.errors import PolyfedError
    from polyfed.run.directory import RunDirectory

    where = Path("runs") if Path("runs").is_dir() else Path.cwd()
    try:
        with tempfile.TemporaryDirectory(dir=where, prefix=".polyfed-doctor-") as folder:
            made = RunDirectory.create(Path(folder) / "run", "doctor", {"rounds": 1})
            with made.locked():
                made.save(1, {})
    except (OSError, PolyfedError) as error:
        yield Finding("rights", "bad", f"no run can be written in {where}: {cut(str(error))}")
        return
    yield Finding("rights", "ok", f"runs can be written and locked in {where}")


def _data() -> Iterator[Finding]:
    from polyfed.cli.data import inventory
    from polyfed.data.store import root

    rows = inventory()
    there = [row["name"] for row in rows if row["status"] in ("there", "in part", "built in")]
    missing = len(rows) - len(there)
    text = f"{len(there)} of {len(rows)} data sets are there, in {root()}"
    yield Finding("data", "ok", f"{text}; 'polyfed data fetch NAME' gets others" if missing else text)


def _extras() -> Iterator[Finding]:
    for extra, package in OPTIONAL.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield Finding(extra, "note", f"not installed; pip install 'polyfed[{extra}]'")
            continue
        wrong = next((text for need in _needs(extra) if need.name == package and (text := need.wrong())), "")
        yield Finding(
            extra,
            "bad" if wrong else "ok",
            f"{wrong}; pip install 'polyfed[{extra}]'" if wrong else f"{package} {version}",
        )


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _versions, _gpu, _triton, _memory, _disk, _rights, _data, _extras,
)  # fmt: skip


def _show(found: list[Finding]) -> None:
    width = max(len(finding.what) for finding in found)
    for what, state, text in found:
        print(f"{what:<{width}}  {state:<4}  {visible(text)}", file=sys.stdout)
