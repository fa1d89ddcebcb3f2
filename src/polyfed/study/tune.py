"""`polyfed.tune`: which settings are best, by trials of an experiment on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polyfed.core.algorithm import Algorithm
from polyfed.core.code import trusted
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.study.own_search import OwnTrial, of_problem
from polyfed.study.parameters import read_parameters
from polyfed.study.sampling import check_installed
from polyfed.study.search import Request, of_experiment
from polyfed.study.trials import Watch, watching
from polyfed.study.tuned import Tuned
from polyfed.study.tuning import Tuning


def tune(
    experiment: str | Path | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | Iterable[str] = (),
    *,
    problem: Problem | Callable[[], Problem] | str | None = None,
    federation: Federation | Callable[[], Federation] | str | None = None,
    algorithm: Algorithm | str | Mapping[str, Any] = "fedcmoo",
    trials: int = 30,
    rounds: int | None = None,
    by: str | Mapping[str, float] | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    jobs: int | None = None,
    out: str | Path | None = None,
    allow_code: Sequence[str] = (),
    progress: bool = False,
    **more: Any,
) -> Tuned:
    """Search for the best settings of an experiment, by its objectives on validation rows; needs polyfed[tune].

    With several objectives the trials are kept that no other beats in all of them at once, and one of these is
    recommended. Hopeless trials are ended early. Called again, the search goes on where it was ended.

    Args:
        experiment: a TOML file, a built-in name, or the keys of one as a dict; leave it out for a problem of your own.
        parameters: what may be changed, by key: 'log:0.01..1' for a number drawn by its logarithm, '0.5..2' for a
            number, 'int:1..20' for a whole one, a list for a choice. A key that the method of a trial does not have is
            left out of that trial.
        problem: the model and its objectives, as in `polyfed.train`: the trials are then in this process.
        federation: the clients' data, as there, with validation rows.
        algorithm: with a problem, the method whose settings are varied; its name may be, too.
        trials: how many, those of earlier calls included.
        rounds: of each trial; the experiment's own if left out, which the best experiment keeps in any case.
        by: one number to compare by in place of all objectives' losses: 'accuracy' for its mean, 'left.accuracy' for
            one objective's, 'left=0.6,right=0.4' or a dict for a preference (the largest r_k F_k),
            'hypervolume:left=3,right=3' for the hypervolume up to that point.
        seed: of the runs and of what is drawn; the experiment's if left out.
        settings: keys and values that differ from the experiment in all trials, {'algorithm.batch_size': 16}.
        jobs: how many processes; as many as there are cores, if left out. 1 is this process.
        out: the study's folder; runs/tune-NAME if left out.
        allow_code: packages whose code the experiment's file may name.
        progress: whether it is shown on stderr how far it is: a bar in a terminal, plain lines elsewhere.
        more: with a problem, further arguments of `polyfed.train`: cohort, evaluate, engine, layers, ...

    Returns:
        All trials, the best ones, and where their experiments are.
    """
    check_installed()
    _check_counts(trials=trials, rounds=rounds)
    request = Request(read_parameters(parameters), trials, by, out)
    with ExitStack() as stack:
        if problem is not None or federation is not None:
            if experiment is not None or problem is None or federation is None or settings or jobs not in (None, 1):
                raise BadInput(
                    "Search in an experiment, or with a problem and its federation; 'settings' and 'jobs' are the "
                    "experiment's."
                )
            stack.enter_context(trusted())
            given = {**more, **{key: v for key, v in (("rounds", rounds), ("seed", seed)) if v is not None}}
            search = of_problem(OwnTrial(problem, federation, given), algorithm, request)
        elif experiment is None or more:
            found = f"also {', '.join(more)}" if more else "neither"
            raise BadInput(f"Name an experiment, or give problem and federation. Found {found}.")
        else:
            search = of_experiment(experiment, request, rounds, seed, settings, jobs, allow_code, stack)
        with (watching if progress else Watch)(request.parameters, trials) as watch:
            return Tuning(search, watch).run()


def _check_counts(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise BadInput(f"{name} should be a whole number from 1 on. Found {shown(number)}.")
