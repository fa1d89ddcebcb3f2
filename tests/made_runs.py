"""Run directories made of a few lines, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w


def made_line(round: int, losses: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """A round's line as the loop writes it; each objective has an accuracy of 1 - loss / 4."""
    line: dict[str, Any] = {"round": round, "bytes_up": 1000, "bytes_down": 500, "cohort": [0, 1], "failures": []}
    line |= {"losses": dict(losses), "metrics": {name: {"accuracy": 1 - v / 4} for name, v in losses.items()}}
    return line | {"split": "test", "evaluation_bytes": 0, "seconds": 0.5} | more


def made_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    clients: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A run's directory with these files."""
    path.mkdir(parents=True)
    whole = {"format": 1, "name": "made", "rounds": len(lines), "seed": 0, "algorithm": {"name": "fedavg", "lr": 0.1}}
    (path / "experiment.toml").write_text(tomli_w.dumps({**whole, **(settings or {})}), encoding="utf-8")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if summary is not None:
        (path / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    if clients:
        (path / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in clients), encoding="utf-8")
    return path


def falling(rounds: int, names: Sequence[str] = ("left", "right"), start: float = 2.0) -> list[dict[str, Any]]:
    """Lines of losses that fall, each objective a little apart from the one before it."""
    return [
        made_line(t, {name: start / t + 0.1 * k for k, name in enumerate(names)}, weights=dict.fromkeys(names, 0.5))
        for t in range(1, rounds + 1)
    ]
