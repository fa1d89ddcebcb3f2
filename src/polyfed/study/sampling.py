"""Which values the next trial takes: Optuna's TPE, from what the trials before have given.

Each draw is a function of the seed, the trial's number and the trials that it sees, and of nothing that was drawn
before. So a search that was killed and goes on draws what it would have drawn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyfed.core.errors import BadInput
from polyfed.core.keys import key
from polyfed.core.settings import Settings
from polyfed.experiment.reading import override
from polyfed.study.grid import as_text
from polyfed.study.parameters import Parameter, applies

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

REDRAWS = 20  # for values that no trial has had yet
Values = dict[str, Any]  # by the parameter's key


@dataclass(frozen=True)
class Seen:
    """A finished trial, as the next draws see it.

    Args:
        values: of its parameters.
        scores: what is made small, one or several numbers; None of a trial that ended early or failed.
    """

    values: Values
    scores: tuple[float, ...] | None


def check_installed() -> None:
    """Refuse to search without Optuna."""
    if importlib.util.find_spec("optuna") is None:
        raise BadInput("A search needs optuna: pip install 'polyfed[tune]'.")


class Sampler:
    """Draws the values of trials.

    Args:
        parameters: what may be changed.
        settings: the experiment's.
        seed: of all draws.
        first: values that the first trial takes where they are in range: the experiment's own.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings, seed: int, first: Values) -> None:
        self.parameters, self.settings, self.seed = parameters, settings, seed
        self.first = {p.key: _told(p, first[p.key]) for p in parameters if p.key in first and p.holds(first[p.key])}

    def draw(self, number: int, seen: Sequence[Seen], taken: Sequence[Values]) -> Values | None:
        """The values of a trial; None where nothing was drawn that no trial before has had.

        Args:
            number: the trial's, from 0 on.
            seen: the finished trials that it learns from.
            taken: the values of all trials before it.
        """
        for attempt in range(REDRAWS):
            values = self._draw(number, attempt, seen)
            if values not in taken:
                return values
        return None

    def _draw(self, number: int, attempt: int, seen: Sequence[Seen]) -> Values:
        with _quiet():
            study = make_study(self.parameters, seen, key(self.seed, "trial", number, attempt) >> 33)
            if number == attempt == 0:
                study.enqueue_trial(self.first)
            trial = study.ask()
        values = {p.key: _suggested(p, trial) for p in self.parameters if p.names}
        named = changed(self.settings, values)
        values |= {p.key: _suggested(p, trial) for p in self.parameters if not p.names and applies(p.key, named)}
        return {p.key: values[p.key] for p in self.parameters if p.key in values}


def make_study(parameters: Sequence[Parameter], seen: Sequence[Seen], seed: int = 0) -> Study:
    """Trials as a study of Optuna's, in memory; those that ended early or failed are its pruned ones.

    Args:
        parameters: of the search.
        seen: the trials.
        seed: of what it draws next.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    many = max((len(one.scores) for one in seen if one.scores is not None), default=1)
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(directions=["minimize"] * many, sampler=sampler)
    for one in seen:
        own = [p for p in parameters if p.key in one.values]
        study.add_trial(
            create_trial(
                state=TrialState.PRUNED if one.scores is None else TrialState.COMPLETE,
                values=None if one.scores is None else list(one.scores),
                params={p.key: _told(p, one.values[p.key]) for p in own},
                distributions={p.key: _distribution(p) for p in own},
            )
        )
    return study


def changed(settings: Settings, values: Values, told: Callable[[str], None] = lambda text: None) -> Settings:
    """The experiment with the values of a trial.

    Args:
        settings: the experiment's.
        values: the trial's.
        told: is told what of the experiment's own is left out, since a newly named method does not have it.
    """
    return override(deepcopy(settings), [f"{key}={as_text(value)}" for key, value in values.items()], told=told)


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices:
        return CategoricalDistribution([as_text(value) for value in parameter.choices])
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _told(parameter: Parameter, value: Any) -> Any:
    """A value as Optuna has it: lists and words alike are texts."""
    return as_text(value) if parameter.choices else value


def _suggested(parameter: Parameter, trial: Trial) -> Any:
    if parameter.choices:
        texts = [as_text(value) for value in parameter.choices]
        return parameter.choices[texts.index(str(trial.suggest_categorical(parameter.key, texts)))]
    if parameter.whole:
        return trial.suggest_int(parameter.key, int(parameter.low), int(parameter.high))
    return parameter.rounded(trial.suggest_float(parameter.key, parameter.low, parameter.high, log=parameter.log))


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of every study that is made."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
