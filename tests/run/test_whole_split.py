"""Metrics over a whole split in a run: pooled over clients, the same on every engine, and each client's own."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, r2_score, roc_auc_score
from torch import Tensor, nn

from polyfed import (
    BadInput,
    FedAvg,
    Federation,
    MultiModel,
    Objective,
    Problem,
    Rows,
    SplitMetric,
    train_many,
)
from polyfed import train as train_model
from polyfed.core.layer import Layer, Outgoing, Stage
from polyfed.core.metric import split_statistics
from polyfed.metrics import (
    auc,
    average_precision,
    balanced_accuracy,
    calibration_error,
    demographic_parity_gap,
    equalised_odds_gap,
    f1,
    quantile,
    r2,
)
from polyfed.run.evaluation import Evaluation
from polyfed.run.wholesplit import SplitTotals
from polyfed.testing import open_door

STILL: dict[str, Any] = {"lr": 1e-6, "local_steps": 1, "batch_size": 0}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"risk": nn.Linear(4, 1), "kind": nn.Linear(4, 3), "size": nn.Linear(4, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x).squeeze(1) if name == "size" else head(x) for name, head in self.heads.items()}


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square()


EVERY = {
    "risk": {
        "auc": auc(), "precision": average_precision(), "f1": f1(), "balanced": balanced_accuracy(),
        "calibration": calibration_error(), "parity": demographic_parity_gap("sex"), "odds": equalised_odds_gap("sex"),
    },
    "kind": {
        "auc": auc(3, bins=64), "f1": f1(3), "balanced": balanced_accuracy(3), "calibration": calibration_error(3),
    },
    "size": {"r2": r2(), "median": quantile(0.5), "least": quantile(0.0, "output")},
}  # fmt: skip


def three(sizes: list[int], missing: bool = True) -> tuple[Problem, Federation]:
    """Three objectives; every third client does not hold the second, and some labels of the first are missing."""
    rng = np.random.default_rng(1)
    n, clients = sum(sizes), len(sizes)
    x = torch.from_numpy(rng.normal(size=(n, 4)))
    risk = torch.from_numpy((x[:, 0].numpy() + rng.normal(size=n) > 0).astype(float))
    risk[torch.from_numpy(rng.random(n) < 0.2 * missing)] = torch.nan
    kind, size = (x[:, :3] + torch.from_numpy(rng.normal(size=(n, 3)))).argmax(1), 10 + x[:, 1] * 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Heads()
    losses: dict[str, Any] = {"risk": "binary", "kind": "cross-entropy", "size": squared}
    problem = Problem(model, [Objective(name, losses[name], EVERY[name]) for name in EVERY], torch.float64)
    rows = np.split(rng.permutation(n), np.cumsum(sizes)[:-1])
    holds = {"kind": np.arange(clients) % 3 > 0}
    sex = torch.from_numpy(rng.integers(0, 2, n))
    return problem, Federation(
        x, {"risk": risk, "kind": kind, "size": size}, Rows.of(rows), holds=holds, columns={"sex": sex}
    )


def one(x: Tensor, y: Tensor, rows: list[Any], metrics: Mapping[str, Any], **more: Any) -> tuple[Problem, Federation]:
    """A linear score with fixed weights for labels 0 and 1."""
    model = nn.Linear(x.shape[1], 1).double()
    with torch.no_grad():
        model.weight.fill_(0.7)
        model.bias.zero_()
    return Problem(model, [Objective("y", "binary", metrics)], torch.float64), Federation(
        x, {"y": y}, Rows.of(rows), **more
    )


def labelled(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return torch.from_numpy(x), torch.from_numpy((x.sum(1) + rng.normal(size=n) > 0).astype(float))


def train(problem: Problem, federation: Federation, tmp_path: Path, **more: Any) -> Any:
    more = {"rounds": 1, "out": tmp_path / "run", **more}
    return train_model(problem, federation, more.pop("algorithm", FedAvg(**STILL)), **more)


def test_auc_over_a_thousand_clients_is_that_of_the_pooled_scores(tmp_path: Path) -> None:
    sizes = np.random.default_rng(2).integers(1, 9, 1000)
    x, y = labelled(int(sizes.sum()))
    rows = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    problem, federation = one(x, y, rows, {"auc": auc()})
    result = train(problem, federation, tmp_path, cohort=2)
    with torch.no_grad():
        pooled = roc_auc_score(y, result.model(x)[:, 0])
    line = result.history[-1]
    low, high = line["bounds"]["y"]["auc"]
    assert low <= pooled <= high
    assert high - low < 0.01
    assert line["metrics"]["y"]["auc"] == pytest.approx(pooled, abs=1e-3)
    assert line["split"] == "train"
    assert result.summary["objectives"]["y"]["auc"] == line["metrics"]["y"]["auc"]
    assert result.clients == {}


SIZES = [3, 40, 1, 25, 90, 8, 17]


def test_every_metric_is_the_same_on_every_engine(tmp_path: Path) -> None:
    asked = {"clients": True, "per_client": True}
    problem, federation = three(SIZES)
    found = {
        engine: train(
            problem, federation, tmp_path / engine, engine=engine, evaluate=asked, algorithm=FedAvg(lr=0.1), rounds=2
        )
        for engine in ("local", "wire", "batched")
    }
    base = found["local"]
    for engine in ("wire", "batched"):
        other = found[engine]
        assert not other.history[-1]["failures"]
        for objective, row in base.history[-1]["metrics"].items():
            assert set(row) == set(EVERY[objective])
            assert other.history[-1]["metrics"][objective] == pytest.approx(row, rel=1e-6), (engine, objective)
            for name, values in base.clients[objective].items():
                np.testing.assert_allclose(
                    other.clients[objective][name], values, rtol=1e-6, err_msg=f"{engine} {name}"
                )
    assert np.isnan(base.clients["kind"]["f1"]).tolist() == [True, False, False, True, False, False, True]


def test_rows_without_a_label_and_clients_without_an_objective_do_not_count(tmp_path: Path) -> None:
    problem, federation = three(SIZES)
    result = train(problem, federation, tmp_path)
    metrics = result.history[-1]["metrics"]
    with torch.no_grad():
        out = result.model.double()(federation.x)
    there = federation.labelled["risk"].bool().numpy()
    assert 0 < there.sum() < len(there)
    risk = federation.targets["risk"].numpy()[there]
    assert metrics["risk"]["auc"] == pytest.approx(roc_auc_score(risk, out["risk"][:, 0].numpy()[there]), abs=2e-3)
    held = np.concatenate([federation.train[i] for i in range(len(SIZES)) if i % 3])
    kind, taken = federation.targets["kind"].numpy()[held], out["kind"].argmax(1).numpy()[held]
    assert metrics["kind"]["balanced"] == pytest.approx(balanced_accuracy_score(kind, taken))
    assert metrics["size"]["r2"] == pytest.approx(r2_score(federation.targets["size"], out["size"]))


def test_each_clients_own_figures_are_in_the_result_and_on_disk(tmp_path: Path) -> None:
    x, y = labelled(200)
    y[150:170] = 1.0  # the fourth client has one class only, the last no rows to be measured on
    ends = [0, 20, 100, 150, 170, 170]
    test = [np.arange(start, end) for start, end in pairwise(ends)]
    rows = [np.arange(170 + 6 * i, 176 + 6 * i) for i in range(5)]
    problem, federation = one(x, y, rows, {"auc": auc(bins=1 << 15), "f1": f1()}, test=Rows.of(test))
    asked = {"per_client": True, "clients": True}
    result = train(problem, federation, tmp_path, rounds=2, evaluate=asked)
    mine = result.clients["y"]
    assert set(mine) == {"loss", "auc", "f1"}
    with torch.no_grad():
        z = result.model(x)[:, 0].numpy()
    wanted = [roc_auc_score(y[some], z[some]) for some in test[:3]]
    np.testing.assert_allclose(mine["auc"], [*wanted, np.nan, np.nan], atol=1e-6)
    assert np.isnan(mine["loss"]).tolist() == [False] * 4 + [True]
    lines = [json.loads(text) for text in (result.run / "clients.jsonl").read_text().splitlines()]
    assert [(line["round"], line["split"]) for line in lines] == [(1, "test"), (2, "test")]
    assert lines[-1]["clients"]["y"]["auc"][3:] == [None, None]
    last = result.history[-1]
    assert last["clients_split"] == "test"
    assert "per_client" not in last
    spread = last["clients"]["y"]["auc"]
    assert spread["worst"] == pytest.approx(min(wanted), abs=1e-6)
    assert spread["mean"] == pytest.approx(np.mean(wanted), abs=1e-6)
    pooled = np.concatenate(test[:4])
    assert last["metrics"]["y"]["auc"] == pytest.approx(roc_auc_score(y[pooled], z[pooled]), abs=1e-6)
    assert last["metrics"]["y"]["auc"] != pytest.approx(spread["mean"], abs=1e-3)  # pooled, not the mean of theirs


def test_a_resumed_run_has_every_evaluation_of_its_clients_once(tmp_path: Path) -> None:
    x, y = labelled(60)
    problem, federation = one(x, y, [np.arange(30), np.arange(30, 60)], {"auc": auc()})
    asked = {"per_client": True}
    whole = train(problem, federation, tmp_path / "whole", rounds=3, evaluate=asked)
    path = tmp_path / "cut"
    train(problem, federation, path, rounds=2, evaluate=asked)
    with (path / "run" / "clients.jsonl").open("a") as file:
        file.write('{"round": 3, "split": "train", "clients": {"y": {"auc": [0, 0]}}}\n{"round": 4, "spl')
    again = train(problem, federation, path, rounds=3, evaluate=asked, resume=True)
    assert (again.run / "clients.jsonl").read_text() == (whole.run / "clients.jsonl").read_text()
    np.testing.assert_array_equal(again.clients["y"]["auc"], whole.clients["y"]["auc"])


def test_the_servers_test_data_are_measured_as_the_clients_rows_are(tmp_path: Path) -> None:
    problem, federation = three(SIZES, missing=False)
    federation = replace(federation, holds={})
    asked = train(problem, federation, tmp_path / "asked").history[-1]
    at_server = replace(federation, server=np.sort(federation.train.order))
    own = train(problem, at_server, tmp_path / "own", evaluate={"splits": ["train"], "per_client": True})
    line = own.history[-1]
    assert (asked["split"], line["split"], line["clients_split"]) == ("train", "test", "train")
    for name, row in asked["metrics"].items():
        assert line["metrics"][name] == pytest.approx(row, rel=1e-6)
        assert line["splits"]["train"]["metrics"][name] == pytest.approx(row, rel=1e-6)
    assert line["bounds"] == line["splits"]["train"]["bounds"]
    assert len(own.clients["risk"]["auc"]) == len(SIZES)


def test_several_models_have_theirs_by_model(tmp_path: Path) -> None:
    x, y = labelled(40)
    problem, federation = one(x, y, [np.arange(20), np.arange(20, 40)], {"auc": auc()})
    models = {name: (problem, FedAvg(**STILL)) for name in ("a", "b")}
    asked = {"per_client": True}
    result = train_many(MultiModel(models), federation, rounds=2, cohort="all", evaluate=asked, out=tmp_path / "run")
    assert set(result.history[-1]["bounds"]) == set(result.clients) == {"a/y", "b/y"}
    assert len(result.clients["a/y"]["auc"]) == 2


# one's own: two functions


def residuals(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    error = output[:, 0] - target
    return torch.stack([(mask * error**k).sum() for k in range(3)])


def deviation(moments: Any) -> float:
    n, total, squares = moments
    return float(np.sqrt(squares / n - (total / n) ** 2))


def test_ones_own_metric_is_an_update_and_a_compute(tmp_path: Path) -> None:
    x, y = labelled(90)
    metric = SplitMetric(residuals, deviation, 3, "lower")
    problem, federation = one(x, y, [np.arange(7), np.arange(7, 90)], {"deviation": metric})
    lines = [train(problem, federation, tmp_path / e, engine=e).history[-1] for e in ("local", "batched")]
    with torch.no_grad():
        wanted = (problem.model(x)[:, 0] - y).numpy().std()
    for line in lines:
        assert line["metrics"]["y"] == {"deviation": pytest.approx(wanted, rel=1e-4)}
        assert "bounds" not in line


def test_one_called_loss_is_reported_in_place_of_the_mean(tmp_path: Path) -> None:
    x, y = labelled(30)
    problem, federation = one(x, y, [np.arange(30)], {"loss": SplitMetric(residuals, deviation, 3, "lower")})
    line = train(problem, federation, tmp_path).history[-1]
    with torch.no_grad():
        wanted = (problem.model(x)[:, 0] - y).numpy().std()
    assert line["losses"]["y"] == pytest.approx(wanted, rel=1e-4)


def test_what_cannot_be_measured_is_said_before_the_first_round(tmp_path: Path) -> None:
    x, y = labelled(10)
    wrong = {"deviation": SplitMetric(residuals, deviation, 4, "lower")}
    with pytest.raises(BadInput, match=r"'deviation' should be a tensor of shape \(4,\). Found \(3,\)"):
        train(*one(x, y, [np.arange(10)], wrong), tmp_path)
    with pytest.raises(BadInput, match=r"takes the column 'sex'.*Federation\(columns="):
        train(*one(x, y, [np.arange(10)], {"gap": demographic_parity_gap("sex")}), tmp_path)
    with pytest.raises(BadInput, match="3 classes needs 3 logits"):
        train(*one(x, y, [np.arange(10)], {"auc": auc(3)}), tmp_path)
    assert not (tmp_path / "run").exists()


# what the server believes, and what it keeps


class Lies(Layer):
    """One client's counts are changed on their way."""

    stage: ClassVar[Stage] = "attack"
    measures: ClassVar[bool] = True
    add = 0

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if "counts" not in out.arrays:
            return out.arrays
        extra = torch.where(torch.as_tensor(out.client.id) == 1, self.add, 0)
        return {**out.arrays, "counts": out.arrays["counts"] + extra}


@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.parametrize("add", [-1, 100])
def test_counts_below_zero_or_above_the_rows_are_refused(add: int, engine: str) -> None:
    x, y = labelled(60)
    problem, federation = one(x, y, [np.arange(20), np.arange(20, 40), np.arange(40, 60)], {"auc": auc(bins=64)})
    layer = Lies()
    layer.add = add
    door = open_door(problem, federation, engine, layers=[layer])
    door.begin(1)
    line = Evaluation(problem, federation)(problem.initial(), door)
    assert door.failures == [(1, "'counts' should hold whole numbers from 0 to its number of rows")]
    honest = np.r_[0:20, 40:60]
    with torch.no_grad():
        z = problem.model(x)[:, 0].numpy()
    assert line["metrics"]["y"]["auc"] == pytest.approx(roc_auc_score(y[honest], z[honest]), abs=0.05)


def test_no_clients_statistics_are_kept_once_they_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = labelled(150)
    problem, federation = one(x, y, np.split(np.arange(150), 50), {"auc": auc(bins=64)})
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    add = SplitTotals.add

    def counted(self: SplitTotals, arrays: Mapping[str, Tensor]) -> None:
        seen.append(weakref.ref(arrays["counts"]))
        alive.append(sum(ref() is not None for ref in seen))
        add(self, arrays)

    monkeypatch.setattr(SplitTotals, "add", counted)
    train(problem, federation, tmp_path, cohort=1)
    assert len(seen) == 50
    assert max(alive) <= 3


def test_problems_without_such_metrics_send_what_they_always_sent(tmp_path: Path) -> None:
    x, y = labelled(10)
    problem, federation = one(x, y, [np.arange(10)], {})
    assert (problem.dims["C"], problem.dims["S"]) == (0, 0)
    rows = torch.from_numpy(federation.train[0])
    counts, moments = split_statistics(problem, problem.model(x), federation.take(rows), [True], x)
    assert (counts.shape, moments.shape) == ((0,), (0,))
    line = train(problem, federation, tmp_path).history[-1]
    assert {"bounds", "clients_split", "per_client"}.isdisjoint(line)
    assert not (tmp_path / "run" / "clients.jsonl").exists()
