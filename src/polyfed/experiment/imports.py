"""Users' own functions, which an experiment names as 'module:function': beside its file, or where it is allowed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from polyfed.core.code import ALLOW, CodeRule, allowed_packages, hold_to
from polyfed.core.registry import forget

_added: set[str] = set()  # folders of experiments read in this process


def use_code_of(
    folder: str, where: Path, recorded: str = "", packages: Sequence[str] = (), remedy: str = ALLOW
) -> None:
    """Hold the names in an experiment to its own folder and to packages that a person allows.

    Nothing becomes importable before a name asks for it: a stray `numpy.py` beside an experiment is never run.

    Args:
        folder: where the experiment's file lies; '' for one that comes with polyfed.
        where: its file, or the run's directory.
        recorded: the folder that a run's copy of the experiment names. A run's directory may be anybody's, so that it
            counts only where it is above the run, or the folder one stands in: it cannot name, say, Python's own, and
            not the run's own directory, which may have come with code in it.
        packages: those allowed.
        remedy: how a person allows another.
    """
    run = where.resolve().parent
    around = (Path.cwd().resolve(), *run.parents)
    own = [folder] if folder else []
    if recorded and Path(recorded).is_absolute() and Path(recorded).resolve() in around and run != Path.cwd().resolve():
        own.append(str(Path(recorded).resolve()))
    hold_to(CodeRule(tuple(own), allowed_packages(packages), "" if recorded in ("", *own) else recorded, remedy))
    for place in own:
        _forget_others(Path(place))
        _added.add(place)


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
