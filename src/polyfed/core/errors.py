"""What goes wrong, as sentences: the rule, what was found, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolyfedError(Exception):
    """Something a person can mend: its text is one sentence, shown without a traceback."""


class BadInput(PolyfedError):
    """An impossible experiment, file or argument: nothing has been written (exit code 2)."""


class RunStopped(PolyfedError):
    """A run that could not go on: its last checkpoint is usable (exit code 1)."""


class Interrupted(RunStopped):
    """Ctrl-C: the round was finished and checkpointed (exit code 130)."""


class NobodyAnswered(PolyfedError):
    """None of the clients that were asked gave a usable reply."""


def nearest(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'fedavg'?` for 'fedagv', or all the choices when nothing is near."""
    known = sorted(words)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(known)}." if known else ""
