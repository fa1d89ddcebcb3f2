"""The page's sections that are words and tables: head, results, failures, differences, experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tomli_w

from polyfed.report.markup import Html, Part, cell, header, table, tag
from polyfed.report.records import Record
from polyfed.report.results import NOTHING, Measure, Results, Row, results
from polyfed.report.settings import differences
from polyfed.report.words import words

LISTED = 5  # names in a sentence
REASONS = 60  # rows of failures
SENTENCES = 30  # that runs have to say
UNFOLDED = 24  # rows of differences
ACROSS = 8  # columns of measures or runs before a table is turned


def section(key: str, title: str, *inside: Part) -> Html:
    """A section with its heading."""
    return tag("section", tag("h2", title, id=f"{key}-title"), *inside, id=key, aria_labelledby=f"{key}-title")


def listed(words: Sequence[Any]) -> str:
    """'a, b and c'; of many the first and how many more."""
    names = [str(word) for word in words]
    if len(names) > LISTED:
        return f"{', '.join(names[: LISTED - 1])} and {len(names) - LISTED + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, word: str) -> str:
    """'1 run', '3 runs'."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes with a prefix."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def span(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def head(records: Sequence[Record], title: str) -> Html:
    """What was run, in words and in a few figures, and what the runs have to say of themselves."""
    facts = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _facts(records)]
    said = _said(records)
    notes = tag("ul", *(tag("li", one) for one in said), class_="notes") if said else None
    return tag(
        "div", tag("h1", title), tag("p", _lead(records), class_="lead"), tag("dl", *facts, class_="facts"), notes
    )


def _said(records: Sequence[Record]) -> list[str]:
    """The sentences of all runs; one that many runs say is there once."""
    runs: dict[str, list[str]] = {}
    for record in records:
        for sentence in words(record):
            runs.setdefault(sentence, []).append(record.name)
    if len(records) == 1:
        return list(runs)
    return [f"{sentence} ({listed(names)})" for sentence, names in runs.items()][:SENTENCES]


def _lead(records: Sequence[Record]) -> str:
    methods = list(dict.fromkeys(record.algorithm for record in records if record.algorithm))
    data = list(dict.fromkeys(name for record in records for name in _data(record)))
    seeds = sorted({record.seed for record in records if record.seed is not None}, key=str)
    engines = list(dict.fromkeys(name for record in records if (name := _named(record.settings.get("engine")))))
    objectives = {name for record in records for name in record.objectives}
    runs = f"{counted(len(records), 'run')} of " if len(records) > 1 else "One run of "
    of = f" on {listed(data)}" if data else ""
    what = f"{runs}{listed(methods) or 'a method'}{of}, under {counted(len(objectives), 'objective')}"
    seeded = f", with {'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}" if seeds else ""
    engine = f", on the engine {listed(engines)}" if engines else ""
    return f"{what}{seeded}{engine}."


def _named(told: Any) -> str:
    name = told.get("name") if isinstance(told, dict) else told
    return name if isinstance(name, str) else ""


def _data(record: Record) -> list[str]:
    models = record.settings.get("models")
    tables = (
        [one for one in models.values() if isinstance(one, dict)] if isinstance(models, dict) else [record.settings]
    )
    return [name for one in tables if (name := _named(one.get("data")))]


def _facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    several = len(records) > 1
    done = [int(record.columns.rounds[-1]) if len(record.columns) else 0 for record in records]
    rounds = f"{min(done):,}" if min(done) == max(done) else f"{min(done):,} to {max(done):,}"
    clients = max(len(record.columns.asked) for record in records)
    totals = {key: [_total(record, key) for record in records] for key in ("seconds", "bytes_up", "bytes_down")}
    simulated = max(_total(record, "simulated_seconds") for record in records)
    failures = sum(len(record.columns.failures) for record in records)
    states = Counter(record.state for record in records)
    found = [("Rounds", rounds), ("Clients asked", f"{clients:,}")]
    found += [("Time of all runs" if several else "Time", span(sum(totals["seconds"])))]
    found += [("Longest simulated time" if several else "Simulated time", span(simulated))] if simulated else []
    found += [("Uploaded", size(sum(totals["bytes_up"]))), ("Downloaded", size(sum(totals["bytes_down"])))]
    found += [("Failed replies", f"{failures:,}")]
    if set(states) != {"done"}:
        found += [("State", ", ".join(f"{n} {state}" for state, n in states.items()) if several else records[0].state)]
    return found


def _total(record: Record, key: str) -> float:
    total = record.columns.total(key)
    return float(total[-1]) if len(total) else 0.0


def results_section(records: Sequence[Record]) -> Html | None:
    """The last evaluation, the best of each measure in bold; None where nothing was measured."""
    found = results(records)
    if not found.measures:
        return None
    if len(found.rows) == 1:
        body = _one_method(found.rows[0], found)
    elif len(found.measures) <= ACROSS:
        body = _across(found)
    else:
        body = _down(found)
    return section("results", "Results", body)


def _caption(found: Results) -> str:
    seeds = sorted({row.seeds for row in found.rows})
    spread = f": mean ± standard deviation over {listed(seeds)} seeds" if max(seeds) > 1 else ""
    best = "; the best of each in bold" if any(found.best(m) for m in found.measures) else ""
    return f"The last evaluation{spread}{best}."


def _one_method(row: Row, found: Results) -> Html:
    metrics = list(dict.fromkeys(metric for _, metric in found.measures))
    objectives = list(dict.fromkeys(objective for objective, _ in found.measures))
    rows = [
        [header(o), *(cell(row.shown((o, m)) if (o, m) in row.values else "") for m in metrics)] for o in objectives
    ]
    return table(["Objective", *(_arrow(found, m) for m in metrics)], rows, _caption(found))


def _arrow(found: Results, metric: str) -> str:
    """A metric's name with the way in which it is better, where all objectives agree."""
    ways = {way for (_, name), way in found.better.items() if name == metric}
    return metric + {"higher": " ↑", "lower": " ↓"}.get(next(iter(ways)) if len(ways) == 1 else "", "")


def _way(found: Results, measure: Measure) -> str:
    return f"{measure[0]} {measure[1]}" + {"higher": " ↑", "lower": " ↓"}.get(found.better[measure], "")


def _across(found: Results) -> Html:
    best = {m: found.best(m) for m in found.measures}
    rows = [[header(r.name), *(cell(r.shown(m), best=r.name in best[m]) for m in found.measures)] for r in found.rows]
    return table(["Method", *(_way(found, m) for m in found.measures)], rows, _caption(found))


def _down(found: Results) -> Html:
    rows = []
    for measure in found.measures:
        best = found.best(measure)
        cells = [cell(row.shown(measure), best=row.name in best) for row in found.rows]
        rows.append([header(_way(found, measure)), *cells])
    return table(["Measure", *(row.name for row in found.rows)], rows, _caption(found))


def failures_section(records: Sequence[Record]) -> Html | None:
    """Who failed, why, how often and when; None where nobody did."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for record in records:
        for one in record.columns.failures:
            when = one["round"] if isinstance(one["round"], int) else 0
            found.setdefault((record.name, _client(one), str(one.get("why", ""))), []).append(when)
    if not found:
        return None
    most = sorted(found.items(), key=lambda item: -len(item[1]))
    several = len(records) > 1
    rows = [
        [
            header(client),
            *([cell(run, words=True)] if several else []),
            cell(why, words=True),
            cell(len(at)),
            cell(_when(at)),
        ]
        for (run, client, why), at in most[:REASONS]
    ]
    left = f", the {REASONS} most frequent" if len(most) > REASONS else ""
    count = sum(map(len, found.values()))
    caption = f"{count:,} {'reply' if count == 1 else 'replies'} failed{left}."
    return section(
        "failures",
        "Who failed, and why",
        table(["Client", *(["Run"] if several else []), "Why", "Times", "Rounds"], rows, caption),
    )


def _client(failure: dict[str, Any]) -> str:
    named = failure.get("name")
    number = failure.get("client")
    return str(named) if named else NOTHING if number is None else f"client {number}"


def _when(rounds: Sequence[int]) -> str:
    return f"{min(rounds)}" if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"


def differences_section(records: Sequence[Record]) -> Html | None:
    """The settings that are not the same in all runs, folded where they are many; None where all are the same."""
    found = differences(records)
    differing = {key: values for key, values in found.rows if key in found.differing}
    if not differing:
        return None
    if len(found.runs) > max(ACROSS, len(differing)):
        head = ["Run", *differing]
        rows = [[run, *(values[i] for values in differing.values())] for i, run in enumerate(found.runs)]
    else:
        head = ["Setting", *found.runs]
        rows = [[key, *values] for key, values in differing.items()]
    cells = [[header(row[0]), *(cell(value or NOTHING, words=True) for value in row[1:])] for row in rows]
    body = table(head, cells, f"{counted(len(differing), 'setting')} differ between the runs.")
    if len(rows) > UNFOLDED:
        body = tag("details", tag("summary", f"{counted(len(differing), 'setting')} differ"), body)
    return section("differences", "What differs", body)


def experiments_section(records: Sequence[Record]) -> Html:
    """The resolved experiment of each run, folded."""
    folded = [
        tag("details", tag("summary", record.name), tag("pre", tag("code", _toml(record)), tabindex="0"))
        for record in records
    ]
    return section("experiments", "Resolved experiments" if len(records) > 1 else "The resolved experiment", *folded)


def _toml(record: Record) -> str:
    return tomli_w.dumps(record.settings)
