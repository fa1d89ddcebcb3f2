"""The table of a comparison: from its runs' files, so that it is the same however often the study was interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.run.directory import RunDirectory
from polyfed.study.measures import COSTS, Measure, cost_of, easiest_target, measures_of, read_target
from polyfed.study.measures import shown_measures as shown
from polyfed.study.runner import Outcome
from polyfed.study.statistics import FEWEST, TEST, compare_pairs, spread

About = dict[str, Any]


def tabulate(outcomes: Sequence[Outcome], seeds: Sequence[int], target: str = "") -> About:
    """Means, spreads, costs and tests of runs, as study.json has them.

    Args:
        outcomes: of all cells, row after row.
        seeds: in their order.
        target: as a person wrote it; '' for what every run reaches.
    """
    done = [one for one in outcomes if one.summary is not None]
    summaries = [one.summary for one in done if one.summary is not None]
    lines = {one.cell.name: RunDirectory(one.run).history() for one in done}
    measures = measures_of(summaries)
    wanted = read_target(target, measures) if target and measures else easiest_target(measures, list(lines.values()))
    costs = {name: None if wanted is None else cost_of(wanted, rounds) for name, rounds in lines.items()}
    rows: dict[str, dict[int, Outcome]] = {}
    for one in outcomes:
        rows.setdefault(one.cell.row, {})[one.cell.seed] = one
    table = [_row(row, of_seed, seeds, measures, costs) for row, of_seed in rows.items()]
    for measure in measures:
        _mark_best(table, measure)
    return {
        "split": next((summary.get("split") for summary in summaries), None),
        "figures": [{**one.to_json(), "shown": one in shown(measures)} for one in measures],
        "target": None if wanted is None else wanted.to_json(),
        "table": table,
        "tests": _tests(table, measures, len(seeds)),
    }


def _row(
    row: str,
    of_seed: Mapping[int, Outcome],
    seeds: Sequence[int],
    measures: Sequence[Measure],
    costs: Mapping[str, Mapping[str, float] | None],
) -> About:
    summaries = [of_seed[seed].summary for seed in seeds]
    values = {m.key: [None if s is None else m.of(s["objectives"]) for s in summaries] for m in measures}
    spent = [costs.get(of_seed[seed].cell.name) for seed in seeds]
    totals = ("rounds", "bytes_up", "bytes_down", "seconds")
    return {
        "row": row,
        "runs": sum(summary is not None for summary in summaries),
        "figures": {key: spread(some) for key, some in values.items()},
        "totals": {key: spread([None if s is None else s[key] for s in summaries]) for key in totals},
        "to_target": {
            "reached": sum(one is not None for one in spent),
            **{key: spread([None if one is None else one[key] for one in spent]) for key in COSTS},
        },
    }


def _mark_best(table: Sequence[About], measure: Measure) -> None:
    """The best mean of those rows that have all runs; equal ones are all the best."""
    cells = [row["figures"][measure.key] for row in table]
    means = [cell["mean"] for cell in cells if None not in cell["values"]]
    best = measure.best(means) if len(means) > 1 else None
    for cell in cells:
        cell["best"] = best is not None and None not in cell["values"] and cell["mean"] == best


def _tests(table: Sequence[About], measures: Sequence[Measure], seeds: int) -> About:
    """Every pair of rows, by each figure that the table shows."""
    if seeds < FEWEST:
        why = f"No test of who beats whom: it needs {FEWEST} seeds, and there {'is' if seeds == 1 else 'are'} {seeds}."
        return {"name": None, "why": why, "pairs": []}
    pairs = [
        {"figure": measure.key, **pair}
        for measure in shown(measures)
        for pair in compare_pairs({row["row"]: row["figures"][measure.key]["values"] for row in table}, measure.better)
    ]
    return {"name": TEST, "why": "", "pairs": pairs}
