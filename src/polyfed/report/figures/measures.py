"""Losses and metrics of the objectives, on the main split, others, while training, and after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed.report.figure import Axis, Figure
from polyfed.report.figures.curves import Subject, below, curves
from polyfed.report.records import Record


def losses(records: Sequence[Record]) -> Figure | None:
    """The loss of every objective at each evaluation."""
    y = Axis("loss", f"loss{_rows(records)}", better="lower")
    subject = Subject("losses", "Losses", "The loss of each objective over the rounds.", y)
    return curves(records, subject, _names(records, "losses"), below("losses"))


def metrics(records: Sequence[Record]) -> list[Figure]:
    """A figure for each metric: accuracy, AUC, ..., of the objectives that have it."""
    found = [_metric(records, metric, _word(metric), "metrics") for metric in _metrics(records, "metrics")]
    return [figure for figure in found if figure is not None]


def train(records: Sequence[Record]) -> Figure | None:
    """The losses that clients met while they trained."""
    y = Axis("loss", "training loss", better="lower")
    subject = Subject("train", "Training losses", "The mean loss that clients met in each round's training.", y)
    return curves(records, subject, _names(records, "train"), below("train"))


def progress(records: Sequence[Record]) -> list[Figure]:
    """What a round's local training gained its participants on their own rows."""
    found = []
    for metric in _metrics(records, "progress"):
        said = metric.replace("_", " ")
        about = f"How much better the {said} of the participants became on their own rows by local training alone."
        y = Axis(metric, f"gain in {said}", better="higher")
        subject = Subject(f"progress-{_word(metric)}", f"Local progress: {said}", about, y)
        found.append(curves(records, subject, _names(records, "progress"), below("progress", last=metric)))
    return [figure for figure in found if figure is not None]


def splits(records: Sequence[Record]) -> list[Figure]:
    """Losses and metrics on the other splits that were asked for."""
    found: list[Figure | None] = []
    for split in dict.fromkeys(one for record in records for one in record.columns.keys("splits")):
        path = ("splits", split)
        y = Axis("loss", f"loss on {split} rows", better="lower")
        subject = Subject(f"{split}-losses", f"Losses on {split} rows", f"Each objective's loss on {split} rows.", y)
        found.append(curves(records, subject, _names(records, *path, "losses"), below(*path, "losses")))
        every = _metrics(records, *path, "metrics")
        found += [_metric(records, one, f"{split}-{_word(one)}", *path, "metrics") for one in every]
    return [figure for figure in found if figure is not None]


def _metric(records: Sequence[Record], metric: str, key: str, *path: str) -> Figure | None:
    names = [name for name in _names(records, *path) if any(metric in r.columns.keys(*path, name) for r in records)]
    better = next((b for r in records for n in names if (b := r.better(n, metric))), "")
    said = metric.replace("_", " ")
    where = f" on {path[1]} rows" if path[0] == "splits" else ""
    y = Axis(metric, f"{said}{where or _rows(records)}", better=better)
    subject = Subject(key, f"{said[:1].upper()}{said[1:]}{where}", f"The {said} of each objective over the rounds.", y)
    return curves(records, subject, names, below(*path, last=metric))


def _metrics(records: Sequence[Record], *path: str) -> list[str]:
    """The names of all objectives' metrics."""
    every = (m for r in records for name in r.columns.keys(*path) for m in r.columns.keys(*path, name))
    return list(dict.fromkeys(every))


def _names(records: Sequence[Record], *path: str) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.columns.keys(*path)))


def _rows(records: Sequence[Record]) -> str:
    """On which rows, where all runs agree."""
    every = [record.columns.split for record in records]
    words = {str(word) for one in every for word in (one.values() if isinstance(one, dict) else (one,)) if word}
    return f" on {words.pop()} rows" if len(words) == 1 else ""


def _word(name: str) -> str:
    """A metric's name as one word of a file's."""
    return "metric-" + "".join(c if c.isalnum() or c in "_-" else "-" for c in name)
