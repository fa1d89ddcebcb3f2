"""What is released and how: one version, extras and make targets that exist, data files that are shipped."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import polyfed

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
YAML = [*WORKFLOWS, ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "polyfed.__version__"}
    assert parsed(ROOT / "CITATION.cff")["version"] == polyfed.__version__


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_every_make_target_named_in_yaml_exists(path: Path) -> None:
    assert isinstance(parsed(path), dict)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:run: |`)make ([a-z-]+)", path.read_text(encoding="utf-8"))) <= targets


def test_the_workflow_runs_what_the_makefile_offers_to_everybody() -> None:
    (workflow,) = WORKFLOWS
    made = set(re.findall(r"run: make ([a-z-]+)", workflow.read_text(encoding="utf-8")))
    assert made == {"check", "test", "test-lowest", "docs", "release-check"}
    assert parsed(workflow)["permissions"] == {"contents": "read"}


def test_the_classifiers_are_the_pythons_that_the_workflow_tests() -> None:
    (workflow,) = WORKFLOWS
    tested = parsed(workflow)["jobs"]["test"]["strategy"]["matrix"]["python"]
    heads = [line.rpartition(" :: ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line]
    assert heads == tested
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"


def test_every_extra_that_is_named_exists() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    texts = [*pages, *ROOT.glob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml"]
    named = {
        extra.strip()
        for path in texts
        for group in re.findall(r"polyfed\[([\w, -]+)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert {"data", "flower", "ray", "report"} <= named <= PROJECT["project"]["optional-dependencies"].keys()


def test_the_wheel_has_every_file_of_the_package() -> None:
    package = ROOT / "src" / "polyfed"
    shipped = {p for pattern in PROJECT["tool"]["setuptools"]["package-data"]["polyfed"] for p in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix != ".py"}
    files = {path for path in files if "__pycache__" not in path.parts}
    assert shipped == files
    assert package / "py.typed" in files


def test_every_direct_dependency_has_a_pinned_lowest_version() -> None:
    groups = PROJECT["project"]["optional-dependencies"]
    direct = [*PROJECT["project"]["dependencies"], *groups["dev"]]
    extras = (
        "data", "molecules", "torchjd", "front", "flower", "ray", "report", "view", "tune", "tensorboard", "mlflow",
        "onnx",
    )  # fmt: skip
    direct += [line for name in extras for line in groups[name]]
    pins = _versions("constraints-lowest.txt")
    for line in direct:
        if match := re.match(r"([\w-]+)>=([\d.]+)", line):
            assert pins[_plain(match[1])].startswith(match[2]) or match[1] == "torch", line


def _versions(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return {_plain(name): version for name, version in found}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
