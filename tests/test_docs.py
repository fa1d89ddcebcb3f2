"""What the documents say is run."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from polyfed import FedCMOO, train
from polyfed.core.registry import forget
from polyfed.testing import check_engine
from small import small_federation, small_problem

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    fenced = (ROOT / document).read_text().split("```")[1::2]
    return [code for head, _, code in (block.partition("\n") for block in fenced) if head == language]


def test_the_readmes_example_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    space: dict[str, object] = {}
    exec(code, space)
    assert "accuracy" in capsys.readouterr().out
    assert space["result"].summary["objectives"]["click"]["accuracy"] > 0.8  # type: ignore[attr-defined]


def test_the_readmes_experiment_runs() -> None:
    from polyfed.cli import app

    (text,) = blocks("README.md", "toml")
    Path("readme.toml").write_text(text)
    done = CliRunner().invoke(app, ["run", "readme.toml", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.stderr


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """All code of CONTRIBUTING.md as one module."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "doc_guide.py").write_text("\n\n".join(blocks("CONTRIBUTING.md", "python")))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("doc_guide")
    sys.path.remove(str(folder))
    forget("doc_guide")


def test_contributings_algorithm_can_be_added_as_written(guide: ModuleType) -> None:
    models = {
        train(small_problem(), small_federation(), guide.Unit(), rounds=3, cohort=4, engine=engine).summary[
            "model_sha256"
        ]
        for engine in ("local", "wire")
    }
    assert len(models) == 1


def test_contributings_other_guides_work_as_written(guide: ModuleType) -> None:
    problem, federation = small_problem(), small_federation()
    method = FedCMOO(compress=guide.First(keep=7), weighting=guide.Longest(share=0.8))
    callbacks, layers = [guide.Until(objective="left", loss=0.9)], [guide.Clip(norm=0.5)]
    result = train(problem, federation, method, rounds=30, engine="plain", callbacks=callbacks, layers=layers)
    assert len(result.history) < 30
    assert result.history[-1]["losses"]["left"] <= 0.9
    assert max(result.history[-1]["weights"].values()) == pytest.approx(0.8)
    assert len(guide.plane(seed=0, rows=10).x) == 10
    check_engine(guide.Plain, exact=True)


def test_the_tree_in_the_readme_exists() -> None:
    tree = next(block for block in blocks("README.md", "") if block.startswith("src/polyfed/"))
    for name in re.findall(r"(?:^|\s)([a-z_/]+(?:\.py|/))", tree):
        assert (ROOT / "src/polyfed" / name).exists() or (ROOT / name).exists(), name


def test_the_page_on_engines_runs_and_names_their_settings() -> None:
    from polyfed.engines import engines

    (code,) = blocks("docs/engines.md", "python")
    space: dict[str, object] = {}
    exec(code, space)
    assert len(space["result"].history) == 5  # type: ignore[attr-defined]
    table = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", (ROOT / "docs/engines.md").read_text(), re.MULTILINE)
    settings = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in reversed(table)}
    assert {"local", "batched", "auto", "wire"} <= settings.keys()
    for name in ("local", "batched", "auto", "wire"):
        keywords = inspect.signature(engines[name]).parameters.values()
        assert settings[name] == {p.name for p in keywords if p.kind is p.KEYWORD_ONLY}, name
