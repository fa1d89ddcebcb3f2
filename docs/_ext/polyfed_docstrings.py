"""Docstrings are prose with formulas, not reStructuredText: what has a meaning there is escaped before it is read.

`x` in single backticks is code; a block set in after a line that ends with a colon is shown as it stands.
"""

from __future__ import annotations

import re
from typing import Any

SECTIONS = ("Args:", "Returns:", "Yields:", "Raises:", "Attributes:")


def readable(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    made: list[str] = []
    literal: int | None = None  # how far the line stands in that introduced the block we are in
    for i, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and depth <= literal:
            literal = None
        if literal is not None:
            made.append(line)
            continue
        after = next((later for later in lines[i + 1 :] if later.strip()), "")
        set_in = len(after) - len(after.lstrip()) > depth
        blank = i + 1 < len(lines) and not lines[i + 1].strip()
        if line.rstrip().endswith(":") and blank and set_in and line.strip() not in SECTIONS:
            literal = depth
            line = line.rstrip() + ":"
        made.append(_escaped(line))
    lines[:] = made


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{p}`" if p.startswith("`") else re.sub(r"([|*\\]|_(?!\w))", r"\\\1", p) for p in parts)


def plain_types(app: Any, domain: str, kind: str, node: Any) -> None:
    """Types without the rules that check them: a setting's range is in the tables of the methods' pages."""
    for found in app.env.current_document.autodoc_annotations.values():
        for name, text in found.items():
            found[name] = _plain(re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text))


def _plain(text: str) -> str:
    """Annotated[X, ...] as X, however deep."""
    while (start := text.find("Annotated[")) >= 0:
        depth, first = 0, 0
        for end in range(start + len("Annotated["), len(text)):
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(text[end], 0)
            if text[end] == "," and depth == 0 and not first:
                first = end
            if depth < 0:
                break
        before = text[:start].removesuffix("~typing.").removesuffix("typing.")
        text = before + text[start + len("Annotated[") : first or end] + text[end + 1 :]
    return text


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", readable, priority=100)  # before napoleon
    app.connect("object-description-transform", plain_types, priority=100)  # before autodoc puts types in
    return {"parallel_read_safe": True, "parallel_write_safe": True}
