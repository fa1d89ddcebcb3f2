"""The way of a round through the code: files visited and switches between files, `python benchmarks/walk.py`.

A round of FedCMOO (two exchanges) over two clients on the engine `local`, and a round of two models. Every call and
return inside the package is an event; a switch is an event in another file than the last one's. Evaluation, logging
and checkpoints are part of a round here.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w
import torch
from typer.testing import CliRunner

import polyfed
from polyfed.cli import app

PACKAGE = str(Path(polyfed.__file__).parent)
BASE: dict[str, Any] = {
    "rounds": 3,
    "cohort": 2,
    "data": {"name": "two-digits", "clients": 2, "examples": 40},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedcmoo", "width": 8, "local_steps": 1, "batch_size": 8},
}
ONE = {key: BASE[key] for key in ("data", "model", "algorithm")}
MANY: dict[str, Any] = {"rounds": 3, "cohort": "all", "models": {"a": ONE, "b": ONE}}


class Walk:
    """Counts events between the loop's second and third round."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.switches = 0
        self._last = ""
        self._rounds = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(PACKAGE):
            return
        if frame.f_code.co_name == "_round" and Path(file).name in ("run.py", "loop.py"):
            self._rounds += event == "call"
        if self._rounds != 2:
            return
        self.files[file] += 1
        self.switches += file != self._last
        self._last = file


def walked(settings: dict[str, Any]) -> Walk:
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "walk.toml"
        path.write_bytes(tomli_w.dumps(settings).encode())
        sys.setprofile(walk)
        try:
            done = CliRunner().invoke(app, ["run", str(path), "--out", f"{folder}/run"])
        finally:
            sys.setprofile(None)
    assert done.exit_code == 0, done.stderr
    return walk


def main() -> None:
    torch.set_num_threads(1)
    for name, settings in (("FedCMOO, two clients", BASE), ("two models, two clients (server's thread)", MANY)):
        walk = walked(settings)
        print(f"{name:44} {len(walk.files):3} files, {walk.switches:5} switches")
        if "--files" in sys.argv:
            for file, events in walk.files.most_common():
                print(f"    {events:5} {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
