"""A search under way: trials begin, learn from those before, end, and are written down.

A trial learns from all trials but the last few (`behind`), which may still be under way where several run at once. So
what is drawn does not hang on who is quicker, and a search that was killed ends as one that was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tomli_w

from polyfed.core.errors import BadInput, Interrupted, RunStopped, shown
from polyfed.core.settings import Settings
from polyfed.run.callbacks import Callback
from polyfed.run.directory import RunDirectory, differences, write
from polyfed.study.cells import Cell, locked, make_cell, read_study, restore_study, write_study
from polyfed.study.grid import as_text
from polyfed.study.hopeless import Curve, Hopeless, limits
from polyfed.study.runner import Line, Outcome
from polyfed.study.sampling import Sampler, Seen, Values, changed
from polyfed.study.search import Runs, Search
from polyfed.study.trials import Watch
from polyfed.study.tuned import BEST, Tuned, best_of, experiment_file

FORMAT = 1
SAME = ("name", "settings", "parameters", "by")  # what two calls have to agree on to be one search
Entry = dict[str, Any]  # of study.json's list of trials


@dataclass(frozen=True)
class TrialCell(Cell):
    """A trial's run, and what it has to be better than to go on."""

    trial: int = 0
    limits: Curve = field(default_factory=dict)


class Tuning:
    """A search under way.

    Args:
        search: what is searched.
        watch: who is shown how far it is.
    """

    def __init__(self, search: Search, watch: Watch) -> None:
        self.search, self.judge, self.watch = search, search.judge, watch
        self.parameters, self.asked, self.jobs = search.request.parameters, search.request.trials, search.jobs
        self.sampler = Sampler(self.parameters, search.tried, search.seed, search.first)
        self.notes: list[str] = []
        self.trials: list[Entry] = []
        self.curves: dict[int, Curve] = {}  # of the trials that are over
        self.behind = 2 * self.jobs - 1
        self.exhausted = False
        self.refused = 0  # trials

    def run(self) -> Tuned:
        """See all trials through."""
        study = self.search.study
        for note in self.search.notes:
            self._note(note)
        with locked(study):
            before = read_study(study)
            known = self._known(before)
            try:
                self._search(known)
            except BadInput:
                restore_study(study, before)
                raise
            self._write_experiments()
        tuned = Tuned(study, self._about("done"))
        if tuned.best is None:
            raise RunStopped(f"No trial of {study} came to its end. {self.trials[0]['why']}")
        return tuned

    def _search(self, known: Sequence[Entry]) -> None:
        state = "stopped"
        try:
            with self.search.open(self.jobs, self._told, self._watchers) as runs:
                self._work(runs, known)
            state = "done"
        except KeyboardInterrupt:
            raise Interrupted("Stopped; the same command goes on from the checkpoints.") from None
        finally:
            self._keep(state, known)
        if self.refused == len(self.trials):
            raise BadInput(self.trials[0]["why"])

    def _work(self, runs: Runs, known: Sequence[Entry]) -> None:
        while True:
            while self._may_begin(runs):
                if not self._begin(runs, known):
                    break
                self._keep("running", known)
            outcome = runs.next()
            if outcome is None:
                return
            self._end(outcome)
            self._keep("running", known)

    # a trial

    def _may_begin(self, runs: Runs) -> bool:
        """Whether there is room for one more, and all that it learns from are over."""
        number = len(self.trials)
        ready = all(before in self.curves for before in range(number - self.behind + 1))
        return number < self.asked and runs.working < self.jobs and ready and not self.exhausted

    def _begin(self, runs: Runs, known: Sequence[Entry]) -> bool:
        number = len(self.trials)
        seen = [one for one in self.trials if one["trial"] <= number - self.behind]
        if number < len(known):
            values: Values | None = known[number]["values"]
        else:
            taken = [one["values"] for one in self.trials]
            values = self.sampler.draw(number, [self._seen(one) for one in seen], taken)
        if values is None:
            self.exhausted = True
            self._note(f"Nothing new was drawn after {number} trials: what may be chosen has been tried.")
            return False
        cell = self._cell(number, values, [self.curves[one["trial"]] for one in seen if one["state"] == "done"])
        self.trials.append(
            {"trial": number, "values": values, "run": cell.name, "state": "running", "rounds": 0, "figures": {},
             "why": ""}
        )  # fmt: skip
        self.watch.began(number, values)
        runs.submit(cell)
        return True

    def _cell(self, number: int, values: Values, curves: Sequence[Curve]) -> Cell:
        settings = changed(self.search.tried, values, self._note)
        own = [note for note in self.notes if note.startswith("Left out")]  # of the experiment's own values
        left = [p.key for p in self.parameters if p.key not in values and p.key not in " ".join(own)]
        if left:
            named = " and ".join(str(values[p.key]) for p in self.parameters if p.names)
            self._note(f"Not varied with {named}, which does not have it: {', '.join(left)}.")
        drawn = [(p, _word(values[p.key])) for p in self.parameters if p.key in values]
        words = [word if p.names else f"{p.short}={word}" for p, word in drawn]
        made = make_cell(f"trial-{number:03d} {' '.join(words)}", self.search.seed, settings, values)
        return TrialCell(**vars(made), trial=number, limits=limits(curves))

    def _seen(self, entry: Entry) -> Seen:
        done = entry["state"] == "done"
        return Seen(entry["values"], self._scores(entry) if done else None)

    def _scores(self, entry: Entry) -> tuple[float, ...]:
        return self.judge.scores(tuple(entry["figures"][name] for name in self.judge.columns))

    def _watchers(self, cell: Cell) -> list[Callback]:
        """Called where the trial runs."""
        return [Hopeless(self.judge, cell.limits if isinstance(cell, TrialCell) else {})]

    def _told(self, cell: Cell, line: Line) -> None:
        if isinstance(cell, TrialCell):
            self.watch.line(cell.trial, line)

    def _end(self, outcome: Outcome) -> None:
        assert isinstance(outcome.cell, TrialCell)
        entry = self.trials[outcome.cell.trial]
        self.refused += outcome.bad
        lines = [] if outcome.bad else RunDirectory(outcome.run).history()
        summary = outcome.summary or {}
        last = next((found for line in reversed(lines) if (found := self.judge.figures(line))), ())
        figures = {name: value for name, value in zip(self.judge.columns, last, strict=False) if math.isfinite(value)}
        early = bool(summary.get("ended_early")) or len(figures) < len(self.judge.columns)
        state = "failed" if outcome.summary is None else "early" if early else "done"
        why = outcome.why or (str(summary.get("stopped", "")) if early else "")
        entry |= {"state": state, "rounds": len(lines), "figures": figures, "why": why}
        self.curves[entry["trial"]] = self.judge.curve(lines)
        self.watch.ended(entry)

    # its files

    def _known(self, found: Mapping[str, Any] | None) -> list[Entry]:
        """The trials that earlier calls began, as study.json has them; those of another search are refused."""
        if found is None:
            return []
        now = self._about("running")
        for key in SAME:
            for name, was, given in differences(key, found.get(key), now[key]):
                raise BadInput(
                    f"{self.search.study} holds a search with {name} = {shown(was)}. Found {shown(given)}: choose "
                    "another folder with --out, or remove that one."
                )
        self.behind = int(found.get("behind", self.behind))
        self.jobs = min(self.jobs, (self.behind + 1) // 2)
        trials: list[Entry] = found.get("trials", [])
        self.asked = max(self.asked, len(trials))
        return trials

    def _about(self, state: str, known: Sequence[Entry] = ()) -> dict[str, Any]:
        done = {one["trial"]: self._scores(one) for one in self.trials if one["state"] == "done"}
        front, best = best_of(done)
        search = self.search
        by = dict(asked) if isinstance(asked := search.request.by, Mapping) else asked
        return {
            "format": FORMAT, "kind": "tune", "name": search.name, "state": state,
            "settings": json.loads(json.dumps(search.tried, default=str)),
            "parameters": {p.key: str(p) for p in self.parameters}, "by": by, "behind": self.behind,
            "columns": list(self.judge.columns), "higher": self.judge.higher,
            "file": search.own is not None,
            "trials": [*self.trials, *known[len(self.trials) :]], "front": front, "best": best, "notes": self.notes,
        }  # fmt: skip

    def _keep(self, state: str, known: Sequence[Entry]) -> None:
        write_study(self.search.study, self._about(state, known))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.watch.note(text)

    def _write_experiments(self) -> None:
        """The experiments of the trials that no other beats; those of an earlier call that no longer are go."""
        if self.search.own is None:
            return
        about = self._about("done")
        study = self.search.study
        wanted = {experiment_file(number): number for number in about["front"]}
        for old in study.glob("trial-*.toml"):
            if old.name not in wanted:
                old.unlink()
        if about["best"] is not None:
            wanted[BEST] = about["best"]
        for file, number in wanted.items():
            write(study / file, self._experiment(self.trials[number], self.search.own).encode())

    def _experiment(self, entry: Entry, own: Settings) -> str:
        """The person's own experiment, with the values of a trial."""
        search = self.search
        settings = changed(own, entry["values"])
        figures = ", ".join(f"{name} {value:.6g}" for name, value in entry["figures"].items())
        head = {"name": search.name} | ({"folder": search.where} if search.where else {})
        values = ", ".join(f"{key}={as_text(value)}" for key, value in entry["values"].items())
        said = [
            f"Trial {entry['trial']} of {search.study.name}: {values}",
            f"On validation rows after {entry['rounds']} rounds: {figures}",
        ]
        return "".join(f"# {' '.join(line.split())}\n" for line in said) + tomli_w.dumps({**head, **settings})


def _word(value: Any) -> str:
    """A value in the name of a directory."""
    return f"{value:g}" if isinstance(value, float) else str(value)
