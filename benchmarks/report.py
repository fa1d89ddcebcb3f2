"""A report of many runs, how long it takes, what it weighs and how it opens: `python benchmarks/report.py`; minutes.

The runs are made up: 20 of them with 5,000 rounds of 40 objectives, a loss, an accuracy, a training loss and a weight
each. The page is opened in Debian's chromium (`make browser`), which has to be there, five times.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tomli_w


def write_runs(folder: Path, runs: int, rounds: int, objectives: int) -> int:
    """Runs whose losses fall, with noise; how many bytes they take."""
    names = [f"attribute-{k:02}" for k in range(objectives)]
    size = 0
    for run in range(runs):
        path = folder / f"run-{run:02}"
        path.mkdir(parents=True)
        method, seed = f"method-{run // 4}", run % 4
        settings = {"name": "many", "rounds": rounds, "seed": seed, "engine": {"name": "local"}}
        settings |= {"data": {"name": "made-up"}, "algorithm": {"name": method, "lr": 0.1}}
        (path / "experiment.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        with (path / "metrics.jsonl").open("w", encoding="utf-8") as file:
            size += sum(file.write(line) for line in _lines(np.random.default_rng(run), rounds, names))
    return size


def _lines(rng: np.random.Generator, rounds: int, names: list[str]) -> list[str]:
    fall = np.exp(-np.arange(rounds)[:, None] / rng.uniform(300, 1500, len(names)))
    losses = 0.2 + 2 * fall + 0.05 * rng.standard_normal(fall.shape)
    found = []
    for t, row in enumerate(losses.tolist(), 1):
        line = {
            "round": t,
            "bytes_up": 705000,
            "bytes_down": 687890,
            "cohort": [t % 50],
            "failures": [],
            "seconds": 0.1,
        }
        table = dict(zip(names, row, strict=True))
        line |= {"weights": {name: value / 9 for name, value in table.items()}, "losses": table, "split": "test"}
        line |= {"train": {name: value * 1.1 for name, value in table.items()}}
        line |= {"metrics": {name: {"accuracy": 1 - value / 9} for name, value in table.items()}}
        found.append(json.dumps(line) + "\n")
    return found


def seconds_to_open(page: Path, times: int) -> tuple[list[float], float]:
    """From the command to open a page in a new tab until figures in sight are drawn; of the last, a processor's."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    found, busy = [], 0.0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            told = tab.context.new_cdp_session(tab)
            told.send("Performance.enable", {"timeDomain": "threadTicks"})
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator("#figures").scroll_into_view_if_needed()
            tab.wait_for_selector(".card[data-drawn]")  # what is in sight
            found.append(time.perf_counter() - start)
            metrics = told.send("Performance.getMetrics")["metrics"]
            busy = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
            tab.close()
        browser.close()
    return found, busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--objectives", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_runs(Path(folder) / "runs", args.runs, args.rounds, args.objectives)
        page = Path(folder) / "report.html"
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "polyfed", "report", f"{folder}/runs", "-o", page], check=True)
        took = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(f"{args.runs} runs x {args.rounds} rounds x {args.objectives} objectives: {size / 1e6:.0f} MB of metrics")
        weight = page.stat().st_size / 1e6
        print(f"report written in {took:.1f} s, at most {peak:.2f} GB of memory; the page: {weight:.2f} MB")
        opened, busy = seconds_to_open(page, 5)
        spread = f"median of 5; {min(opened):.2f} to {max(opened):.2f}"
        print(f"opens in {statistics.median(opened):.2f} s ({spread}), {busy:.2f} s of a processor")


if __name__ == "__main__":
    main()
