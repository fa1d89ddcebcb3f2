"""The work of a race between frameworks, and one contestant's time: in a process of its own, by its own Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed.core.door import draw_cohort
from polyfed.core.errors import BadInput, cut

PFL = "POLYFED_PFL"  # names the Python that has pfl
INSTALL = {
    "pfl": (
        "pfl-research is not here. It needs an environment of its own: 'python -m venv pfl', "
        f"'pfl/bin/pip install torch pfl==0.6.0', then {PFL}=pfl/bin/python."
    ),
    "flower": "Flower's simulation is not here: pip install 'flwr[simulation]==1.41.*'.",
}
NEEDS = {"pfl": "import pfl.model.pytorch", "flower": "import flwr.simulation, ray"}


def race(name: str, table: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """A contestant's seconds, start-up included and without, and the accuracy of its model.

    Args:
        name: which, of contestants.py.
        table: the rows: x, y, lengths, test_x, test_y.
        how: network, rounds, cohort, batch, lr and seed.
    """
    python = os.environ.get(PFL, sys.executable) if name == "pfl" else sys.executable
    if name in NEEDS and not _has(python, NEEDS[name]):
        raise BadInput(INSTALL[name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.pt"
        write_work(path, table, how)
        start = time.perf_counter()
        found = _run(python, name, path)
        total = time.perf_counter() - start
    each = {key: None if found[key] is None else 1000 * found[key] / how["rounds"] for key in ("seconds", "cpu")}
    values = {"total": total, "a_round": each["seconds"], "cpu": each["cpu"], "accuracy": found["accuracy"]}
    return {"values": values, "rounds": how["rounds"]}


def write_work(path: Path, table: dict[str, Any], how: dict[str, Any]) -> None:
    """The work as a file, with the cohorts that polyfed draws, for everybody."""
    examples = np.array(table["lengths"])
    cohorts = [draw_cohort(examples, how["cohort"], how["seed"], "cohort", t + 1) for t in range(how["rounds"])]
    torch.save({**table, "how": {**how, "cohorts": cohorts}}, path)


def _has(python: str, line: str) -> bool:
    try:
        return not subprocess.run([python, "-c", line], capture_output=True).returncode
    except OSError:
        return False


def _run(python: str, name: str, path: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("contestants.py")
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [python, str(script), name, str(path)], capture_output=True, text=True, env={**os.environ, **quiet}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if done.returncode or not lines:
        raise BadInput(f"{name} did not come to its end: {cut(done.stderr.strip()[-300:])}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
