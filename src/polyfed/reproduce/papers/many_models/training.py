"""Runs inside of a driver, and the gain on data (Section 7): rounds of training one by one against together."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.experiment.gain import PATIENCE, bases, chosen
from polyfed.reproduce.sharing import once
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.study.running import DataOnce

SPLITS = ("train", "test")
DATA = DataOnce()  # a cell has several runs on the same
Accuracies = dict[str, dict[str, float]]  # by split, then by model


def lines_of(experiment: Settings, callbacks: Iterable[Callback] = (), whole: bool = True) -> list[dict[str, Any]]:
    """The metrics of a run whose directory does not stay.

    Args:
        experiment: its settings.
        callbacks: who watches it.
        whole: false where only some of an experiment's models are trained.
    """
    engine = {"name": "auto" if torch.cuda.is_available() else "local"}
    made, _ = plan("gain", {"engine": engine, **experiment}, whole=whole, load=DATA)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", "gain", {})
        execute(replace(made, callbacks=tuple(callbacks)), directory)
        return directory.history()


def accuracies(line: Mapping[str, Any]) -> Accuracies:
    """The accuracy of every model at an evaluation, on both splits."""
    parts = {"train": line["splits"]["train"], "test": line}
    return {
        split: {name.partition("/")[0]: float(row["accuracy"]) for name, row in part["metrics"].items()}
        for split, part in parts.items()
    }


@dataclass
class Hits(Callback):
    """Notes when each model is first as accurate as alone, when all are at once, and ends the run, on both splits."""

    targets: Accuracies
    at_once: bool = False  # whether the run ends when all are there at once, or when each has been
    first: dict[tuple[str, str], int] = field(default_factory=dict)  # by split and model
    once: dict[str, int] = field(default_factory=dict)  # by split
    at: dict[int, Accuracies] = field(default_factory=dict)  # by round

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        t = int(line["round"])
        self.at[t] = accuracies(line)
        for split, some in self.targets.items():
            there = [model for model, target in some.items() if self.at[t][split][model] >= target]
            for model in there:
                self.first.setdefault((split, model), t)
            if len(there) == len(some):
                self.once.setdefault(split, t)
        if len(self.once) == len(SPLITS) or (not self.at_once and all(self.last(split) for split in SPLITS)):
            run.stop()

    def last(self, split: str) -> int | None:
        """The round by which every model has been there; None where one has not."""
        found = [t for (of, _), t in self.first.items() if of == split]
        return max(found) if len(found) == len(self.targets[split]) else None


def gain(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """A driver: the gain M T_1 / T_M where the target is what each model reaches alone in T_1 rounds, and accuracies.

    Args:
        settings: an experiment, its rounds being T_1; M: how many of its models are trained, or copies of them;
            at_once: whether runs go on until all models are there at once; of: whose accuracies are told, the mean of
            all if left out.
        seed: of the runs.
    """
    DATA.begin()
    experiment = {key: value for key, value in settings.items() if key not in ("M", "of", "at_once")} | {"seed": seed}
    M, at_once, one_by_one = settings["M"], settings["at_once"], settings["M"] * experiment["rounds"]
    found = _once("together", experiment, [M, at_once], lambda: _together(experiment, M, at_once))
    values: dict[str, float | None] = {}
    for split in SPLITS:
        gained = one_by_one / found["needed"][split]
        values |= {f"gain_{split}": gained, f"share_{split}": gained / M}
        values[f"once_{split}"] = one_by_one / found["once"][split] if at_once else None
        for when in ("alone", "together"):
            some = found[when][split]
            values[f"{when}_{split}"] = 100 * (some[settings["of"]] if "of" in settings else mean(some.values()))
    return {"values": values, "rounds": found["rounds"]}


def _together(experiment: Settings, M: int, at_once: bool) -> dict[str, Any]:
    """What M models reach alone and together, and when; who is not there after twice M T_1 rounds counts as being then.

    Args:
        experiment: of all models; its rounds are T_1.
        M: how many models.
        at_once: whether the run goes on until all are there at once.
    """
    T, models = experiment["rounds"], chosen(experiment, M)
    alone = {
        base: _once("alone", experiment, base, partial(_alone, experiment, base))
        for base in dict.fromkeys(models.values())
    }
    targets = {split: {name: alone[base][split] for name, base in models.items()} for split in SPLITS}
    if M == 1:
        rounds = dict.fromkeys(SPLITS, T)
        return {"needed": rounds, "once": rounds, "alone": targets, "together": targets, "rounds": T}
    hits, most = Hits(targets, at_once), PATIENCE * M * T
    _train(experiment, models, most, M, hits)
    needed = {split: hits.last(split) or most for split in SPLITS}
    once = {split: hits.once.get(split, most) for split in SPLITS}
    end = max(hits.at)
    when = once if at_once else needed
    reached = {split: hits.at[min(when[split], end)][split] for split in SPLITS}
    return {"needed": needed, "once": once, "alone": targets, "together": reached, "rounds": end}


def _alone(experiment: Settings, base: str) -> dict[str, float]:
    """The accuracies of one model that has all clients to itself, by split; whatever the schedule."""
    T = experiment["rounds"]
    hits = Hits({split: {base: math.inf} for split in SPLITS})  # which it does not reach
    _train(experiment, {base: base}, T, T, hits)
    return {split: hits.at[T][split][base] for split in SPLITS}


def _train(experiment: Settings, models: Mapping[str, str], rounds: int, every: int, hits: Hits) -> None:
    tables = {name: bases(experiment)[base] for name, base in models.items()}
    evaluate = {"every": every, "splits": ["train"]}
    some = {**experiment, "rounds": rounds, "models": tables, "evaluate": evaluate}
    lines_of(some, [hits], whole={*models.values()} == {*bases(experiment)})


def _once(what: str, experiment: Settings, of: Any, make: Callable[[], Any]) -> Any:
    """What rows of a table share.

    Args:
        what: 'alone' or 'together'.
        experiment: of which; alone, a model's schedule does not matter.
        of: which model, or how many, and when the run may end.
        make: computes it.
    """
    same = {key: value for key, value in experiment.items() if what == "together" or key != "schedule"}
    return once([what, same, of], lambda folder: make())
