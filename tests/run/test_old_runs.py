"""Runs and experiment files of earlier versions go on; those of `golden/old_runs` stopped after two rounds of four."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from golden_runs import differences
from polyfed.cli import app

OLD = Path(__file__).parents[1] / "golden" / "old_runs"


@pytest.mark.parametrize("name", ["fedcmoo", "mocha", "models"])
def test_a_run_of_an_earlier_version_resumes(name: str) -> None:
    shutil.copytree(OLD / name, "run")
    done = CliRunner().invoke(app, ["resume", "run"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(Path("run/result.json").read_text())
    expected = json.loads(Path("run/expected.json").read_text())
    assert list(differences(expected, {key: result[key] for key in expected})) == []
    assert [json.loads(line)["round"] for line in Path("run/metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["fedcmoo", "mocha", "models"])
def test_its_experiment_runs_as_it_is(name: str) -> None:
    done = CliRunner().invoke(app, ["run", str(OLD / name / "experiment.toml"), "--out", "run"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(Path("run/result.json").read_text())
    expected = json.loads((OLD / name / "expected.json").read_text())
    assert list(differences(expected, {key: result[key] for key in expected})) == []
