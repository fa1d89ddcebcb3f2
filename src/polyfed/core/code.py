"""Whose code an experiment may name, as 'module:function': its own folder's, and packages that a person has allowed.

A file is data, whoever wrote it. The list says what may run, never what may not, and is looked at before anything is
imported. A program that passes names from Python is not concerned: its author chose them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from polyfed.core.errors import BadInput, shown

ALLOW = "if you trust it, add --allow-code {package}"


@dataclass
class CodeRule:
    """What the names in the experiment at hand may import.

    Args:
        folders: the experiment's own, newest last.
        packages: installed packages, or modules of them, that the command line allows.
        elsewhere: a folder that a run's copy of the experiment names, and that nobody has vouched for.
        remedy: how a person allows a package.
    """

    folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    elsewhere: str = ""
    remedy: str = ALLOW
    noted: bool = False


_rule: CodeRule | None = None  # None: nothing was read from a file in this process
_lent: list[str] = []  # folders of experiments at the end of sys.path, newest first
_trusted: ContextVar[bool] = ContextVar("polyfed_trusted_names", default=False)


def hold_to(rule: CodeRule | None) -> None:
    """From now on names are held to this rule; None for a process that has read no file."""
    global _rule
    _rule = rule


@contextmanager
def rule_restored() -> Iterator[None]:
    """Whatever rule is made inside, the one from before holds afterwards: for reading a run within a program."""
    before = _rule
    try:
        yield
    finally:
        hold_to(before)


def hold_to_some_rule() -> None:
    """Settings are about to be built: without a rule, none of their names may import anything."""
    if _rule is None:
        hold_to(CodeRule())


@contextmanager
def trusted() -> Iterator[None]:
    """Names that come from a Python program, or from a node's own configuration."""
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def allowed_packages(words: Iterable[str]) -> tuple[str, ...]:
    """The values of --allow-code, checked."""
    found = tuple(word.strip() for word in words)
    for word in found:
        if not all(part.isidentifier() for part in word.split(".")):
            raise BadInput(f"--allow-code should be the name of a package or module, as in mylab. Found {shown(word)}.")
    return found


def check_code(name: str, kind: str) -> None:
    """Refuse a name whose module is not on the list; one in the experiment's folder makes that folder importable."""
    if _rule is None or _trusted.get():
        return
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    if _listed(module, _rule.packages):
        if _homes(top) is None and _rule.elsewhere:
            _importable(_rule.elsewhere)
        return
    for folder in reversed(_rule.folders):
        if importlib.machinery.PathFinder.find_spec(top, [folder]) is not None:
            _own(name, kind, top, folder, _rule)
            return
    if _rule.elsewhere and importlib.machinery.PathFinder.find_spec(top, [_rule.elsewhere]) is not None:
        raise BadInput(
            f"The {kind} {shown(name)} is code in {shown(_rule.elsewhere)}, as this run's directory says, and that may "
            f"be anybody's; {_rule.remedy.format(package=top)}."
        )
    if top in sys.modules or _homes(top) is not None:
        raise BadInput(
            f"The {kind} {shown(name)} names code of {shown(top)}, which is neither beside the experiment's file nor "
            f"allowed; {_rule.remedy.format(package=top)}."
        )
    raise BadInput(
        f"The {kind} {shown(name)} cannot be imported (no module {shown(top)}); write 'module:name', the module a file "
        "beside the experiment, without '.py', or in an installed package."
    )


def _own(name: str, kind: str, top: str, folder: str, rule: CodeRule) -> None:
    """Make the folder importable, if it is the one that Python would take the module from."""
    before = list(sys.path)
    _importable(folder)
    if _homes(top) != [str(Path(folder).resolve())]:
        sys.path[:] = before
        raise BadInput(
            f"The {kind} {shown(name)} lies beside the experiment, but Python has another module {shown(top)}; rename "
            "the file."
        )
    if not rule.noted:
        rule.noted = True
        note = f"polyfed: note: the code in {shown(folder)} runs, as the experiment says ({shown(name)})."
        print(note, file=sys.stderr)


def _importable(folder: str) -> None:
    """At the end of the path, where it takes no installed module's place, and before folders of other experiments."""
    if folder in _lent or folder not in sys.path:
        _lent[:] = [folder, *(one for one in _lent if one != folder and one in sys.path)]
        sys.path[:] = [*(one for one in sys.path if one not in _lent), *_lent]
    importlib.invalidate_caches()  # the file may be younger than the last look into its folder


def _homes(top: str) -> list[str] | None:
    """The folders that Python would import a top-level module from, without importing it; none for its own built in."""
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError, AttributeError):  # __main__, or no name at all
        return [] if top in sys.modules else None
    if spec is None:
        return None
    files = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.has_location and spec.origin else [])
    return [str(Path(file).resolve().parent) for file in files]


def _listed(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
