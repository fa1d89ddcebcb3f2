"""What goes wrong, as sentences: the rule, what was found, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class PolyfedError(Exception):
    """Something a person can mend: its text is one sentence, shown without a traceback."""


class BadInput(PolyfedError):
    """An impossible experiment, file or argument: nothing has been written (exit code 2)."""


class NotFinite(BadInput):
    """Numbers of clients that passed one by one and are not finite together."""


class RunStopped(PolyfedError):
    """A run that could not go on: its last checkpoint is usable (exit code 1)."""


class Interrupted(RunStopped):
    """Ctrl-C or SIGTERM: all finished rounds are in the last checkpoint (exit code 130)."""


class NobodyAnswered(PolyfedError):
    """None of the clients that were asked gave a usable reply.

    Args:
        why: the sentence.
        failed: why each of them did not, where that is known.
    """

    def __init__(self, why: str, failed: Mapping[int, str] | None = None) -> None:
        super().__init__(why)
        self.failed = failed or {}


LONGEST = 60  # characters of a value in a sentence
CHOICES = 160  # characters of a list of choices


def visible(text: Any) -> str:
    """A text whose escapes, links and line ends are seen and not obeyed by a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shown(value: Any) -> str:
    """A value as a sentence shows it: on one line, without control characters, the middle of a long one left out."""
    try:
        text = repr(value)
    except Exception:  # a stranger's object
        text = f"<{type(value).__name__}>"
    text = visible(text)
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}...{text[-half:]}"


def cut(text: str, longest: int = 200) -> str:
    """Somebody else's message on one line, without control characters and not too long."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def nearest(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'fedavg'?` for 'fedagv', or all the choices when nothing is near."""
    known = sorted(words)
    close = difflib.get_close_matches(word[:LONGEST], known, n=1)
    if close:
        return f" Did you mean {shown(close[0])}?"
    some = ", ".join(known)
    listed = f"{some}." if len(some) <= CHOICES else f"{some[:CHOICES].rpartition(',')[0]}, ..."
    return f" Known: {listed}" if known else ""


def reason(error: BaseException) -> str:
    """An error in a line, with the one that it comes from: a compiler's own first line says little."""
    first = root = error
    while root.__cause__ is not None:
        root = root.__cause__
    said = [f"{type(one).__name__}: {(str(one).splitlines() or [''])[0]}" for one in (first, root)]
    return said[0] if root is first else f"{said[0]}, by {said[1]}"
