"""Comparing methods on a problem and a federation of one's own: runs of `polyfed.train`, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from polyfed.algorithms import Algorithm
from polyfed.algorithms import algorithms as methods
from polyfed.core.errors import BadInput, Interrupted, PolyfedError, cut, shown
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings, choose
from polyfed.experiment.api import described, train
from polyfed.experiment.building import check_algorithm
from polyfed.experiment.fingerprint import fingerprint
from polyfed.experiment.reading import as_value
from polyfed.experiment.recording import made
from polyfed.run.directory import differences
from polyfed.run.plan import one_part
from polyfed.study.cells import Cell, make_cell
from polyfed.study.grid import Grid, as_text, read_choices
from polyfed.study.runner import AGAIN, Outcome, Teller, Told, finished

OURS = ("seed", "out", "resume", "keep", "progress")  # arguments of `train` that a comparison gives


@dataclass
class Own:
    """What is compared on.

    Args:
        problem: as `polyfed.train` takes it.
        federation: as there.
        arguments: further ones of `polyfed.train`.
        methods: by row, found when the grid is made.
    """

    problem: Problem | Callable[[], Problem] | str
    federation: Federation | Callable[[], Federation] | str
    arguments: dict[str, Any]
    methods: dict[str, Algorithm] = field(default_factory=dict)


def own_grid(own: Own, algorithms: Any, seeds: Sequence[int]) -> Grid:
    """The runs of a comparison; a run's name tells its method, arguments, model and data from others.

    Args:
        own: what is compared on; it gets the methods.
        algorithms: those methods.
        seeds: of the runs.
    """
    if ours := next((key for key in own.arguments if key in OURS), None):
        raise BadInput(f"A comparison gives {ours!r} to each run itself; use seeds, out and progress of compare.")
    own.methods = _named(algorithms)
    parts = one_part(made(own.problem, Problem, "problem")[0], made(own.federation, Federation, "federation")[0])
    common = {key: plainly(value) for key, value in own.arguments.items()} | {"fingerprint": fingerprint(parts)}
    grid = Grid()
    for row, method in own.methods.items():
        table = described(method)
        values = {f"algorithm.{key}": value for key, value in table.items()}
        grid.cells += [make_cell(row, seed, {**common, "algorithm": table}, values) for seed in seeds]
    return grid


def _named(given: Any) -> dict[str, Algorithm]:
    """Methods by the names of their rows: as given, or the method's and the settings in which those of one name
    differ."""
    entries = _tables(given) if isinstance(given, str) else given if isinstance(given, Iterable) else []
    found = [_method(entry) for entry in (given.values() if isinstance(given, Mapping) else entries)]
    if not found:
        raise BadInput(f"algorithms should be the methods to compare, a list or a dict of them. Found {shown(given)}.")
    if isinstance(given, Mapping):
        return dict(zip(map(str, given), found, strict=True))
    rows: dict[str, Algorithm] = {}
    for method in found:
        row = " ".join([method.title, *_differing(method, [one for one in found if one.title == method.title])])
        if row in rows:
            raise BadInput(f"Each method should be another. Found {shown(row)} twice; give each once.")
        rows[row] = method
    return rows


def _tables(text: str) -> list[Settings]:
    pairs = [(one.name, [setting.partition("=") for setting in one.given]) for one in read_choices(text)]
    return [{"name": name, **{key: as_value(value) for key, _, value in given}} for name, given in pairs]


def _method(entry: Any) -> Algorithm:
    named = choose(methods, entry, "algorithm", Algorithm) if isinstance(entry, str | Mapping) else entry
    return check_algorithm(named)


def _differing(method: Algorithm, others: Sequence[Algorithm]) -> list[str]:
    own = described(method)
    keys = dict.fromkeys(
        name.removeprefix(".") for one in others for name, _, _ in differences("", own, described(one))
    )
    return [f"{key}={cut(as_text(_at(own, key)), 40)}" for key in keys if _at(own, key) is not None]


def _at(table: Any, key: str) -> Any:
    for word in key.split("."):
        table = table.get(word) if isinstance(table, Mapping) else None
    return table


def plainly(value: Any) -> Any:
    """An argument as something that is the same for equal arguments."""
    if isinstance(value, Mapping):
        return {str(key): plainly(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(one) for one in value]
    if isinstance(value, str | int | float | None) or is_dataclass(value):
        return value if not is_dataclass(value) else repr(value)
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


class OwnRuns:
    """Runs cells one after the other in this process.

    Args:
        study: the folder.
        own: what is compared on.
        told: is told of every round.
    """

    def __init__(self, study: Path, own: Own, told: Told) -> None:
        self.study, self.own, self.told = study, own, told

    def __enter__(self) -> OwnRuns:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """All cells that are not finished; their outcomes as they come."""
        for cell in cells:
            yield finished(self.study, cell) or self._outcome(cell)

    def _outcome(self, cell: Cell) -> Outcome:
        run, own = self.study / cell.name, self.own
        arguments = {**own.arguments, "callbacks": self._callbacks(cell)}
        try:
            found = train(
                own.problem, own.federation, own.methods[cell.row], seed=cell.seed, out=run, resume=True, **arguments
            )
            return Outcome(cell, run, found.summary)
        except Interrupted as error:
            if isinstance(error.__cause__, PolyfedError):
                raise error.__cause__ from None
            raise Interrupted(f"Stopped; {AGAIN.replace('command', 'call')}.") from None
        except PolyfedError as error:
            return Outcome(cell, run, why=str(error), bad=isinstance(error, BadInput))

    def _callbacks(self, cell: Cell) -> list[Any]:
        """The caller's, anew for each run, since they remember."""
        given = self.own.arguments.get("callbacks", ())
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise BadInput(f"callbacks should be a list. Found {shown(given)}.")
        return [*copy.deepcopy(list(given)), Teller(cell, self.told)]
