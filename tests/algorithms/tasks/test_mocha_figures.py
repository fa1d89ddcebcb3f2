"""The experiment files of the figures run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyfed.cli import app
from samples import write_har

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_figures_experiments_run(number: int, place: Path) -> None:
    """On eight windows of each of the thirty people: noise, stronger for those who do not sit."""
    rng, subject = np.random.default_rng(0), np.repeat(np.arange(1, 31), 8)
    activity = rng.integers(0, 6, 240)
    signals = rng.normal(size=(240, 9, 128)) * np.where(activity == 3, 0.1, 1.0)[:, None, None]
    write_har(place / "har_smartphones" / "har_inertial.npz", signals, activity, subject)
    file = str(ROOT / f"experiments/mocha-figure{number}.toml")
    done = CliRunner().invoke(app, ["run", file, "--rounds", "2", "--json", "--out", "r"])
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["primal"] > lines[-1]["dual"]
    assert lines[0]["simulated_seconds"] > 0
