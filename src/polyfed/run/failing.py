"""What clients are called in a run's files, and those that never took part: a run goes on without them, and says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed.core.errors import cut, shown

MOST = 5  # clients that are named


def never_used(history: Sequence[Mapping[str, Any]], called: Callable[[int], str]) -> list[str]:
    """A sentence for each client that failed in every round in which it was asked, and for the rest of them together.

    Once is an accident: of a client that was asked in one round of several, nothing is said.

    Args:
        history: the lines of all rounds.
        called: from a client's number to what it is called.
    """
    asked = Counter(client for line in history for client in line.get("cohort", ()))
    failed: Counter[int] = Counter()
    why: dict[int, str] = {}
    for line in history:
        cohort = set(line.get("cohort", ()))
        mine = {one["client"]: one["why"] for one in _in_training(line) if one["client"] in cohort}
        failed.update(mine.keys())
        why |= mine
    least = min(2, len(history))
    always = sorted(client for client, times in failed.items() if times >= max(least, asked[client]))
    said = [
        f"C{called(client)[1:]} failed in every round in which it was asked, {failed[client]} of "
        f"{len(history)} ({cut(why[client], 200)})."
        for client in always[:MOST]
    ]
    return said + ([f"So did {len(always) - MOST} more."] if len(always) > MOST else [])


def _in_training(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Failures of a round's work; who could not be measured has taken part all the same."""
    return [one for one in line["failures"] if not one.get("measuring")]


def mostly_failed(history: Sequence[Mapping[str, Any]], tracebacks: Path | None) -> str:
    """A sentence where over half of those that a round asked failed in it, over all rounds; else ''.

    Args:
        history: the lines of all rounds.
        tracebacks: where those of the clients' errors are, if there are any and they are kept.
    """
    asked = sum(len(line.get("cohort", ())) for line in history)
    failing = [one for line in history for one in _in_training(line) if one["client"] in line.get("cohort", ())]
    failed = sum(len({one["client"] for one in _in_training(line)} & {*line.get("cohort", ())}) for line in history)
    if 2 * failed <= asked:
        return ""
    last = failing[-1]
    where = f" Tracebacks are in {tracebacks}." if tracebacks is not None and tracebacks.is_dir() else ""
    return (
        f"Over half of the clients' replies failed, {failed} of {asked} in {len(history)} rounds; the last was that of "
        f"client {shown(last.get('name', last['client']))} ({cut(last['why'], 120)}).{where}"
    )


def plain_names(names: Sequence[Hashable]) -> list[str | int | float]:
    """Names as a file has them: texts and numbers as they are, other things as texts."""
    return [name if isinstance(name, str | int | float) else str(name) for name in names]
