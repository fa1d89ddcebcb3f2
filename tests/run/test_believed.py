"""What an evaluation believes: no more rows than a client has, in any split, and no statistics that end a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hostile import SaysAlways, named
from polyfed import BadInput, FedAvg, Federation, Layer, Objective, Problem, Result, SplitMetric, train
from polyfed.core.fleet import Population
from polyfed.metrics import auc, f1, quantile

CLIENTS = 6
ENGINES = ["local", "batched", "flower"]


def data(labels: bool = False, **more: Any) -> Federation:
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32) if labels else x[:, 0]
    return Federation.from_arrays(x, {"y": y}, clients=CLIENTS, **more)


def run(federation: Federation, out: Path, metrics: dict[str, Any], *layers: Layer, **more: Any) -> Result:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(nn.Linear(5, 1), [Objective("y", more.pop("loss", "squared"), metrics)])
    if more.get("engine") == "flower":
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
    method = FedAvg(lr=0.1, local_steps=2, batch_size=8)
    return train(problem, federation, method, rounds=2, layers=layers, out=out, **more)


def to(value: float) -> Callable[[Tensor], Tensor]:
    return lambda a: torch.full_like(a, value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("split", ["valid", "test"])
def test_nobody_has_more_rows_kept_aside_than_the_server_knows(split: str, engine: str, tmp_path: Path) -> None:
    federation = data(labels=True, **{split: 0.2})  # 4 rows each
    more: dict[str, Any] = {"engine": engine, "loss": "binary", "evaluate": {"splits": [split]}}
    lies = SaysAlways([0], heard=lambda h: h * 1e12 if float(h) == 4 else h, values=lambda v: v * 0)
    result = run(federation, tmp_path / "lies", {}, lies, **more)
    assert named(result) == {0}
    assert result.history[-1]["failures"][0]["why"].endswith("it should be a whole number from 0 to 4")
    honest = run(federation, tmp_path / "honest", {}, **more)
    assert honest.summary["failures"] == 0
    lines = (one.history[-1]["splits"][split]["losses"]["y"] for one in (result, honest))
    assert next(lines) == pytest.approx(next(lines), rel=0.5)


def test_rows_kept_aside_may_have_more_labels_than_those_of_training(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    y = x[:, 0].copy()
    y[:10] = np.nan  # client 0 has labels for half of its 20 training rows, and for all of its 20 test rows
    rows, aside = np.split(np.arange(40), 2), np.split(np.arange(40, 80), 2)
    theirs = [(x[some], {"y": y[some]}) for some in aside]
    federation = Federation.from_arrays(x[:40], {"y": y[:40]}, clients=rows, test=theirs)
    assert run(federation, tmp_path, {}).summary["failures"] == 0


def test_who_has_not_said_how_many_it_keeps_aside_may_have_ten_times_its_examples() -> None:
    aside = {"test": np.array([7, -1])}
    some = Population(("y",), np.array([5, 5]), np.ones((2, 1), dtype=bool), aside=aside)
    assert [some.rows(split).tolist() for split in ("train", "valid", "test")] == [[5, 5], [50, 50], [7, 50]]


@pytest.mark.parametrize(
    ("metric", "labels"), [(quantile(1.0), False), (auc(bins=64), True), (f1(), True)], ids=["quantile", "auc", "f1"]
)
def test_counts_add_up_to_no_more_than_the_rows_allow(metric: SplitMetric, labels: bool, tmp_path: Path) -> None:
    many = SaysAlways([0], counts=lambda c: torch.full_like(c, 20, dtype=torch.int64))  # as many as there are rows
    federation, loss = data(labels), "binary" if labels else "squared"
    result = run(federation, tmp_path, {"own": metric}, many, loss=loss)
    assert named(result) == {0}
    assert "'counts' adds up to more than its rows allow" in result.history[0]["failures"][0]["why"]


# figures that cannot be computed


def residuals(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    error = (output.reshape(len(mask)) - target.reshape(len(mask))) * mask
    return torch.stack([mask.sum(), error.sum(), error.square().sum()])


def deviation(moments: Any) -> float:
    return math.sqrt(moments[2] / moments[0] - (moments[1] / moments[0]) ** 2)


def negative(moments: Tensor) -> Tensor:
    return moments * torch.tensor([1.0, 1.0, -1e3])


def less_than_nobody(moments: Tensor) -> Tensor:
    """Fine alone, but not with the others'."""
    return moments * torch.tensor([-1.0, 1e3, -1e9])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lie", [negative, less_than_nobody])
def test_one_clients_statistics_do_not_end_a_run(lie: Any, engine: str, tmp_path: Path) -> None:
    metric = SplitMetric(residuals, deviation, 3, "lower")
    with pytest.warns(RuntimeWarning, match=r"'own' of objective 'y' could not be .* NaN: ValueError") as w:
        result = run(data(), tmp_path, {"own": metric}, SaysAlways([2], moments=lie), engine=engine)
    assert sum("could not be computed" in str(one.message) for one in w) == 1
    assert len(result.history) == 2
    for line in result.history:
        assert [one["client"] for one in line["failures"]] == [2]
        assert "the metric 'own' of 'y' cannot be computed (ValueError" in line["failures"][0]["why"]
        assert line["metrics"]["y"]["own"] is None or math.isnan(line["metrics"]["y"]["own"])
        assert "line" in line["not_computed"]["y"]["own"]
        assert line["losses"]["y"] > 0


def test_of_too_many_clients_nobody_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.run.wholesplit.KEPT", 3 * (CLIENTS - 1))
    metric = SplitMetric(residuals, deviation, 3, "lower")
    with pytest.warns(RuntimeWarning, match="could not be computed"):
        result = run(data(), tmp_path, {"own": metric}, SaysAlways([2], moments=negative))
    assert result.summary["failures"] == 0
    assert "own" in result.history[-1]["not_computed"]["y"]


def test_a_function_that_is_wrong_is_told_of_and_nobody_is_blamed(tmp_path: Path) -> None:
    broken = SplitMetric(residuals, lambda moments: moments[7], 3, "lower")
    with pytest.warns(RuntimeWarning, match=r"and is NaN: IndexError: index 7 .* \(<lambda>, line \d+\)"):
        result = run(data(), tmp_path, {"own": broken}, evaluate={"clients": True})
    assert result.summary["failures"] == 0
    assert "own" not in result.history[-1]["clients"]["y"]
    assert result.history[-1]["not_computed"]["y"]["own"].startswith("IndexError")


def test_clients_whose_own_figure_fails_have_none(tmp_path: Path) -> None:
    def log_share(moments: Any) -> float:
        return math.log(moments[1] / moments[0])

    def positives(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([mask.sum(), (mask * (target.reshape(len(mask)) > 1)).sum()])

    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    y = np.r_[np.zeros(20), np.full(20, 2.0)].astype(np.float32)
    federation = Federation.from_arrays(x, {"y": y}, clients=np.split(np.arange(40), 2))
    metric = SplitMetric(positives, log_share, 2, "lower")
    result = run(federation, tmp_path, {"own": metric}, evaluate={"per_client": True})
    assert result.clients["y"]["own"] == pytest.approx([math.nan, 0.0], nan_ok=True)
    assert result.history[-1]["metrics"]["y"]["own"] == pytest.approx(math.log(0.5))
    assert result.summary["failures"] == 0


def test_times_is_of_counts() -> None:
    every: list[dict[str, Any]] = [{"times": 1}, {"counts": True, "times": 0}, {"counts": True, "times": 1.5}]
    for wrong in every:
        with pytest.raises(BadInput, match="times, of counts, should be a whole number from 1"):
            SplitMetric(residuals, deviation, 3, "lower", **wrong)
