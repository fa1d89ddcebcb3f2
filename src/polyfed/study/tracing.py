"""From an experiment to its front: point after point, and what they are together. The form is in `study/front.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.core.errors import BadInput, Interrupted, PolyfedError, RunStopped, nearest, shown
from polyfed.study.cells import LOCK, check_folder, locked, read_study, write_study
from polyfed.study.front import FILE, FORMAT, Front, Kind, Point
from polyfed.study.pareto import Points, dominated_volume, non_dominated, reference_of, spacing
from polyfed.study.path import Step, Tried, next_preference, next_weights
from polyfed.study.runner import AGAIN, Outcome
from polyfed.study.training import Trainer, Wanted

POINTS = 11


def trace(
    trainer: Trainer,
    folder: Path,
    name: str,
    kinds: Sequence[Kind],
    points: int | None = None,
    reference: Mapping[str, float] | None = None,
    told: Callable[[Point, int, int], None] = lambda point, done, of: None,
) -> Front:
    """Train the points of a front that are missing, one after the other.

    Args:
        trainer: how a point is trained.
        folder: of the front; it is locked meanwhile.
        name: the experiment's.
        kinds: which points there are: preferences, scalarisations, or both.
        points: how many of each kind; 11, or one more than there are objectives.
        reference: the reference point of the hypervolume, by objective; if not given, it follows from the points.
        told: is told of every point, how many are done, and of how many.
    """
    M = len(trainer.objectives)
    if M < 2:
        raise BadInput(f"A front is between two objectives or more. Found {M}: {shown(list(trainer.objectives))}.")
    N = max(POINTS, M + 1) if points is None else points
    if N < M + 1:
        raise BadInput(f"--points should be at least {M + 1}, the middle and an end for each objective. Found {N}.")
    _check_reference(reference, trainer.objectives)
    check_folder(folder, "front", FILE)
    with locked(folder):
        study = _Study(trainer, folder, name, reference)
        new = read_study(folder, FILE) is None
        try:
            if new:
                study.write("running")
            for kind in kinds:
                study.walk(kind, N, lambda point: told(point, len(study.points), N * len(kinds)))
        except PolyfedError as error:
            if new and not study.points and not isinstance(error, Interrupted):
                _leave(folder)
            raise
        return study.write("done")


def _leave(folder: Path) -> None:
    """What could not be begun leaves no front behind."""
    with suppress(OSError):
        for name in (FILE, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _check_reference(reference: Mapping[str, float] | None, objectives: Sequence[str]) -> None:
    if reference is None:
        return
    for name in reference:
        if name not in objectives:
            raise BadInput(f"--reference names {shown(name)}, which is no objective here.{nearest(name, objectives)}")
    if missing := next((name for name in objectives if name not in reference), None):
        raise BadInput(f"--reference needs a loss for every objective; {shown(missing)} is missing.")


class _Study:
    """The points so far.

    Args:
        trainer, folder, name, reference: as in `trace`.
    """

    def __init__(self, trainer: Trainer, folder: Path, name: str, reference: Mapping[str, float] | None) -> None:
        self.trainer, self.folder, self.name, self.reference = trainer, folder, name, reference
        self.points: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {"split": "", "metrics": {}}

    def walk(self, kind: Kind, points: int, told: Callable[[Point], None]) -> None:
        """Train the points of one kind."""
        rows: list[dict[str, Any]] = []
        while len(rows) < points and (step := self._next(kind, rows, points)) is not None:
            start = "" if step.start is None else str(rows[step.start]["run"])
            preference = dict(zip(self.trainer.objectives, map(float, step.preference), strict=True))
            wanted = Wanted(kind, preference, start)
            try:
                outcome = self.trainer.train(wanted)
            except (Interrupted, KeyboardInterrupt):
                raise Interrupted(f"Stopped; {AGAIN}.") from None
            if not rows and outcome.summary is None:  # the others would begin with it
                raise BadInput(outcome.why) if outcome.bad else RunStopped(outcome.why)
            rows.append(self._row(wanted, outcome))
            self.points.append(rows[-1])
            self.write("running")
            told(Point.read(self.folder, rows[-1]))

    def _next(self, kind: Kind, rows: Sequence[Mapping[str, Any]], points: int) -> Step | None:
        names = self.trainer.objectives
        tried = [Tried(_vector(row["preference"], names), _losses(row, names)) for row in rows]
        choose = next_preference if kind == "preference" else next_weights
        return choose(tried, len(names), points)

    def _row(self, wanted: Wanted, outcome: Outcome) -> dict[str, Any]:
        """A point of front.json."""
        row: dict[str, Any] = {
            "run": outcome.run.name, "kind": wanted.kind, "preference": dict(wanted.preference),
            "start": wanted.start or None, "state": "failed", "why": outcome.why, "round": 0, "losses": {},
            "metrics": {}, "non_dominated": False,
        }  # fmt: skip
        if outcome.summary is None:
            return row
        found: Mapping[str, Mapping[str, float | None]] = outcome.summary["objectives"]
        row |= {
            "round": outcome.summary["rounds"],
            "losses": {name: own.get("loss") for name, own in found.items()},
            "metrics": {name: {k: v for k, v in own.items() if k != "loss"} for name, own in found.items()},
        }
        finite = all(row["losses"].get(name) is not None for name in self.trainer.objectives)
        row |= {"state": "done"} if finite else {"why": "Its losses are not finite; choose a smaller lr."}
        better = outcome.summary.get("better", {})
        self.about["split"] = outcome.summary["split"]
        self.about["metrics"] = {name: {k: w for k, w in of.items() if k != "loss"} for name, of in better.items()}
        return row

    def write(self, state: str) -> Front:
        """front.json, as far as the front is known."""
        names = list(self.trainer.objectives)
        done = [row for row in self.points if row["state"] == "done"]
        losses = np.array([_vector(row["losses"], names) for row in done]).reshape(len(done), len(names))
        for row, good in zip(done, non_dominated(losses), strict=True):
            row["non_dominated"] = bool(good)
        corner = reference_of(losses) if self.reference is None and done else []
        corner = [float(self.reference[name]) for name in names] if self.reference is not None else corner
        kinds = {row["kind"]: [one["kind"] == row["kind"] for one in done] for row in done}
        found = {
            "format": FORMAT, "kind": "front", "name": self.name, "state": state, "objectives": names, **self.about,
            "points": _along(self.points, names), "reference": dict(zip(names, corner, strict=False)),
            "reference_from": "points" if self.reference is None else "given", **_measures(losses, losses, corner),
            "by_kind": {
                kind: {
                    "points": sum(own), "non_dominated": int(non_dominated(losses[own]).sum()),
                    **_measures(losses[own], losses, corner),
                }
                for kind, own in kinds.items()
            },
        }  # fmt: skip
        write_study(self.folder, found, FILE)
        return Front(self.folder, found)


def _measures(some: Points, all_points: Points, reference: Sequence[float]) -> dict[str, Any]:
    """What some of the points are together; losses are scaled by the range of all."""
    if not len(some):
        return {"hypervolume": None, "spacing": None}
    good = non_dominated(some)
    low, span = all_points.min(0), np.ptp(all_points, axis=0)
    return {
        "hypervolume": dominated_volume(some, reference),
        "spacing": spacing((some[good] - low) / np.where(span > 0, span, 1.0)),
    }


def _along(points: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Preferences before scalarisations, each from the first objective's end to the other's."""
    return sorted(points, key=lambda row: (row["kind"], [-row["preference"][name] for name in names]))


def _vector(values: Mapping[str, float], names: Sequence[str]) -> Points:
    return np.array([values[name] for name in names], dtype=float)


def _losses(row: Mapping[str, Any], names: Sequence[str]) -> Points | None:
    return _vector(row["losses"], names) if row["state"] == "done" else None
