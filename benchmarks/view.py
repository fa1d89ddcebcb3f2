"""The live page with 500 runs: how soon it lists them, and what it costs when nothing happens. About a minute.

`python benchmarks/view.py`; the time of the browser is measured where chromium is (`make browser`). Times are of the
clock, and of the server's processor: on a busy machine the second is the one to compare.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

ROUNDS = 200
METHODS = ("fedcmoo", "fsmgda", "fedavg", "fedmgda+", "fedprox")


def write_runs(root: Path, many: int) -> None:
    """Runs of two objectives in studies of 50; every tenth has stopped half-way."""
    for place in range(many):
        path = root / f"compare-{place // 50}" / f"run-{place:03d}"
        path.mkdir(parents=True)
        algorithm = {"name": METHODS[place % 5], "lr": 0.3, "local_steps": 10, "batch_size": 32, "momentum": 0.0}
        settings = {"format": 1, "name": "two-digits", "rounds": ROUNDS, "seed": place, "algorithm": algorithm}
        settings |= {"data": {"name": "two-digits", "clients": 100, "alpha": 0.3}, "engine": {"name": "local"}}
        settings |= {
            "evaluate": {"every": 1, "clients": False, "splits": []},
            "model": {"name": "mlp", "hidden": [128]},
        }
        (path / "experiment.toml").write_text(tomli_w.dumps(settings))
        rounds = ROUNDS // 2 if place % 10 == 0 else ROUNDS
        lines = [line(round) for round in range(1, rounds + 1)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        if rounds == ROUNDS:
            (path / "result.json").write_text(json.dumps(result(lines[-1])))
        (path.parent / "study.json").write_text('{"kind": "compare", "state": "done"}')
    past = time.time() - 3600
    for folder in root.rglob("*"):
        os.utime(folder, (past, past))


def line(round: int) -> dict[str, Any]:
    losses = {name: 0.3 + 2 * math.exp(-round / 30) for name in ("left", "right")}
    metrics = {name: {"accuracy": 1 - loss / 3} for name, loss in losses.items()}
    told = {"round": round, "bytes_up": 705000, "bytes_down": 687890, "cohort": list(range(10)), "losses": losses}
    return told | {"metrics": metrics, "split": "test", "failures": [], "seconds": 0.07, "weights": losses}


def result(last: dict[str, Any]) -> dict[str, Any]:
    objectives = {name: {"loss": loss, **last["metrics"][name]} for name, loss in last["losses"].items()}
    told = {"algorithm": "fedcmoo", "engine": "local", "rounds": ROUNDS, "seed": 0, "seconds": 14.0, "failures": 0}
    return told | {"bytes_up": 1, "bytes_down": 1, "split": "test", "objectives": objectives}


@contextmanager
def viewing(root: Path) -> Iterator[tuple[int, str, float]]:
    """The command, as a person starts it: its process, its address, and the seconds until it said that."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "polyfed", "view", str(root), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        yield process.pid, url, time.perf_counter() - began
        process.terminate()


def processor(pid: int) -> float:
    """The seconds of a processor that a process has taken."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: float, write: Path | None = None) -> float:
    """What share of a processor a server takes; meanwhile a run may write twice a second."""
    before, began = processor(pid), time.perf_counter()
    round = ROUNDS
    while (passed := time.perf_counter() - began) < seconds:
        time.sleep(0.5)
        if write is not None:
            round += 1
            with write.open("a") as file:
                file.write(json.dumps(line(round)) + "\n")
    return (processor(pid) - before) / passed


def listed(url: str, many: int) -> float | None:
    """Seconds from opening the page in a browser until all runs are in its list; None without a browser."""
    if (chromium := shutil.which("chromium")) is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        while page.locator("#list tbody tr[data-run]").count() < many:
            page.wait_for_timeout(5)
        took = time.perf_counter() - began
        browser.close()
    return took


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=500)
    arguments.add_argument("--seconds", type=float, default=15)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        write_runs(root, given.runs)
        with viewing(root) as (pid, url, started):
            print(
                f"{given.runs} runs: the command answers after {started:.2f} s, {processor(pid):.2f} s of a processor"
            )
            before = processor(pid)
            took = listed(url, given.runs)
            print("no browser here" if took is None else f"the page lists them after {took:.2f} s", end="; ")
            print(f"the server took {processor(pid) - before:.2f} s of a processor")
            with urllib.request.urlopen(f"{url}api/events") as events:
                events.readline()
                print(f"idle, a page open: {share(pid, given.seconds):.1%} of a processor")
                busy = root / "compare-0" / "run-000" / "metrics.jsonl"
                print(f"a run writes twice a second: {share(pid, given.seconds, busy):.1%} of a processor")
            time.sleep(3)
            print(f"no page open: {share(pid, given.seconds / 3):.1%} of a processor")


if __name__ == "__main__":
    main()
