"""Run directories and fronts as they are on disk, written without training: for what only reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from polyfed.core.format import FORMAT


def write_run(
    path: Path,
    rounds: int = 8,
    done: bool = True,
    objectives: Sequence[str] = ("left", "right"),
    ends: Sequence[float] = (0.4, 0.6),
    **settings: Any,
) -> Path:
    """A run whose losses fall from about 2.3 towards `ends`; with a result and a model where it is `done`.

    Args:
        path: its directory.
        rounds: that are done.
        done: whether it is complete.
        objectives: their names.
        ends: where each of their losses goes.
        settings: top-level keys of its experiment.
    """
    path.mkdir(parents=True)
    table: dict[str, Any] = {"name": "two-digits", "rounds": rounds if done else 2 * rounds, "seed": 0}
    table |= {"engine": {"name": "local"}, "data": {"name": "two-digits"}, "algorithm": {"name": "fedcmoo", "lr": 0.3}}
    (path / "experiment.toml").write_text(tomli_w.dumps({"format": FORMAT, **table, **settings}), encoding="utf-8")
    (path / "metrics.jsonl").touch()
    for round in range(1, rounds + 1):
        add_round(path, round, objectives, ends)
    if done:
        last = line_of(rounds, objectives, ends)
        figures = {name: {"loss": last["losses"][name], **last["metrics"][name]} for name in objectives}
        result = {"run": path.name, "algorithm": "fedcmoo", "engine": "local", "rounds": rounds, "seed": 0}
        result |= {"seconds": 1.5, "bytes_up": 10, "bytes_down": 10, "failures": 0, "split": "test"}
        result["objectives"] = figures
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
        (path / "model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    return path


def add_round(
    path: Path, round: int, objectives: Sequence[str] = ("left", "right"), ends: Sequence[float] = (0.4, 0.6)
) -> None:
    """Append a round's line, as a run does."""
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps(line_of(round, objectives, ends)).encode() + b"\n")


def line_of(
    round: int, objectives: Sequence[str] = ("left", "right"), ends: Sequence[float] = (0.4, 0.6)
) -> dict[str, Any]:
    """A round's line of metrics.jsonl."""
    losses = {name: end + (2.3 - end) * math.exp(-round / 6) for name, end in zip(objectives, ends, strict=True)}
    return {
        "round": round, "bytes_up": 1000, "bytes_down": 1000, "cohort": [round % 7, (round + 1) % 7, (round + 3) % 7],
        "weights": {name: 1 / len(objectives) for name in objectives}, "losses": losses,
        "metrics": {name: {"accuracy": 1 - loss / 2.5} for name, loss in losses.items()}, "split": "test",
        "evaluation_bytes": 0, "failures": [], "seconds": 0.1,
    }  # fmt: skip


def write_front(path: Path, points: int = 5, rounds: int = 8, objectives: Sequence[str] = ("left", "right")) -> Path:
    """A front of points along a path: the more a preference is for the first objective, the less its loss.

    Args:
        path: its folder.
        points: how many.
        rounds: of each of them.
        objectives: their names.
    """
    path.mkdir(parents=True)
    told: list[dict[str, Any]] = []
    for place in range(points):
        preference = _preference(place / max(1, points - 1), objectives)
        ends = [0.2 + (1 - share) ** 2 for share in preference.values()]
        name = f"preference-{place}"
        write_run(path / name, rounds, True, objectives, ends, algorithm={"name": "fedcmoo-pref"})
        last = line_of(rounds, objectives, ends)
        told.append({
            "run": name, "kind": "preference", "preference": preference, "start": told[-1]["run"] if told else None,
            "state": "done", "why": "", "round": rounds, "losses": last["losses"], "metrics": last["metrics"],
            "non_dominated": True,
        })  # fmt: skip
    front = {"format": 1, "kind": "front", "name": "two-digits", "state": "done", "objectives": list(objectives)}
    front |= {"split": "test", "points": told, "hypervolume": 1.5, "spacing": 0.04}
    (path / "front.json").write_text(json.dumps(front), encoding="utf-8")
    return path


def _preference(share: float, objectives: Sequence[str]) -> Mapping[str, float]:
    first, *others = objectives
    return {first: share, **{name: (1 - share) / len(others) for name in others}}
