"""The rounds of a run, one line each, as a list and as a table."""

from __future__ import annotations

from typing import Any

from polyfed.run.showing import drawn, history_html, pandas_for, record_of


class History(list[dict[str, Any]]):
    """One line of metrics a round, in order: a list of dicts; in a notebook, a drawing of its losses."""

    def plot(self, kind: str = "losses", x: str = "") -> Any:
        """A figure of the rounds, a `matplotlib.figure.Figure`; needs polyfed[report].

        Args:
            kind: which: 'losses', 'weights', 'metric-accuracy', ...; another word is answered with all there are.
            x: what it is drawn against, 'round', 'bytes_up', ...; '' for the first choice.
        """
        return drawn(record_of(self), kind, x)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row a round: nested figures are columns as 'losses.left', lists stay lists."""
        return pandas_for("rounds").json_normalize(list(self))

    def _repr_html_(self) -> str:
        return history_html(self)
