"""The experiment files of the multi-model paper are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import write_mnist

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments/many-models").glob("*.toml")), ids=lambda p: p.stem)
def test_the_papers_experiments_are_sound(path: Path, place: Path) -> None:
    from polyfed.experiment.building import plan
    from polyfed.experiment.reading import read

    write_mnist(place / "fashion_mnist", train=1000, test=100)
    name, settings = read(str(path))
    schedule = settings.pop("schedule")
    plan(name, {**settings, "schedule": schedule, "models": settings.get("models", {"it": {}})})
