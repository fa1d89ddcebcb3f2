"""All that polyfed depends on directly, and under which licences, as the table of docs/licences.md.

python tools/licences.py > docs/licences.md     # with all extras installed
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
HEAD = """\
# Licences

polyfed is under Apache-2.0; this is what it asks for directly, with the licence that each names in its metadata.

`core` is always installed, the rest with its extra: `pip install 'polyfed[front]'`. Nothing in `core`, nor what that
needs in turn, is under a licence of the GPL family (`tests/test_supply.py`). What a wheel brings along, such as its
compiler's runtime, is in the licence files inside it. `python tools/licences.py > docs/licences.md` makes this page.

"""


class Dependency(NamedTuple):
    """A direct dependency: where it is asked for (core or an extra), and what pyproject.toml says it is for."""

    group: str
    requirement: Requirement
    reason: str


def dependencies(text: str) -> Iterator[Dependency]:
    """Those of a pyproject.toml, core first; polyfed's own extras within an extra are left out."""
    project = tomllib.loads(text)["project"]
    for group, asked in {"core": project["dependencies"], **project["optional-dependencies"]}.items():
        for word in asked:
            requirement = Requirement(word)
            if requirement.name != project["name"]:
                yield Dependency(group, requirement, _reason(text, word))


def _reason(text: str, word: str) -> str:
    """The comment on a dependency's line; of several there, its own part where the comment has one for each."""
    line = next(line for line in text.splitlines() if f'"{word}"' in line)
    code, _, comment = line.partition("  #")
    words, parts = re.findall(r'"([^"]+)"', code), [part.strip() for part in comment.split(";")]
    return parts[words.index(word)] if len(parts) == len(words) > 1 else comment.strip()


def licences(package: str) -> list[str]:
    """What the installed package's metadata says: an expression, classifiers, the first line of a text."""
    found = metadata(package)
    classifiers = [c for c in found.get_all("Classifier") or [] if c.startswith("License ::")]
    named = [c.rpartition(" :: ")[2] for c in classifiers if c != "License :: OSI Approved"]
    lines = [line.strip() for line in "".join(found.get_all("License") or []).splitlines() if line.strip()]
    return [*(found.get_all("License-Expression") or []), *named, *lines[:1]] or ["unknown"]


def versions(requirement: Requirement) -> str:
    """Which versions, and where: the lower bound first."""
    marker = f" ({requirement.marker})" if requirement.marker else ""
    return ",".join(sorted(map(str, requirement.specifier), reverse=True)) + marker


def table(text: str) -> str:
    """The page: a row for each dependency."""
    rows = ["| package | version | asked for by | licence | for |", "|---|---|---|---|---|"]
    for group, requirement, reason in dependencies(text):
        reason = reason or str(metadata(requirement.name)["Summary"]).strip().rstrip(".")
        cells = requirement.name, versions(requirement), group, licences(requirement.name)[0], reason
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    try:
        page = table(PYPROJECT.read_text(encoding="utf-8"))
    except PackageNotFoundError as error:
        sys.exit(
            f"A licence is read from the installed package; {error.name} is not: pip install '.[dev,docs,release]'."
        )
    sys.stdout.write(page)
