"""The trade-off between objectives: a model for each of several preferences, and which of them are worth having.

A front is a folder. Each point is an ordinary run directory in it, with its model; `front.json` says what they are:

    {"format": 1, "kind": "front", "name": "two-digits",
     "state": "running" | "done",
     "objectives": ["left", "right"],
     "split": "test",                        the rows that losses and metrics are of
     "metrics": {"left": {"accuracy": "higher"}, ...},   which way each is better; losses are better lower
     "points": [                             in the order of the path
       {"run": "preference-left0.9-right0.1-1a2b3c4d",   the run directory, relative to this file
        "kind": "preference" | "scalarisation",
        "preference": {"left": 0.9, "right": 0.1},       r, or the weights w of a scalarisation; their sum is 1
        "start": "preference-...",           the neighbour's run whose model it began with, or null
        "state": "done" | "failed",
        "why": "",                           of a point that failed, the sentence
        "round": 100,
        "losses": {"left": 0.31, "right": 1.2},
        "metrics": {"left": {"accuracy": 0.91}, ...},
        "non_dominated": true}],             no other point is at least as good in all losses and better in one
     "reference": {"left": 2.5, "right": 2.6},
     "reference_from": "given" | "points",   'points': the worst loss of any, and a tenth of their range more
     "hypervolume": 3.1,                     of all points; null where moocore is not installed
     "spacing": 0.04,                        Schott's, of the non-dominated, losses scaled to their range; or null
     "by_kind": {"preference": {"points": 11, "non_dominated": 10, "hypervolume": 3.1, "spacing": 0.04}, ...}}

'by_kind' is of the points of one kind among themselves; 'points' there are those that are done.

What the losses were after every evaluated round is in the runs' `metrics.jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.run.showing import inline, pandas_for
from polyfed.study.cells import read_study
from polyfed.study.front_table import as_html, as_text

if TYPE_CHECKING:
    from polyfed.experiment.loading import Loaded
    from polyfed.report.figure import Figure

Kind = Literal["preference", "scalarisation"]
FILE = "front.json"
FORMAT = 1


@dataclass(frozen=True)
class Point:
    """One point of a front.

    Args:
        run: its run directory, with its model.
        kind: 'preference' or 'scalarisation'.
        preference: r, or weights, by objective; their sum is 1.
        start: the run whose model it began with; None of the first.
        state: 'done' or 'failed'.
        why: of a point that failed, the sentence.
        round: how many rounds it was trained.
        losses: by objective.
        metrics: by objective and name.
        non_dominated: whether no other point is at least as good in all losses and better in one.
    """

    run: Path
    kind: Kind
    preference: Mapping[str, float]
    start: Path | None = None
    state: str = "done"
    why: str = ""
    round: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    non_dominated: bool = False

    def load(self, **arguments: Any) -> Loaded:
        """The trained model, as `polyfed.load` brings it back.

        Args:
            arguments: of `polyfed.load`.
        """
        from polyfed.experiment.loading import load

        return load(self.run, **arguments)

    def write_model(self, file: Path) -> None:
        """Copy its model.

        Args:
            file: a new file, model.safetensors.
        """
        if file.exists():
            raise BadInput(f"{shown(str(file))} is there already; choose another file with -o.")
        try:
            file.write_bytes((self.run / "model.safetensors").read_bytes())
        except OSError as error:
            raise BadInput(
                f"The model of {self.run} cannot be copied to {shown(str(file))}: {error.strerror}."
            ) from error

    @classmethod
    def read(cls, folder: Path, row: Mapping[str, Any]) -> Point:
        """From a row of front.json.

        Args:
            folder: of the front.
            row: one of its points.
        """
        start = None if row.get("start") is None else folder / str(row["start"])
        return cls(**{**row, "run": folder / str(row["run"]), "start": start})


@dataclass(frozen=True)
class Front:
    """A trade-off: points, each a trained model, and how good they are together.

    Args:
        path: its folder.
        about: what front.json says.
    """

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Front:
        """A front from its folder.

        Args:
            path: the folder that holds a front.json.
        """
        found = read_study(Path(path), FILE)
        if found is None or found.get("kind") != "front" or not isinstance(found.get("points"), list):
            raise BadInput(f"{shown(str(path))} is no front: a folder with a {FILE}, which 'polyfed front' writes.")
        return cls(Path(path), found)

    @property
    def points(self) -> list[Point]:
        """All points, along the path of their kind."""
        return [Point.read(self.path, row) for row in self.about["points"]]

    @property
    def objectives(self) -> list[str]:
        """Their names."""
        return list(self.about["objectives"])

    @property
    def hypervolume(self) -> float | None:
        """What the points dominate, up to the reference point; None where moocore is not installed."""
        found: float | None = self.about["hypervolume"]
        return found

    @property
    def reference(self) -> dict[str, float]:
        """The reference point of the hypervolume, by objective."""
        return dict(self.about["reference"])

    @property
    def spacing(self) -> float | None:
        """Schott's spacing of the non-dominated points; 0 where they are equally far from each other."""
        found: float | None = self.about["spacing"]
        return found

    def pick(self, preference: Mapping[str, float] | None = None, **by_name: float) -> Point:
        """The non-dominated point with the least max_k r_k F_k: that which FedCMOO-Pref would go to.

        Args:
            preference: r by objective, {'left': 0.6, 'right': 0.4}: a larger r_k asks for a smaller loss F_k. One that
                is not named does not matter.
            by_name: the same, pick(left=0.6, right=0.4).
        """
        r = _checked({**(preference or {}), **by_name}, self.objectives)
        some = [point for point in self.points if point.non_dominated]
        if not some:
            raise BadInput(f"{self.path} has no point yet to pick from; 'polyfed front' goes on with it.")

        def worst(point: Point) -> tuple[float, float]:
            terms = [r[name] * point.losses[name] for name in r]
            return max(terms), sum(terms)

        return min(some, key=worst)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each point."""
        rows = []
        for point in self.points:
            row: dict[str, Any] = {"kind": point.kind, "state": point.state, "non_dominated": point.non_dominated}
            row |= {f"preference.{name}": value for name, value in point.preference.items()}
            row |= {f"loss.{name}": point.losses.get(name) for name in self.objectives}
            row |= {f"{metric}.{name}": v for name, of in point.metrics.items() for metric, v in of.items()}
            rows.append({**row, "round": point.round, "run": str(point.run)})
        return pandas_for("points").DataFrame(rows)

    def plot(self) -> Any:
        """A `matplotlib.figure.Figure` of the points; needs polyfed[report]."""
        from polyfed.report.drawing import draw

        return draw(self._figure())

    def _figure(self) -> Figure:
        from polyfed.report.figures import front
        from polyfed.report.records import Record

        made = front([Record.read(point.run) for point in self.points if point.state == "done"])
        if made is None:
            raise BadInput(f"{self.path} has fewer than two points; 'polyfed front' goes on with it.")
        return made

    def __str__(self) -> str:
        return as_text(self.about)

    def __repr__(self) -> str:
        return f"Front({str(self.path)!r}, {len(self.about['points'])} points of {', '.join(self.objectives)})"

    def _repr_html_(self) -> str:
        return as_html(self.about) + self._drawing()

    def _drawing(self) -> str:
        """The points as a picture in a page; '' where nothing can be drawn."""
        from polyfed.report.drawing import svg

        try:
            return inline(svg(self._figure()))
        except Exception:  # without matplotlib, or with runs that are gone: there is the table
            return ""


def _checked(given: Mapping[str, float], objectives: Sequence[str]) -> dict[str, float]:
    """A preference of which something is left, by objective."""
    for name, value in given.items():
        if name not in objectives:
            raise BadInput(
                f"The preference names {shown(name)}, which is no objective here.{nearest(name, objectives)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise BadInput(f"A preference should be numbers from 0 on. Found {shown(value)} for {name!r}.")
    r = {name: float(value) for name, value in given.items() if value}
    if not r:
        raise BadInput(f"A preference needs a number above 0 for some objective, of {shown(list(objectives))}.")
    return r
