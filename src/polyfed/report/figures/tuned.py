"""A search for settings: how good its trials were, against each parameter; and the trade-off between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from polyfed.report.figure import Axis, Figure, Series
from polyfed.report.records import Study

About = Mapping[str, Any]  # what study.json says
MOST = 8  # objectives that are drawn


def tuned(about: About) -> list[Figure]:
    """The figures of a search, as study.json tells of it; only trials that came to their end are drawn.

    Args:
        about: what the file says.
    """
    trials = [one for one in about["trials"] if one["state"] == "done"]
    if not trials:
        return []
    found = [_parameters(about, trials), *([_front(about, trials)] if len(about["columns"]) > 1 else [])]
    return [figure for figure in found if figure is not None]


def searched(studies: Sequence[Study]) -> list[Figure]:
    """The figures of the searches among some studies; one that tells of itself in another way has none.

    Args:
        studies: of all kinds.
    """
    found: dict[str, Figure] = {}
    for study in studies:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            made = tuned(study.told) if study.kind == "tune" else []
            found = {**{figure.key: figure for figure in made}, **found}
    return list(found.values())


def _parameters(about: About, trials: Sequence[About]) -> Figure | None:
    """A panel a parameter: each trial's figures against its value."""
    axes = {key: _axis(key, space, trials) for key, space in about["parameters"].items()}
    panels = tuple(key for key in axes if any(key in one["values"] for one in trials))
    columns = about["columns"][:MOST]
    y = Axis("figure", _measured(about), better="higher" if about["higher"] else "lower")
    series = []
    for key in panels:
        some = [one for one in trials if key in one["values"]]
        x = [_place(one["values"][key], key, trials) for one in some]
        for place, column in enumerate(columns):
            series.append(
                Series(
                    column, np.array([one["figures"][column] for one in some]), {"value": np.array(x)}, panel=key,
                    colour=place, marker=place, mode="points", ids=tuple(one["run"] for one in some),
                    labels=tuple(_said(one) for one in some),
                )
            )  # fmt: skip
    said = f"The {_measured(about)} of {len(trials)} trials against {', '.join(panels)}."
    return Figure(
        "parameters", "Trials by parameter", said, "points", y, {"value": axes[panels[0]]},
        tuple(series), panels=panels, wide=len(panels) > 1,
        panel_axes={key: (axes[key], y) for key in panels},
    )  # fmt: skip


def _front(about: About, trials: Sequence[About]) -> Figure:
    """The first two objectives of the trials, and which of them no other beats."""
    across, up = about["columns"][:2]
    series = []
    for name, wanted, colour in (("not dominated", True, 1), ("dominated", False, 0)):
        some = sorted(
            (one for one in trials if (one["trial"] in about["front"]) == wanted),
            key=lambda one: one["figures"][across],
        )
        x, y = ([one["figures"][column] for one in some] for column in (across, up))
        if some:
            series.append(
                Series(
                    name, np.array(y), {"first": np.array(x)}, colour=colour, marker=colour, mode="points",
                    labels=tuple(_said(one) for one in some), ids=tuple(one["run"] for one in some),
                )
            )  # fmt: skip
    first, second = (Axis(key, f"{name}, {_measured(about)}", better="lower") for key, name in
                     (("first", across), ("second", up)))  # fmt: skip
    more = len(about["columns"]) - 2
    notes = (f"Of {more + 2} objectives the first two are drawn.",) if more else ()
    best = f"{len(about['front'])} {'is' if len(about['front']) == 1 else 'are'}"
    said = f"The losses of {across} and {up} of {len(trials)} trials; {best} not dominated by another."
    return Figure("trials", "Trade-off between the trials", said, "points", second, {"first": first}, tuple(series),
                  notes=notes)  # fmt: skip


def _measured(about: About) -> str:
    if len(about["columns"]) > 1:
        return "validation loss"
    return str(about["columns"][0])


def _said(trial: About) -> str:
    values = ", ".join(f"{key} {value}" for key, value in trial["values"].items())
    return f"trial {trial['trial']}: {values}"


def _axis(key: str, space: str, trials: Sequence[About]) -> Axis:
    """A parameter's axis; words have the places 0, 1, ...; the panel's title says what it is."""
    return Axis("value", "value", log=space.startswith("log:"), words=tuple(_words(key, trials)))


def _words(key: str, trials: Sequence[About]) -> list[str]:
    """The values of a parameter that are no numbers, as texts."""
    values = [one["values"][key] for one in trials if key in one["values"]]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [] if numbers else sorted({str(value) for value in values})


def _place(value: Any, key: str, trials: Sequence[About]) -> float:
    words = _words(key, trials)
    return float(words.index(str(value))) if words else float(value)
