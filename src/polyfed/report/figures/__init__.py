"""The figures of runs, a file an idea; each builder gives None, or no figures, where the runs have nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfed.report.figure import Figure
from polyfed.report.figures.clients import clients
from polyfed.report.figures.compared import compared
from polyfed.report.figures.failures import failures
from polyfed.report.figures.front import front
from polyfed.report.figures.measures import losses, metrics, progress, splits, train
from polyfed.report.figures.omega import omega
from polyfed.report.figures.personalised import personalised
from polyfed.report.figures.profiles import parallel, profile, radar
from polyfed.report.figures.scalars import duality, gap, gram_error, improved, optimum, others, stationarity
from polyfed.report.figures.ternary import ternary
from polyfed.report.figures.weights import weights
from polyfed.report.records import Record

__all__ = [
    "clients", "compared", "duality", "failures", "figures_of", "front", "gap", "gram_error", "improved", "losses",
    "metrics", "omega", "optimum", "others", "parallel", "personalised", "profile", "progress", "radar", "splits",
    "stationarity", "ternary", "train", "weights",
]  # fmt: skip
Builder = Callable[[Sequence[Record]], Figure | list[Figure] | None]
BUILDERS: tuple[Builder, ...] = (
    losses, metrics, compared, front, ternary, profile, weights, clients, improved, personalised, progress, train,
    splits, stationarity, optimum, gram_error, gap, duality, omega, others, failures,
)  # fmt: skip


def figures_of(records: Sequence[Record]) -> list[Figure]:
    """All figures that some runs have something for, in the order of a report; no two have one key.

    Args:
        records: the runs.
    """
    some = [record for record in records if len(record.columns)]
    found: dict[str, Figure] = {}
    for build in BUILDERS if some else ():
        made = build(some)
        for figure in made if isinstance(made, list) else [made]:
            if figure is not None:
                found.setdefault(figure.key, figure)
    return list(found.values())
