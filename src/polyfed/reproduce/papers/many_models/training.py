"""Runs inside of a driver, and the gain on data (Section 7): rounds of training one by one against together."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.experiment.gain import PATIENCE, bases, chosen
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
    """Notes when each model is first as accurate as alone, and ends the run when all are, on both splits."""

    targets: Accuracies
    first: dict[tuple[str, str], int] = field(default_factory=dict)  # by split and model
    at: dict[int, Accuracies] = field(default_factory=dict)  # by round

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        t = int(line["round"])
        self.at[t] = accuracies(line)
        for split, some in self.targets.items():
            for model, target in some.items():
                if self.at[t][split][model] >= target:
                    self.first.setdefault((split, model), t)
        if len(self.first) == sum(map(len, self.targets.values())):
            run.stop()

    def last(self, split: str) -> int | None:
        """T_M: the round by which every model has been there; None where one has not."""
        found = [t for (of, _), t in self.first.items() if of == split]
        return max(found) if len(found) == len(self.targets[split]) else None


def gain(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """A driver: the gain M T_1 / T_M where the target is what each model reaches alone in T_1 rounds.

    A run that is not there after twice M T_1 rounds ends, and counts as if it were then.

    Args:
        settings: an experiment, its rounds being T_1, and M: how many of its models are trained, or copies of them.
        seed: of the runs.
    """
    DATA.begin()
    T, M = settings["rounds"], settings["M"]
    experiment = {key: value for key, value in settings.items() if key != "M"} | {"seed": seed}
    models = chosen(experiment, M)
    alone = {base: _alone(json.dumps(experiment), base) for base in dict.fromkeys(models.values())}
    targets = {split: {name: alone[base][split] for name, base in models.items()} for split in SPLITS}
    if M == 1:
        return {"values": _values(targets, targets, models, dict.fromkeys(SPLITS, T), T), "rounds": T}
    hits = Hits(targets)
    _trained(experiment, models, PATIENCE * M * T, M, hits)
    needed = {split: hits.last(split) or PATIENCE * M * T for split in SPLITS}
    end = max(hits.at)
    reached = {split: hits.at[min(needed[split], end)][split] for split in SPLITS}
    return {"values": _values(targets, reached, models, needed, T), "rounds": end}


@cache
def _alone(experiment: str, base: str) -> dict[str, float]:
    """The accuracies of one model that has all clients to itself, by split."""
    settings = json.loads(experiment)
    hits = Hits({split: {base: 2.0} for split in SPLITS})  # which none reaches
    _trained(settings, {base: base}, settings["rounds"], settings["rounds"], hits)
    return {split: hits.at[settings["rounds"]][split][base] for split in SPLITS}


def _trained(settings: Settings, models: Mapping[str, str], rounds: int, every: int, hits: Hits) -> None:
    tables = {name: bases(settings)[base] for name, base in models.items()}
    evaluate = {"every": every, "splits": ["train"]}
    some = {**settings, "rounds": rounds, "models": tables, "evaluate": evaluate}
    lines_of(some, [hits], whole={*models.values()} == {*bases(settings)})


def _values(
    targets: Accuracies, reached: Accuracies, models: Mapping[str, str], needed: Mapping[str, int], T: int
) -> dict[str, float]:
    found: dict[str, float] = {}
    for split in SPLITS:
        gained = len(models) * T / needed[split]
        found |= {f"gain_{split}": gained, f"share_{split}": gained / len(models), f"rounds_{split}": needed[split]}
        for when, table in (("alone", targets[split]), ("together", reached[split])):
            found[f"{when}_{split}"] = 100 * sum(table.values()) / len(table)
            if len({*models.values()}) == len(models):  # each is of its own kind
                found |= {f"{name.replace('-', '_')}_{when}_{split}": 100 * table[name] for name in models}
    return found
