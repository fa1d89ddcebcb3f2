"""The rounds of a run, one line each, as a list and as a table."""

from __future__ import annotations

from typing import Any

from polyfed.core.errors import BadInput


class History(list[dict[str, Any]]):
    """One line of metrics a round, in order: a list of dicts."""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row a round: nested figures are columns as 'losses.left', lists stay lists."""
        try:
            import pandas
        except ImportError as error:
            raise BadInput("A table of the rounds needs pandas: pip install pandas.") from error
        return pandas.json_normalize(list(self))
