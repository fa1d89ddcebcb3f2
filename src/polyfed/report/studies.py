"""What a study says of its runs: the table of a comparison, the points of a front, the trials of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from polyfed.report.digits import reading
from polyfed.report.markup import Html, cell, header, table, tag
from polyfed.report.records import Study
from polyfed.report.results import NOTHING
from polyfed.report.sections import counted, section, size, span

Told = Mapping[str, Any]
COSTS = {"rounds": "rounds", "bytes_up": "uploaded", "seconds": "time"}  # what it took to reach a target


def study_sections(studies: Sequence[Study]) -> list[Html]:
    """A section for each study that has something to say; one that says it in another way is left out."""
    found = []
    for place, study in enumerate(studies):
        try:
            inside = KINDS[study.kind](study.told) if study.kind in KINDS else []
        except (KeyError, TypeError, ValueError, AttributeError):  # of another version, or not finished
            inside = []
        if inside:
            name = "" if len(studies) == 1 else f": {study.path.name}"
            found.append(section(f"study{place or ''}", TITLES[study.kind] + name, *inside))
    return found


def _compare(told: Told) -> list[Html]:
    if "table" not in told:
        return [_note(f"The comparison is not complete: {len(told['cells'])} runs were asked for.")]
    found = [_figures(told), *([_costs(told)] if told.get("target") else []), *_beats(told)]
    failed = [f"{one['row']}, seed {one['seed']}: {one['why']}" for one in told["cells"] if one["state"] == "failed"]
    return [*found, *_list("Runs that failed", failed), *_list("Notes", told.get("notes") or ())]


def _figures(told: Told) -> Html:
    measures = [one for one in told["figures"] if one.get("shown")]
    rows = []
    for row in told["table"]:
        few = "" if row["runs"] == len(told["seeds"]) else f" ({row['runs']} of {counted(len(told['seeds']), 'run')})"
        own = [(one.get("metric", ""), row["figures"][one["key"]]) for one in measures]
        cells = [cell(_spread(metric, one), best=bool(one["best"])) for metric, one in own]
        rows.append([header(row["row"] + few), *cells])
    seeds = counted(len(told["seeds"]), "seed")
    caption = f"Mean ± standard deviation over {seeds} of the last evaluation on {told['split']} rows; best in bold."
    return table(["Method", *(one["title"] for one in measures)], rows, caption)


def _spread(metric: str, one: Told) -> str:
    return NOTHING if one.get("mean") is None else reading(metric, one["mean"], one.get("std"))


def _costs(told: Told) -> Html:
    shown: dict[str, Callable[[float], str]] = {"rounds": "{:.1f}".format, "bytes_up": size, "seconds": span}
    rows = []
    for row in told["table"]:
        to = row["to_target"]
        means = [(to.get(key) or {}).get("mean") for key in COSTS]
        texts = [NOTHING if m is None else shown[key](m) for key, m in zip(COSTS, means, strict=True)]
        rows.append([header(row["row"]), cell(f"{to['reached']} of {row['runs']}"), *map(cell, texts)])
    caption = f"What it took until {told['target']['text']}; means over the runs that got there."
    return table(["Method", "reached by", *COSTS.values()], rows, caption)


def _beats(told: Told) -> list[Html]:
    tests = told.get("tests") or {}
    if not tests.get("name"):
        return [_note(str(tests["why"]))] if tests.get("why") else []
    titles = {one["key"]: one["title"] for one in told["figures"]}
    sure = [one for one in tests["pairs"] if one["holds"]]
    if not sure:
        return [_note(f"No method is better than another beyond chance: {tests['name']}.")]
    rows = []
    for one in sure:
        names = [cell(one[key], words=True) for key in ("better", "worse")]
        figures = [cell(f"{one['difference']:.3g}"), cell(f"{one['p']:.2g}")]
        rows.append([header(titles.get(one["figure"], one["figure"])), *names, *figures])
    return [table(["Measure", "better", "worse", "difference", "p"], rows, f"Who beats whom: {tests['name']}.")]


def _front(told: Told) -> list[Html]:
    points = [one for one in told["points"] if one.get("losses")]
    best = [one for one in points if one.get("non_dominated")]
    volume, spacing = told.get("hypervolume"), told.get("spacing")
    words = [
        f"{len(best)} of {counted(len(points), 'point')} {'is' if len(best) == 1 else 'are'} not dominated by another"
    ]
    words += [f"hypervolume {volume:.4g}"] if volume is not None else []
    words += [f"spacing {spacing:.3g}"] if spacing is not None else []
    names = list(told["objectives"])
    least = {name: min(one["losses"][name] for one in points) for name in names} if points else {}
    rows = [
        [
            header(", ".join(f"{name} {one['preference'].get(name, 0):.2g}" for name in names)),
            cell(one["kind"], words=True),
        ]
        + [cell(f"{one['losses'][name]:.4g}", best=one["losses"][name] == least[name]) for name in names]
        + [cell("no" if one.get("non_dominated") else "yes"), cell(one["run"], words=True)]
        for one in points
    ]
    failed = [f"{one['run']}: {one['why']}" for one in told["points"] if one.get("why")]
    head = ["Preference", "by", *(f"loss of {name}" for name in names), "dominated", "run"]
    return [table(head, rows, "; ".join(words) + "."), *_list("Points that failed", failed)]


def _tune(told: Told) -> list[Html]:
    trials, columns = told["trials"], list(told["columns"])
    keys = list(dict.fromkeys(key for one in trials for key in one["values"]))
    pick = max if told.get("higher") else min
    values = {
        name: [v for one in trials if (v := (one.get("figures") or {}).get(name)) is not None] for name in columns
    }
    best = {name: pick(some) for name, some in values.items() if some}
    rows = []
    for one in trials:
        figures = one.get("figures") or {}
        own = [cell(str(one["values"].get(key, NOTHING)), words=True) for key in keys]
        reached = [figures.get(name) for name in columns]
        texts = [NOTHING if v is None else f"{v:.4g}" for v in reached]
        cells = [cell(t, best=v is not None and v == best[n]) for t, v, n in zip(texts, reached, columns, strict=True)]
        state = str(one.get("why") or one.get("state", ""))
        rows.append(
            [header(str(one["trial"])), *own, *cells, cell(one.get("rounds", NOTHING)), cell(state, words=True)]
        )
    front = [str(place) for place in told.get("front") or ()]
    said = f" Not dominated by another: {', '.join(front)}." if front else ""
    caption = f"{counted(len(trials), 'trial')} on validation rows; the best of each column in bold.{said}"
    found = [table(["Trial", *keys, *columns, "rounds", "state"], rows, caption)]
    return [*found, *_list("Notes", told.get("notes") or ())]


def _note(words: str) -> Html:
    return tag("p", words, class_="soft")


def _list(title: str, sentences: Iterable[str]) -> list[Html]:
    inside = [tag("li", one) for one in sentences]
    return [tag("h3", title), tag("ul", *inside)] if inside else []


KINDS: dict[str, Callable[[Told], list[Html]]] = {"compare": _compare, "front": _front, "tune": _tune}
TITLES = {"compare": "Comparison", "front": "Front", "tune": "Trials"}
