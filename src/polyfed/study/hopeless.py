"""What the trials of a search are judged by, on validation rows, and when one is ended before its last round.

A trial is hopeless when, at an evaluation after the first fifth of its rounds, its best so far is worse in every
objective than the median of the trials that came to their end had at that round; there have to be four of those. With
one number in place of the objectives, the same holds of that number. One whose losses are no numbers is, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from polyfed.algorithms.models.multimodel import qualified
from polyfed.callbacks.criterion import Criterion
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.experiment.reading import as_value
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.plan import Plan
from polyfed.study.grid import split

SPLIT: Literal["valid"] = "valid"
EARLIEST = 0.2  # of the rounds
FEWEST = 4  # trials that came to their end
MOST_OBJECTIVES = 8  # of more nearly every trial is better than the others in one of them
VOLUME = "hypervolume:"
Scores = tuple[float, ...]  # all to be made small
Curve = dict[int, Scores]  # by round


class Judge:
    """Reads out of a round's line what trials are compared by.

    Args:
        objectives: their names; each one's validation loss is a number of its own.
        criterion: in place of them, one number.
    """

    def __init__(self, objectives: Sequence[str], criterion: Criterion | None = None) -> None:
        self.objectives, self.criterion = tuple(objectives), criterion

    @property
    def columns(self) -> tuple[str, ...]:
        """What its numbers are called."""
        return self.objectives if self.criterion is None else (str(self.criterion),)

    @property
    def higher(self) -> bool:
        """Whether the one number is better higher."""
        return self.criterion is not None and self.criterion.higher

    def figures(self, line: Mapping[str, Any]) -> Scores | None:
        """The numbers as a person reads them; None of a round without an evaluation."""
        found = line.get("splits", {}).get(SPLIT)
        if found is None:
            return None
        if self.criterion is not None:
            return (self.criterion.value(line),)
        losses = found.get("losses", {})
        return tuple(math.nan if losses.get(name) is None else float(losses[name]) for name in self.objectives)

    def scores(self, figures: Scores) -> Scores:
        """The numbers so that smaller is better."""
        return tuple(-value for value in figures) if self.higher else figures

    def curve(self, lines: Sequence[Mapping[str, Any]]) -> Curve:
        """The scores of a run's rounds, of those that were evaluated."""
        found = {line["round"]: self.figures(line) for line in lines}
        return {round: self.scores(figures) for round, figures in found.items() if figures is not None}


def limits(curves: Sequence[Curve]) -> Curve:
    """What a trial has to be better than, by round.

    Args:
        curves: of the trials that came to their end.
    """
    rounds = sorted({round for curve in curves for round in curve})
    there = {round: [curve[round] for curve in curves if round in curve] for round in rounds}
    return {
        round: tuple(median(column) for column in zip(*some, strict=True))
        for round, some in there.items()
        if len(some) >= FEWEST
    }


class Hopeless(Callback):
    """Ends a trial that is hopeless.

    Args:
        judge: reads the scores.
        limits: what has to be reached, by round.
    """

    def __init__(self, judge: Judge, limits: Curve) -> None:
        self.judge, self.limits = judge, limits
        self.best: Scores = ()
        self.ended = False

    def on_start(self, run: RunView) -> None:
        self.best, self.ended = (), False
        for round, scores in self.judge.curve(run.history()).items():  # of a run that goes on
            self._look(run, round, scores)

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        figures = self.judge.figures(line)
        if figures is not None:
            self._look(run, line["round"], self.judge.scores(figures))

    def _look(self, run: RunView, round: int, scores: Scores) -> None:
        if not all(map(math.isfinite, scores)):
            self._end(run, f"Ended after round {round}: its validation losses are no numbers.")
            return
        self.best = tuple(map(min, scores, self.best or scores))
        limit = self.limits.get(round)
        if limit is None or not EARLIEST * run.rounds <= round < run.rounds:
            return
        if all(own > other for own, other in zip(self.best, limit, strict=True)):
            self._end(run, f"Ended early, after round {round}: worse than the median of the trials before.")

    def _end(self, run: RunView, why: str) -> None:
        self.ended = True
        run.stop(why)

    def summary(self, run: RunView) -> Mapping[str, Any]:
        return {"ended_early": True} if self.ended else {}


# by one number


def read_judge(by: Any, plan: Plan) -> tuple[Judge, str]:
    """What a search compares by, and a sentence on it where there is something to say.

    Args:
        by: None for every objective's loss; 'loss' or 'accuracy' for a mean, 'left.accuracy' for one objective's,
            'left=0.6,right=0.4' or a dict for a preference (the largest r_k F_k), 'hypervolume:left=3,right=3' for what
            is dominated up to that point.
        plan: of the experiment, whose objectives there are.
    """
    names = [qualified(m, name) for m, part in plan.parts.items() for name in part.problem.names]
    if by is None and len(names) <= MOST_OBJECTIVES:
        return Judge(names), ""
    criterion = _criterion("loss" if by is None else by, names)
    try:
        criterion.check(plan)
    except BadInput as error:
        raise BadInput(str(error).replace("A callback names", "--by names")) from error
    said = f"There are {len(names)} objectives: trials are compared by the mean of their losses; --by changes that."
    return Judge(names, criterion), said if by is None else ""


def _criterion(by: Any, names: Sequence[str]) -> Criterion:
    if isinstance(by, Mapping):
        return Criterion(preference=_numbers(by, "by"), split=SPLIT)
    if not isinstance(by, str) or not by.strip():
        raise BadInput(f"--by should name a metric, or give a preference: left=0.6,right=0.4. Found {shown(by)}.")
    text = by.strip().removeprefix("mean ")
    if text.startswith(VOLUME):
        return Criterion(reference=_pairs(text.removeprefix(VOLUME), by), split=SPLIT)
    if "=" in text:
        return Criterion(preference=_pairs(text, by), split=SPLIT)
    if text in names:
        return Criterion(objective=text, split=SPLIT)
    objective, dot, metric = text.rpartition(".")
    if dot and objective not in names:
        raise BadInput(f"--by names {shown(objective)}, which is no objective here.{nearest(objective, names)}")
    return Criterion(objective=objective, metric=metric, split=SPLIT)


def _pairs(text: str, by: str) -> dict[str, float]:
    words = [word.partition("=") for word in split(text)]
    return _numbers({key.strip(): as_value(value.strip()) for key, _, value in words}, by)


def _numbers(pairs: Mapping[Any, Any], by: str) -> dict[str, float]:
    wrong = [v for v in pairs.values() if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v)]
    if wrong or not pairs or any(value < 0 for value in pairs.values()):
        raise BadInput(
            f"--by needs a number from 0 on for each objective, as in left=0.6,right=0.4. Found {shown(by)}."
        )
    return {str(key): float(value) for key, value in pairs.items()}
