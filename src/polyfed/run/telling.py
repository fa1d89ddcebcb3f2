"""Telling the callbacks of a run: all of them hear of a round, whoever fails; and what they remember, by name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from polyfed.client.tracebacks import keep_traceback
from polyfed.core.errors import PolyfedError, RunStopped, cut, visible
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.directory import RunDirectory

Failed = list[tuple[Callback, Exception]]


class Audience:
    """The callbacks of a run.

    Args:
        callbacks: in the order in which they are told.
        directory: the run's.
    """

    def __init__(self, callbacks: Sequence[Callback], directory: RunDirectory) -> None:
        self.callbacks, self.directory = callbacks, directory
        self.warned: dict[int, str] = {}  # of the optional ones that failed, by their places

    def tell(self, hook: str, run: RunView, *arguments: Any) -> Failed:
        """Everybody, so that what they remember is of the same round. Those that failed and are not optional."""
        failed: Failed = []
        for place, callback in enumerate(self.callbacks):
            try:
                getattr(callback, hook)(run, *arguments)
            except Exception as error:
                self._note(place, error, run, failed)
        return failed

    def summary(self, run: RunView) -> tuple[dict[str, Any], Failed]:
        """What they have for the run's summary, and who failed."""
        found: dict[str, Any] = {}
        failed: Failed = []
        for place, callback in enumerate(self.callbacks):
            try:
                found |= callback.summary(run)
            except Exception as error:
                self._note(place, error, run, failed)
        return found, failed

    def _note(self, place: int, error: Exception, run: RunView, failed: Failed) -> None:
        """An optional one that failed is warned of, once."""
        callback = self.callbacks[place]
        if not callback.optional:
            failed.append((callback, error))
        elif place not in self.warned:
            name = type(callback).__name__
            said = f"The callback {name} failed in round {run.round}, and the run goes on ({described(error)})."
            self.warned[place] = said
            keep_traceback(self.directory.failures, error, said)
            self.warn(said)

    def raise_first(self, failed: Failed, run: RunView, how_to_resume: str) -> None:
        """A callback that failed ends the run; what has been done is kept."""
        for callback, error in failed:
            if isinstance(error, PolyfedError):
                raise error
            why = f"The callback {type(callback).__name__} failed in round {run.round}"
            keep_traceback(self.directory.failures, error, why)
            raise RunStopped(f"{why} ({described(error)}). {how_to_resume}") from error

    def warn(self, sentence: str) -> None:
        """On stderr; in Python as a warning, which never ends a run."""
        if not self.directory.call:
            print(f"polyfed: {visible(sentence)}", file=sys.stderr)
            return
        with suppress(RuntimeWarning):
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)

    # what they remember

    def trees(self) -> dict[str, Any]:
        """Of those that remember something."""
        return {name: tree for name, callback in self._named().items() if (tree := callback.tree())}

    def load(self, trees: Mapping[str, Any]) -> None:
        """Back to a checkpoint: each by its name, whatever its place is now."""
        for name, callback in self._named().items():
            if name in trees:
                callback.load(trees[name])

    def _named(self) -> dict[str, Callback]:
        """By class, and by number among those of one class."""
        found: dict[str, Callback] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            found[f"{name}-{sum(type(other) is type(callback) for other in found.values())}"] = callback
        return found


def described(error: Exception) -> str:
    """What was raised, on one line."""
    return cut(f"{type(error).__name__}: {error}")
