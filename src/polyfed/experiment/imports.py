"""Users' own functions, which an experiment names as 'module:function': found beside its file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from polyfed.core.registry import forget

_added: set[str] = set()  # folders of experiments read in this process


def add_import_folder(folder: str) -> None:
    """Let an experiment name functions that lie in a folder, before those of experiments read earlier."""
    if not folder:
        return
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be younger than the last look into its folder
    _forget_others(Path(folder))
    _added.add(folder)


def _forget_others(folder: Path) -> None:
    """Two experiments may each have a `mine.py`, or a package `mine`: what another's registered goes with it."""
    names = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and getattr(module, "__file__", None):
            file = Path(str(module.__file__))
            root = file.parents[name.count(".") + (file.name == "__init__.py")]
            if root != folder and str(root) in _added:
                del sys.modules[name]
                forget(name)
