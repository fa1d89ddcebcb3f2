"""500 runs: the list is there soon, and costs little while nothing happens; in a processor's time, as CI is busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

from polyfed.view.listing import Folder
from rundirs import add_round, write_run

MANY = 500


def test_500_runs_are_listed_in_a_second_and_looked_at_for_little(tmp_path: Path) -> None:
    for place in range(MANY):
        run = write_run(tmp_path / f"study-{place // 50}" / f"run-{place}", rounds=2, done=place % 10 > 0, seed=place)
        os.utime(run, (1e9, 1e9))
    folder = Folder(tmp_path)
    began = time.process_time()
    assert len(folder.look().rows) == MANY
    listed = time.process_time() - began
    assert listed < 1.5, f"listing {MANY} runs took {listed:.2f} s of a processor"
    began = time.process_time()
    assert not any(folder.look() for _ in range(10))
    look = (time.process_time() - began) / 10
    assert look < 0.05, f"a look at {MANY} runs, once a second, took {look:.3f} s of a processor"
    add_round(tmp_path / "study-0" / "run-0", 3)
    began = time.process_time()
    assert len(folder.look().rows) == 1
    assert time.process_time() - began < 0.07
