"""Who failed and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyfed.core.errors import cut
from polyfed.report.cast import cast, look
from polyfed.report.figure import Axis, Figure, Series, numbers
from polyfed.report.records import Record

CLIENTS = 20  # that are named
REASONS = 5  # that are told apart
OTHER = "other reasons"
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def failures(records: Sequence[Record]) -> Figure | None:
    """Where one run had failures: how often each client failed, by reason; else how often each reason came, by run."""
    some = [record for record in records if record.columns.failures]
    if not some:
        return None
    return _by_client(some[0]) if len(some) == 1 else _by_run(records)


def _by_client(record: Record) -> Figure:
    failed = record.columns.failures
    reason = _reasons(failed)
    clients = Counter(_client(one) for one in failed)
    most = [name for name, _ in clients.most_common(CLIENTS)]
    count = Counter((_client(one), reason[str(one.get("why", ""))]) for one in failed)
    words = list(dict.fromkeys(reason.values()))
    series = [Series(why, numbers([count[name, why] for name in most]), **look(i)) for i, why in enumerate(words)]
    asked = sum(record.columns.asked.values())
    notes = [f"{_some(len(failed), 'failure')} of {_some(len(clients), 'client')}; {_asked(asked)}."]
    if len(clients) > CLIENTS:
        notes.append(f"The {CLIENTS} clients with the most failures are drawn.")
    about = f"How often clients of the run {record.name} failed, and for which reason."
    return Figure(
        "failures", "Who failed and why", about, "bars", Axis("failures", "failures"),
        {"client": Axis("client", "client")}, tuple(series), tuple(most), notes=tuple(notes),
        wide=len(most) > 8 or max(map(len, words)) > 40,
        stacked=True,
    )  # fmt: skip


def _some(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _asked(times: int) -> str:
    return "a client was asked once" if times == 1 else f"clients were asked {times} times in all"


def _by_run(records: Sequence[Record]) -> Figure:
    every = [one for record in records for one in record.columns.failures]
    reason = _reasons(every)
    words = tuple(dict.fromkeys(reason.values()))
    roles = cast(records)
    series = []
    for place, name in enumerate(dict.fromkeys(role.name for role in roles)):
        mine = [one for role in roles if role.name == name for one in role.record.columns.failures]
        count = Counter(reason[str(one.get("why", ""))] for one in mine)
        if count:
            series.append(Series(name, numbers([count[why] for why in words]), **look(place)))
    about = f"How often clients failed for each reason, in {len(records)} runs."
    axis = {"reason": Axis("reason", "reason")}
    return Figure(
        "failures", "Who failed and why", about, "bars", Axis("failures", "failures"), axis, tuple(series), words,
        wide=True,
    )  # fmt: skip


def _reasons(failed: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What each reason is called in the figure: itself, cut, or one name for all rare ones."""
    every = {str(one.get("why", "")) for one in failed}
    count = Counter(_kind(str(one.get("why", ""))) for one in failed)
    some = {kind for kind, _ in count.most_common(REASONS)}
    return {why: _kind(why) if _kind(why) in some else OTHER for why in sorted(every)}


def _kind(why: str) -> str:
    """A reason without the numbers of the one case, and without its remedy."""
    return cut(NUMBER.sub("…", why.split(";")[0].split(" (")[0]), 70) or "no reason given"


def _client(one: dict[str, Any]) -> str:
    client = one.get("name", one.get("client"))
    return "the engine" if client is None else str(client)
