"""How a model serves its clients: the spread of their own figures, its worst decile, and how it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import made_line, made_run
from polyfed.metrics import spread
from polyfed.report import Figure, Record
from polyfed.report.figures import clients


def record_of(tmp_path: Path, own: list[list[float | None]], metric: str = "loss") -> Record:
    """A run with an evaluation for each list of clients' figures."""
    lines = [made_line(t, {"left": 1.0}) for t in range(1, len(own) + 1)]
    every = [
        {"round": t, "split": "test", "clients": {"left": {metric: values}}} for t, values in enumerate(own, start=1)
    ]
    return Record.read(made_run(tmp_path / "one", lines, clients=every))


def by_key(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures}


def test_median_quartiles_and_worst_decile_move_over_the_rounds(tmp_path: Path) -> None:
    values = np.arange(20.0)
    moving = by_key(clients([record_of(tmp_path, [values.tolist(), (values / 2).tolist()])]))["clients-loss"]
    median, worst = moving.series
    assert (median.name, worst.name) == ("median", "worst decile")
    assert median.y.tolist() == [9.5, 4.75]
    assert median.low.tolist() == [4.75, 2.375]
    assert worst.y.tolist() == [18.5, 9.25]
    assert "round" in moving.x
    assert "bytes_up" in moving.x


@pytest.mark.parametrize(("metric", "high_is_bad"), [("loss", True), ("accuracy", False)])
def test_the_worst_decile_is_the_one_that_summaries_have(tmp_path: Path, metric: str, high_is_bad: bool) -> None:
    values = np.random.default_rng(0).random(37)
    figure = by_key(clients([record_of(tmp_path, [values.tolist()], metric)]))[f"clients-{metric}"]
    assert figure.series[1].y[0] == pytest.approx(spread(values, high_is_bad=high_is_bad)["worst_10"])


def test_every_client_is_drawn_from_the_worst_to_the_best(tmp_path: Path) -> None:
    last = by_key(clients([record_of(tmp_path, [[9.0, 9.0, 9.0], [1.0, None, 3.0]])]))["clients-loss-last"]
    one = last.series[0]
    assert one.y.tolist() == [3.0, 1.0]
    assert one.x["share"].tolist() == [25.0, 75.0]
    higher = by_key(clients([record_of(tmp_path / "b", [[0.5, 0.2]], "accuracy")]))["clients-accuracy-last"]
    assert higher.series[0].y.tolist() == [0.2, 0.5]


def told(mean: float) -> dict[str, Any]:
    return {"left": {"loss": {"mean": mean, "std": 0.5, "worst": 4.0, "worst_5": 3.5, "worst_10": 3.0}}}


def test_without_every_clients_figures_the_lines_tell_mean_and_deviation() -> None:
    lines = [made_line(1, {"left": 1.0}, clients=told(2.0)), made_line(2, {"left": 1.0}, clients=told(1.0))]
    figures = by_key(clients([Record.of(lines, "one")]))
    mean, worst = figures["clients-loss"].series
    assert (mean.name, mean.y.tolist(), mean.low.tolist()) == ("mean", [2.0, 1.0], [1.5, 0.5])
    assert worst.y.tolist() == [3.0, 3.0]
    assert "clients-loss-last" not in figures


def test_several_runs_are_told_apart_by_colour_and_their_deciles_by_dash() -> None:
    lines = [made_line(1, {"left": 1.0}, clients=told(2.0))]
    records = [Record.of(lines, name, {"algorithm": {"name": name}}) for name in ("fedavg", "afl")]
    figure = by_key(clients(records))["clients-loss"]
    assert [(one.name, one.colour, one.dash) for one in figure.series] == [
        ("fedavg", 0, 0), ("fedavg, worst decile", 0, 1), ("afl", 1, 0), ("afl, worst decile", 1, 1),
    ]  # fmt: skip


def test_an_evaluation_whose_round_is_not_logged_yet_waits(tmp_path: Path) -> None:
    record = record_of(tmp_path, [[1.0, 2.0]])
    assert record.path is not None
    with (record.path / "clients.jsonl").open("a") as file:
        file.write('{"round": 2, "split": "test", "clients": {"left": {"loss": [5.0, 6.0]}}}\n')
    assert by_key(clients([record]))["clients-loss"].series[0].y.tolist() == [1.5]
    assert clients([Record.of([made_line(1, {"left": 1.0})], "none")]) == []


def test_seeds_of_a_method_are_drawn_as_their_mean() -> None:
    def seed(place: int, mean: float, *rounds: int) -> Record:
        lines = [made_line(t, {"left": 1.0}, clients=told(mean)) for t in rounds]
        return Record.of(lines, f"run-{place}", {"seed": place, "algorithm": {"name": "fedavg"}})

    figure = by_key(clients([seed(0, 1.0, 1, 2), seed(1, 2.0, 1, 2)]))["clients-loss"]
    assert [(one.name, one.y.tolist(), one.run) for one in figure.series] == [
        ("mean", [1.5, 1.5], ""), ("worst decile", [3.0, 3.0], ""),
    ]  # fmt: skip
    assert "mean" in figure.notes[0]
    apart = by_key(clients([seed(0, 1.0, 1, 2), seed(1, 2.0, 1)]))["clients-loss"]
    assert [one.run for one in apart.series] == ["run-0", "run-0", "run-1", "run-1"]
