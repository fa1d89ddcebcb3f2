"""Equations by MathJax, from a package and not from a server: the site needs no network when it is read.

One file, which draws with paths of its own and so needs no fonts either.
"""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

SCRIPT = "tex-svg.js"
FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//[^\"]*" + r"|<link[^>]*stylesheet[^>]*\"(?:https?:)?//[^\"]*"
)


def refuse_what_is_fetched(app: Any, error: Exception | None) -> None:
    """A page that a browser would have to ask a server for something is an error."""
    for path in Path(app.outdir).rglob("*.html") if error is None else ():
        if found := FETCHED.search(path.read_text(encoding="utf-8")):
            raise ExtensionError(f"{path.name} needs the network when it is read: {found[0]}")


def copy(app: Any, error: Exception | None) -> None:
    found = find_spec("sphinx-mathjax-offline")
    if error is None and found is not None and found.origin is not None:
        shutil.copy(Path(found.origin).parent / "static" / "mathjax" / SCRIPT, Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = SCRIPT
    app.connect("build-finished", copy)
    app.connect("build-finished", refuse_what_is_fetched)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
