"""The house: packages without import circles, tests that mirror them, public names that explain themselves."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import polyfed

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "polyfed"


def imports(path: Path) -> Iterator[str]:
    """The packages of polyfed that a file imports, at its top or inside functions; not what types alone need."""
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("polyfed."))


def _without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    return tree


def test_packages_do_not_import_each_other_in_circles() -> None:
    graph: dict[str, set[str]] = {}
    for path in SRC.rglob("*.py"):
        package = path.relative_to(SRC).parts[0]
        if package.endswith(".py"):
            continue
        graph.setdefault(package, set()).update(name for name in imports(path) if name != package)
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"packages import each other in a circle: {' <- '.join(error.args[1])}")
    assert order[0] == "core"


def test_tests_mirror_the_packages() -> None:
    packages = {path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"golden"} <= packages


def test_few_type_ignores_each_with_its_reason() -> None:
    found = [
        (path, line) for path in SRC.rglob("*.py") for line in path.read_text().splitlines() if "type: ignore" in line
    ]
    assert len(found) <= 10
    for path, line in found:
        assert re.search(r"type: ignore\[[\w-]+\]  # \w+", line), f"{path}: {line.strip()}"
        assert "works[" not in line, f"where an engine meets a work: {path}"


@pytest.mark.parametrize("name", polyfed.__all__)
def test_public_names_explain_every_argument(name: str) -> None:
    thing = getattr(polyfed, name)
    text = inspect.getdoc(thing) or ""
    assert len(text) > 20, f"{name} has no docstring"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return
    parameters = [p for p in inspect.signature(thing).parameters if p not in ("self", "args", "kwargs", "arguments")]
    explained = _explained(thing)
    missing = [p for p in parameters if p not in explained]
    assert not missing, f"{name} does not explain {', '.join(missing)}"


def _explained(thing: object) -> set[str]:
    """The arguments that a docstring, or that of a base class, has a line for under Args."""
    kinds = inspect.getmro(thing) if inspect.isclass(thing) else (thing,)
    texts = [inspect.cleandoc(getattr(kind, "__doc__", None) or "") for kind in kinds]
    texts += [inspect.cleandoc(kind.__init__.__doc__ or "") for kind in kinds if inspect.isclass(kind)]
    lines = [line for text in texts for line in text.partition("Args:\n")[2].splitlines()]
    names = [match[1] for line in lines if (match := re.match(r"    ([\w, ]+): ", line))]
    return {name.strip() for group in names for name in group.split(",")}
