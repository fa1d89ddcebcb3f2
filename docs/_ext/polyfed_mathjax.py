"""Equations by MathJax, from a package and not from a server: the site needs no network when it is read.

One file, which draws with paths of its own and so needs no fonts either.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCRIPT = "tex-svg.js"


def copy(app: Any, error: Exception | None) -> None:
    found = find_spec("sphinx-mathjax-offline")
    if error is None and found is not None and found.origin is not None:
        shutil.copy(Path(found.origin).parent / "static" / "mathjax" / SCRIPT, Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = SCRIPT
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
