"""What a search has found: its trials, those that no other beats, the one that is recommended, and their experiments.

A search is a study: a folder with a run for each trial (see `cells`), and study.json:

    {"format": 1, "kind": "tune", "name": "two-digits",
     "state": "running" | "stopped" | "done",
     "settings": {...},                          the experiment that trials differ from, as they ran it
     "parameters": {"algorithm.lr": "log:0.01..1", ...}, "by": "left.accuracy" | null, "behind": 3,
     "columns": ["left", "right"],               what trials are compared by: objectives, or one number
     "higher": false,                            whether that number is better higher
     "file": true,                               whether experiments are written; not of a problem of Python
     "trials": [{"trial": 0, "values": {"algorithm.lr": 0.3}, "run": "trial-000-lr0.3-seed0-1a2b3c4d",
                 "state": "running" | "done" | "early" | "failed",
                 "rounds": 100, "figures": {"left": 0.31, "right": 0.4}, "why": ""}, ...],
     "front": [3, 7],                            trials that no other is better than in all columns
     "best": 7,                                  the one of them that is recommended; null where none is done
     "notes": ["The clients have no validation rows: ..."]}

'figures' are of the last evaluation, on validation rows.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyfed.core.errors import BadInput, nearest, shown, visible
from polyfed.report.figures.tuned import tuned
from polyfed.run.showing import inline, pandas_for
from polyfed.study.cells import read_study
from polyfed.study.parameters import Parameter, read_parameters
from polyfed.study.pareto import non_dominated
from polyfed.study.sampling import changed

BEST = "best.toml"
VALID = " on valid data"  # how the name of one number ends that trials are compared by
MOST_ROWS = 20  # in a terminal
RULE = "of those, the one whose worst loss is best, each scaled from 0 for the best of them to 1 for the worst"
STATES = {"done": "", "early": "ended early", "failed": "failed", "running": "not finished"}


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Args:
        number: from 0 on, in the order in which they began.
        values: of its parameters, by key.
        figures: what it is compared by, on validation rows, at its last evaluation.
        state: 'done', 'early' of one that was ended before its last round, 'failed', or 'running'.
        rounds: how many it ran.
        run: its directory.
        why: of one that was not done, a sentence.
    """

    number: int
    values: Mapping[str, Any]
    figures: Mapping[str, float]
    state: str
    rounds: int
    run: Path
    why: str = ""

    @property
    def experiment(self) -> Path:
        """Its experiment as a file, where it is one of those that no other beats."""
        return self.run.parent / experiment_file(self.number)


def experiment_file(number: int) -> str:
    """The file of a trial's experiment in the study's folder."""
    return f"trial-{number:03d}.toml"


class Tuned:
    """What a search has found; in a notebook, its table.

    Args:
        study: its folder.
        about: what study.json says.
    """

    def __init__(self, study: Path, about: Mapping[str, Any]) -> None:
        self.study, self.about = study, dict(about)

    @classmethod
    def load(cls, study: str | Path) -> Tuned:
        """A search from its folder, also one that is not finished.

        Args:
            study: the folder.
        """
        found = read_study(Path(study))
        if found is None or found.get("kind") != "tune":
            raise BadInput(f"{study} holds no search: its study.json would say so.")
        return cls(Path(study), found)

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they began."""
        return [
            Trial(
                one["trial"], one["values"], one["figures"], one["state"], one["rounds"], self.study / one["run"],
                one["why"],
            )
            for one in self.about["trials"]
        ]  # fmt: skip

    @property
    def front(self) -> list[Trial]:
        """The trials that no other is better than, in all objectives at once; with one number, the best."""
        return [trial for trial in self.trials if trial.number in self.about["front"]]

    @property
    def best(self) -> Trial | None:
        """The trial that is recommended; its experiment is best.toml. None where no trial came to its end."""
        return next((trial for trial in self.trials if trial.number == self.about["best"]), None)

    @property
    def experiment(self) -> Path:
        """The file of the best experiment, which `polyfed run` takes."""
        return self.study / BEST

    @property
    def algorithm(self) -> dict[str, Any]:
        """The method of the best trial with its settings, as `polyfed.train` takes it."""
        if self.best is None:
            raise BadInput(f"No trial of {self.study} came to its end, so that none is the best.")
        table: dict[str, Any] = changed(self.about["settings"], dict(self.best.values)).get("algorithm", {})
        return table

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the search changed."""
        return read_parameters([f"{key}={space}" for key, space in self.about["parameters"].items()])

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each trial: its parameters, its figures, and how it ended."""
        rows = [
            {"trial": t.number, **t.values, **t.figures, "rounds": t.rounds, "state": t.state,
             "front": t.number in self.about["front"], "run": str(t.run)}
            for t in self.trials
        ]  # fmt: skip
        return pandas_for("trials").DataFrame(rows)

    def plot(self, kind: str = "parameters") -> Any:
        """A `matplotlib.figure.Figure` of the trials that came to their end; needs polyfed[report].

        Args:
            kind: 'parameters', the figures against each parameter, or 'trials', the trade-off between objectives.
        """
        from polyfed.report.drawing import draw

        found = {figure.key: figure for figure in tuned(self.about)}
        if kind not in found:
            raise BadInput(f"The search has no figure {shown(kind)}.{nearest(str(kind), found)}")
        return draw(found[kind])

    def __repr__(self) -> str:
        best = "none done" if self.best is None else f"best: trial {self.best.number}"
        return f"Tuned({str(self.study)!r}, {len(self.about['trials'])} trials, {best})"

    def _repr_html_(self) -> str:
        heads, rows = self.table()
        head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
        body = "".join(_html_row(texts, bold) for texts, bold in rows)
        said = "".join(f"<p>{html.escape(visible(text))}</p>" for text in self.sentences())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}{self._drawing()}"

    def _drawing(self) -> str:
        """The losses against each parameter; nothing where they cannot be drawn."""
        from polyfed.report.drawing import svg

        try:
            return "".join(inline(svg(figure)) for figure in tuned(self.about)[:1])
        except Exception:  # without matplotlib, or whatever stands in its way, there is the table
            return ""

    def table(self) -> tuple[list[str], list[tuple[list[str], bool]]]:
        """The names of the columns; and of each trial the texts, the best first, and whether no other beats it."""
        columns = self.about["columns"]
        heads = ["trial", *(p.short for p in self.parameters), *columns, "rounds", ""]
        order = sorted(self.trials, key=self._rank)
        return heads, [(self._row(trial), trial.number in self.about["front"]) for trial in order]

    def _rank(self, trial: Trial) -> tuple[Any, ...]:
        front = trial.number in self.about["front"]
        scores = [trial.figures.get(name, math.inf) for name in self.about["columns"]]
        sign = -1 if self.about["higher"] else 1
        best = trial.number == self.about["best"]
        return not best, not front, list(STATES).index(trial.state), sign * sum(scores), trial.number

    def _row(self, trial: Trial) -> list[str]:
        values = [shown_value(trial.values.get(p.key)) for p in self.parameters]
        figures = [shown_value(trial.figures.get(name)) for name in self.about["columns"]]
        state = "best" if trial.number == self.about["best"] else STATES[trial.state]
        return [str(trial.number), *values, *figures, str(trial.rounds), state]

    def sentences(self) -> list[str]:
        """What is said below the table."""
        columns, trials = self.about["columns"], self.trials
        what = "losses" if len(columns) > 1 else columns[0] if VALID in columns[0] else f"loss of {columns[0]!r}"
        what = what if VALID in what else f"{what} on validation data"
        way = "higher is better" if self.about["higher"] else "lower is better"
        early = sum(trial.state == "early" for trial in trials)
        failed = [trial for trial in trials if trial.state == "failed"]
        said = [f"{what[0].upper()}{what[1:]}, {way}. {len(trials)} trials, {early} of them ended early."]
        said += [f"Trial {trial.number} failed: {trial.why}" for trial in failed]
        if self.best is None:
            return [*said, "No trial came to its end."]
        if len(self.front) > 1:
            said.append(f"{len(self.front)} trials are not beaten in all objectives at once; best: {RULE}.")
        how = f"its experiment: {self.experiment}" if self.about["file"] else "its method: found.algorithm"
        said.append(f"Best: trial {self.best.number}; {how}")
        return said


def show(found: Tuned) -> None:
    """The table on stdout, the best trials first, and what is said of it; in a pipe as plain text."""
    console = Console(highlight=False, markup=False, emoji=False)
    heads, rows = found.table()
    title = visible(f"{found.about['name']}: {len(rows)} trials")
    if console.is_terminal:
        made = Table(title=Text(title), title_justify="left")
        for head in heads:
            made.add_column(Text(visible(head)), justify="right", overflow="fold")
        for texts, bold in rows[:MOST_ROWS]:
            made.add_row(*(Text(visible(text), style="bold" if bold else "") for text in texts))
        console.print(made)
    else:
        print(title, "", *_aligned([heads, *(texts for texts, _ in rows[:MOST_ROWS])]), "", sep="\n")
    if len(rows) > MOST_ROWS:
        print(f"and {len(rows) - MOST_ROWS} more trials, in study.json")
    for text in [*found.sentences(), f"study: {found.study}"]:
        print(visible(text))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of plain text, as wide as they are."""
    texts = [[visible(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts]


def shown_value(value: Any) -> str:
    """A parameter or figure in a table."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else visible(value)


def _html_row(texts: Sequence[str], bold: bool) -> str:
    weight = ' style="font-weight:bold"' if bold else ""
    return f"<tr{weight}>{''.join(f'<td>{html.escape(text)}</td>' for text in texts)}</tr>"


def best_of(scores: Mapping[int, Sequence[float]]) -> tuple[list[int], int | None]:
    """The trials that no other beats, and the one of them that is recommended.

    Args:
        scores: by trial, those that came to their end; smaller is better.
    """
    if not scores:
        return [], None
    numbers = list(scores)
    points = np.array([scores[number] for number in numbers], dtype=np.float64)
    there = np.flatnonzero(non_dominated(points))
    low, range_ = points[there].min(0), np.ptp(points[there], axis=0)  # a trial that diverged sets no scale
    scaled = (points - low) / np.where(range_ > 0, range_, 1.0)
    worst = scaled.max(1)
    best = min(there, key=lambda i: (worst[i], scaled[i].sum(), numbers[i]))
    return [numbers[i] for i in there], numbers[int(best)]
