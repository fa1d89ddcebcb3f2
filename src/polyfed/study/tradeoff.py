"""`polyfed.front`: the trade-off between the objectives of an experiment, or of a problem and a federation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from polyfed.algorithms import Algorithm
from polyfed.algorithms import algorithms as methods
from polyfed.core.code import trusted
from polyfed.core.errors import BadInput, shown, visible
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.core.settings import choose
from polyfed.experiment.building import check_algorithm
from polyfed.experiment.recording import made
from polyfed.study.asked import read_experiment
from polyfed.study.cells import Cell
from polyfed.study.front import Front, Kind, Point
from polyfed.study.grid import read_settings
from polyfed.study.runner import Line
from polyfed.study.tracing import trace
from polyfed.study.training import DEFAULT, SETTING, OfExperiment, OfPython, Trainer

Method = Literal["preference", "scalarisation", "both"]
KINDS: dict[str, tuple[Kind, ...]] = {
    "preference": ("preference",),
    "scalarisation": ("scalarisation",),
    "both": ("preference", "scalarisation"),
}


def front(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *,
    problem: Problem | Callable[[], Problem] | str | None = None,
    federation: Federation | Callable[[], Federation] | str | None = None,
    algorithm: Algorithm | str | Mapping[str, Any] | None = None,
    points: int | None = None,
    rounds: int | None = None,
    first_rounds: int | None = None,
    method: Method = "preference",
    reference: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    seed: int | None = None,
    out: str | Path | None = None,
    allow_code: Sequence[str] = (),
    progress: bool = False,
    **more: Any,
) -> Front:
    """Train a model for each of several preferences; called again, only what is missing is trained.

    Args:
        experiment: a TOML file, a built-in name, or the keys of one as a dict; leave it out for a problem of your own.
        problem: the model and its objectives, as in `polyfed.train`.
        federation: the clients' data, as there.
        algorithm: with a problem: the method, which has 'preference' (FedCMOO-Pref) or, for scalarisations, 'weights'
            (FedAvg); for both kinds a dict, {'preference': ..., 'scalarisation': ...}.
        points: how many of each kind; 11 if not given, or one more than there are objectives.
        rounds: of every point but the first, which begins with its neighbour's model; half of the first's if not given.
        first_rounds: of the first point; the experiment's, or 100, if not given.
        method: 'preference' (points where r_1 F_1 = ... = r_M F_M), 'scalarisation' (fixed weights), or 'both'.
        reference: the reference point of the hypervolume, a loss by objective; if not given, the worst loss of any
            point and a tenth of the range more.
        settings: keys and values that differ from the experiment, {'algorithm.lr': 0.1}. A key of [algorithm] applies
            to the methods that have it.
        seed: the runs'; the experiment's, or 0, if not given.
        out: the front's folder; runs/front-NAME if not given.
        allow_code: packages whose code the experiment's file may name.
        progress: whether progress is shown on stderr.
        more: with a problem, further arguments of `polyfed.train`: cohort, evaluate, engine, layers, ...

    Returns:
        The points, their models, and how good they are together.
    """
    kinds = KINDS.get(method)
    if kinds is None:
        raise BadInput(f"method should be 'preference', 'scalarisation' or 'both'. Found {shown(method)}.")
    for name, value in (("points", points), ("rounds", rounds), ("first_rounds", first_rounds)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadInput(f"{name} should be a whole number from 1 on. Found {shown(value)}.")
    watch = _Watch(progress)
    with ExitStack() as stack:
        if problem is not None or federation is not None:
            if experiment is not None or problem is None or federation is None or settings or algorithm is None:
                raise BadInput("A front is of an experiment, or of a problem with its federation and its algorithm.")
            stack.enter_context(trusted())
            where = Path(out or "runs/front-python")
            arguments = {"seed": 0 if seed is None else seed, **more}
            own = made(problem, Problem, "problem")[0], made(federation, Federation, "federation")[0]
            trainer: Trainer = OfPython(
                where, *own, _methods(algorithm, kinds), first_rounds or 100, rounds, arguments, watch.line
            )
            return trace(trainer, where, "python", kinds, points, reference, watch.point)
        if experiment is None or more or algorithm is not None:
            raise BadInput("Name an experiment, or give problem, federation and algorithm with arguments of train.")
        name, keys, code = read_experiment(experiment, allow_code, stack)
        keys |= {key: value for key, value in (("rounds", first_rounds), ("seed", seed)) if value is not None}
        where = Path(out or f"runs/front-{name}")
        of = OfExperiment(where, name, keys, read_settings(settings), kinds, rounds, code, watch.line)
        for note in of.notes if progress else ():
            print(visible(note), file=sys.stderr)
        return trace(of, where, name, kinds, points, reference, watch.point)


def _methods(given: Any, kinds: Sequence[Kind]) -> dict[Kind, Algorithm]:
    """The method of each kind, each one that can be told where to go."""
    by_kind = given if isinstance(given, Mapping) and "name" not in given else dict.fromkeys(kinds, given)
    found: dict[Kind, Algorithm] = {}
    for kind in kinds:
        if kind not in by_kind:
            raise BadInput(f"A front of both kinds needs two methods, by kind. Found none for {kind!r}.")
        entry = by_kind[kind]
        named = choose(methods, entry, "algorithm", Algorithm) if isinstance(entry, str | Mapping) else entry
        found[kind] = check_algorithm(named)
        if not hasattr(found[kind], SETTING[kind]):
            raise BadInput(
                f"The points of kind {kind!r} need a method with {SETTING[kind]!r}, as {DEFAULT[kind]!r} has. "
                f"Found {found[kind].title!r}."
            )
    return found


class _Watch:
    """Shows on stderr how far a front is: a line for each point, in a terminal also the round.

    Args:
        shown: whether it does.
    """

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.live = shown and sys.stderr.isatty()

    def line(self, cell: Cell, line: Line) -> None:
        if self.live:
            print(f"\r{visible(cell.row)}: round {line['round']}\033[K", end="", file=sys.stderr, flush=True)

    def point(self, point: Point, done: int, of: int) -> None:
        if not self.shown:
            return
        r = ", ".join(f"{name} {value:.3g}" for name, value in point.preference.items())
        what = ", ".join(f"{name} {value:.4g}" for name, value in point.losses.items())
        what = f"losses {what}" if point.state == "done" else f"failed: {point.why}"
        before = "\r\033[K" if self.live else ""
        print(f"{before}{done} of {of}, {point.kind} {visible(r)}: {visible(what)}", file=sys.stderr, flush=True)
