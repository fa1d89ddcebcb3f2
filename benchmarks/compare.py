"""Fifteen short runs, 5 methods x 3 seeds of 10 rounds of two-digits, by one `polyfed compare`.

`python benchmarks/compare.py` starts the command as a person would and prints one line of JSON: the seconds that it
took (the report among them), those of the processor, the sum of its rounds, and what is wanted: 1.2 times that sum and
5 s. `--jobs N` passes that on; `--one-by-one` takes fifteen `polyfed run` instead; `--again` also times a second call,
which finds all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("fedcmoo", "fsmgda", "fedavg", "fedmgda+", "fedprox")
POLYFED = (sys.executable, "-m", "polyfed")


def timed(folder: str, *words: str) -> float:
    """Seconds that a command takes."""
    start = time.perf_counter()
    done = subprocess.run([*POLYFED, *words], cwd=folder, capture_output=True, text=True)
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return took


def rounds(folder: str) -> float:
    """The sum of the seconds of all rounds of all runs below a folder."""
    return sum(float(json.loads(path.read_text())["seconds"]) for path in Path(folder).rglob("result.json"))


def processor() -> float:
    """Seconds of processor time that all commands took: with other work on the machine, the better measure."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(used.ru_utime + used.ru_stime, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    found: dict[str, float | str] = {"load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as folder:
        if asked.one_by_one:
            short = ("run", "two-digits", "--rounds", "10")
            runs = [(name, str(seed)) for name in METHODS for seed in range(3)]
            took = sum(timed(folder, *short, "--algorithm", name, "--seed", seed) for name, seed in runs)
        else:
            jobs = ("--jobs", str(asked.jobs)) if asked.jobs else ()
            words = (
                "compare",
                "two-digits",
                "--algorithms",
                ",".join(METHODS),
                "--seeds",
                "3",
                "--rounds",
                "10",
                *jobs,
            )
            took = timed(folder, *words)
            found |= {"again": round(timed(folder, *words), 1)} if asked.again else {}
        own = rounds(folder)
    found |= {
        "seconds": round(took, 1),
        "processor": processor(),
        "rounds": round(own, 1),
        "wanted": round(1.2 * own + 5, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
