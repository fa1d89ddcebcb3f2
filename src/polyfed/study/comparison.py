"""What a comparison has found, for a notebook, a table and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.run.showing import inline, pandas_for
from polyfed.study.cells import STUDY, read_study
from polyfed.study.showing import as_html, as_text

if TYPE_CHECKING:
    from polyfed.report.figure import Figure

About = dict[str, Any]


class Comparison:
    """What a comparison has found; in a notebook, its table.

    Args:
        study: its folder.
        about: what study.json says.
    """

    def __init__(self, study: Path, about: Mapping[str, Any]) -> None:
        self.study, self.about = study, dict(about)

    @classmethod
    def load(cls, study: str | Path) -> Comparison:
        """A comparison that was finished before.

        Args:
            study: its folder.
        """
        found = read_study(Path(study))
        if found is None or found.get("kind") != "compare" or "table" not in found:
            raise BadInput(f"{study} holds no comparison that is complete: its {STUDY} says so, if there is one.")
        return cls(Path(study), found)

    @property
    def runs(self) -> list[Path]:
        """The directories of the runs that came to their end."""
        return [self.study / cell["run"] for cell in self.about["cells"] if cell["state"] == "done"]

    @property
    def failed(self) -> dict[str, str]:
        """By run, why it failed."""
        return {cell["run"]: cell["why"] for cell in self.about["cells"] if cell["state"] == "failed"}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each method and seed: its last figures, and what they took."""
        return pandas_for("runs").DataFrame(list(self._rows()))

    def _rows(self) -> Iterator[About]:
        for row in self.about["table"]:
            named = next(one["values"] for one in self.about["rows"] if one["row"] == row["row"])
            for i, seed in enumerate(self.about["seeds"]):
                figures = {key: cell["values"][i] for key, cell in row["figures"].items()}
                totals = {key: cell["values"][i] for key, cell in row["totals"].items()}
                to = {
                    f"{key}_to_target": cell["values"][i] for key, cell in row["to_target"].items() if key != "reached"
                }
                yield {"method": row["row"], "seed": seed, **named, **figures, **totals, **to}

    def plot(self, kind: str = "", x: str = "") -> Any:
        """A figure of the runs, a `matplotlib.figure.Figure`; needs polyfed[report].

        Args:
            kind: which: 'compared-accuracy', 'losses', ...; another word is answered with all there are; '' for means
                and spreads of the table's first metric, or what there is of one method alone.
            x: what curves are drawn against, 'round', 'bytes_up', ...; '' for the first choice.
        """
        from polyfed.report.drawing import draw

        return draw(self._figure(kind), x)

    def _figure(self, kind: str = "") -> Figure:
        from polyfed.report.figures import figures_of
        from polyfed.report.records import Record, name_methods

        records = [Record.read(run) for run in self.runs]
        name_methods(records, self.about)
        made = {one.key: one for one in figures_of(records)}
        first = f"compared-{next((one['metric'] for one in self.about['figures']), 'loss')}"
        key = kind or (first if first in made else next(iter(made), first))  # one method alone is not compared
        if key not in made:
            raise BadInput(f"The comparison has no figure {shown(key)}.{nearest(str(key), made)}")
        return made[key]

    def __str__(self) -> str:
        return as_text(self.about)

    def __repr__(self) -> str:
        return f"Comparison({str(self.study)!r}, {len(self.about['table'])} methods, {len(self.runs)} runs)"

    def _repr_html_(self) -> str:
        return as_html(self.about) + self._drawing()

    def _drawing(self) -> str:
        """Means and spreads as a picture in a page; '' where nothing can be drawn."""
        from polyfed.report.drawing import svg

        try:
            return inline(svg(self._figure()))
        except Exception:  # without matplotlib, with one method, or runs that are gone: there is the table
            return ""
