"""What docs/many-models.md says is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyfed.cli import app
from samples import write_mnist

ROOT = Path(__file__).parents[3]


def blocks(language: str) -> list[str]:
    fenced = (ROOT / "docs/many-models.md").read_text().split("```")[1::2]
    return [code for head, _, code in (block.partition("\n") for block in fenced) if head == language]


def test_the_pages_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(code, {})
    assert "keyboard/key" in capsys.readouterr().out


def test_the_pages_experiment_runs() -> None:
    (text,) = blocks("toml")
    Path("page.toml").write_text(text)
    done = CliRunner().invoke(app, ["run", "page.toml", "--json"])
    assert done.exit_code == 0, done.stderr
    assert '"regression-2/class"' in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "experiments/many-models").glob("*.toml")), ids=lambda p: p.stem)
def test_the_papers_experiments_are_sound(path: Path, place: Path) -> None:
    from polyfed.experiment.building import plan
    from polyfed.experiment.reading import read

    write_mnist(place / "fashion_mnist", train=1000, test=100)
    name, settings = read(str(path))
    schedule = settings.pop("schedule")
    plan(name, {**settings, "schedule": schedule, "models": settings.get("models", {"it": {}})})
