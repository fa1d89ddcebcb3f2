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

PACKAGE, SCRIPT = "sphinx-mathjax-offline", "tex-svg.js"
CONFIG = {  # the menu would offer speech, whose rules come from a server; what a screen reader reads is in the page
    "options": {
        "enableMenu": False,
        "menuOptions": {"settings": {"explorer": False, "collapsible": False, "assistiveMml": True}},
    },
}
AWAY = r"[\"']?\s*(?:https?:)?//[^\"'\s>)]*"
FETCHED = {
    "*.html": re.compile(
        rf"<(?:script|img|iframe|embed|source|video|audio)\b[^>]*\ssrc\s*=\s*{AWAY}"
        r"|<link\b(?=[^>]*\srel\s*=\s*[\"']?[^\"'>]*(?:stylesheet|icon|load|connect|prefetch))"
        rf"[^>]*\shref\s*=\s*{AWAY}",
        re.IGNORECASE,
    ),
    "*.css": re.compile(rf"@import\s*{AWAY}|\burl\(\s*{AWAY}", re.IGNORECASE),
}


def refuse_what_is_fetched(app: Any, error: Exception | None) -> None:
    """A page that a browser would have to ask a server for something is an error."""
    if error is not None or app.builder.format != "html":
        return
    for files, fetched in FETCHED.items():
        for path in Path(app.outdir).rglob(files):
            if found := fetched.search(path.read_text(encoding="utf-8")):
                raise ExtensionError(f"{path.name} needs the network when it is read: {found[0]}")


def copy(app: Any, error: Exception | None) -> None:
    """MathJax beside the pages."""
    if error is not None or app.builder.format != "html":
        return
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ExtensionError(f"Equations need the package {PACKAGE}: pip install 'polyfed[docs]'.")
    shutil.copy(Path(found.origin).parent / "static" / "mathjax" / SCRIPT, Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = SCRIPT
    app.config.mathjax3_config = CONFIG
    app.connect("build-finished", copy)
    app.connect("build-finished", refuse_what_is_fetched)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
