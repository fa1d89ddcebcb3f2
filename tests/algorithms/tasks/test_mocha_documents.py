"""What the page and the experiment files say is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyfed.cli import app

ROOT = Path(__file__).parents[3]


def test_the_pages_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/mocha.md").read_text()
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "(6, 8)" in capsys.readouterr().out


def test_the_pages_command_for_local_models_runs() -> None:
    changes = ["--set", "algorithm.name=local", "--set", "algorithm.regulariser={lam=10.0}"]
    done = CliRunner().invoke(app, ["run", "many-tasks", "--rounds", "2", "--json", *changes])
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_figures_experiments_run(number: int, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(shared_data))
    file = str(ROOT / f"experiments/mocha-figure{number}.toml")
    vehicle = ["--set", "data.name=vehicle", "--set", "data.key=sensor", "--set", "data.task="]  # small, quickly read
    done = CliRunner().invoke(
        app, ["run", file, "--rounds", "2", "--json", "--out", "r", *vehicle, "--set", "data.test_subjects="]
    )
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["primal"] > lines[-1]["dual"]
    assert lines[0]["simulated_seconds"] > 0
