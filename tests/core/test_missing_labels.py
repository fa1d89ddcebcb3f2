"""Labels that some rows lack: NaN or -100. Such a row does not count for that objective, and for nothing else less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed import Federation, Objective, Problem

rng = np.random.default_rng(1)
X = rng.normal(size=(40, 3)).astype(np.float32)
ROWS = [np.arange(6), np.arange(6, 20), np.arange(20, 40)]


def labels() -> dict[str, np.ndarray]:
    """The first objective lacks every third label, the second all of the first client's."""
    y = (X[:, 0] > 0).astype(np.int64)
    z = X[:, 1] * 2
    y[::3] = -100
    z[ROWS[0]] = np.nan
    return {"y": y, "z": z}


def federation() -> Federation:
    return Federation.from_arrays(X, labels(), clients=ROWS)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"y": nn.Linear(4, 2), "z": nn.Linear(4, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {name: head(h) for name, head in self.heads.items()}


def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(Heads(), [Objective("y", "cross-entropy"), Objective("z", "squared")], torch.float64)


def test_counts_take_the_place_of_sizes() -> None:
    f = federation()
    assert f.targets["y"].min() == 0
    assert not f.targets["z"].isnan().any()
    n = [[4 / 6, 0.0], [9 / 14, 1.0], [13 / 20, 1.0]]
    np.testing.assert_allclose(f.fractions(["y", "z"]), n)
    assert f.matrix(["y", "z"]).tolist() == [[True, False], [True, True], [True, True]]
    assert f.alone(1).fractions(["y", "z"]).tolist() == [[9 / 14, 1.0]]
    np.testing.assert_allclose(f.shard(1, 3).fractions(["y", "z"]), n[1:])


def test_minus_hundred_among_other_negative_numbers_is_a_number() -> None:
    f = Federation.from_arrays(X, {"y": np.arange(40) - 100}, clients=2)
    assert f.labelled == {}


@pytest.mark.parametrize("by", ["size", "uniform"])
@pytest.mark.parametrize("engine", ["local", "wire", "batched"])
def test_a_step_of_fedavg_is_that_of_the_rows_that_have_labels(by: Any, engine: str, tmp_path: Path) -> None:
    made, f = problem(), federation()
    method = polyfed.FedAvg(lr=0.1, local_steps=1, batch_size=0, weighting_by=by, weights={"y": 0.7, "z": 0.3})
    result = polyfed.train(made, f, method, rounds=1, engine=engine, out=tmp_path / "run")

    model, targets = problem().model, labels()
    has = {"y": targets["y"] >= 0, "z": ~np.isnan(targets["z"])}
    loss = torch.zeros((), dtype=torch.float64)
    for name, lam in (("y", 0.7), ("z", 0.3)):
        each = [rows[has[name][rows]] for rows in ROWS]
        weights = [float(len(rows)) if by == "size" else float(len(rows) > 0) for rows in each]
        for rows, weight in zip(each, weights, strict=True):
            if len(rows):
                out, target = model(torch.from_numpy(X[rows]).double())[name], torch.from_numpy(targets[name][rows])
                part = nn.functional.cross_entropy(out, target) if name == "y" else (out[:, 0] - target).square().mean()
                loss = loss + lam * weight / sum(weights) * part
    params = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(params.values()))
    for (name, p), g in zip(params.items(), grads, strict=True):
        torch.testing.assert_close(result.model.state_dict()[name], p.detach() - 0.1 * g, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["fedcmoo", "fsmgda", "fmgda", "fedmgda+", "q-fedavg", "afl", "fedcmoo-pref"])
def test_every_method_trains_the_same_model_on_local_and_batched(algorithm: str, tmp_path: Path) -> None:
    found = []
    for engine in ("local", "batched"):
        result = polyfed.train(problem(), federation(), algorithm, rounds=3, engine=engine, out=tmp_path / engine)
        assert not result.summary.get("failures")
        found.append(result.model.state_dict())
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-9, rtol=1e-7)


def test_what_is_reported_is_over_the_rows_that_have_labels(tmp_path: Path) -> None:
    result = polyfed.train(problem(), federation(), "fedavg", rounds=1, out=tmp_path / "run")
    targets = labels()
    out = result.model.eval()(torch.from_numpy(X).double())
    has = torch.from_numpy(targets["y"] >= 0)
    expected = nn.functional.cross_entropy(out["y"][has], torch.from_numpy(targets["y"])[has]).item()
    assert result.history[-1]["losses"]["y"] == pytest.approx(expected, rel=1e-9)
    right = (out["y"].argmax(1)[has] == torch.from_numpy(targets["y"])[has]).double().mean().item()
    assert result.history[-1]["metrics"]["y"]["accuracy"] == pytest.approx(right)


def test_a_batch_without_labels_gives_nothing() -> None:
    made, f = problem(), federation()
    batch = f.take(torch.from_numpy(ROWS[0]))
    params = {name: p.detach().requires_grad_() for name, p in made.split(made.initial()["x"]).items()}
    outputs = torch.func.functional_call(made.model, params, (batch.x.double(),))
    loss = made.losses(outputs, batch, [True, True], params)[1]
    assert loss.item() == 0
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    assert all((g == 0).all() for g in grads)


def test_a_missing_label_is_filled_with_one_that_occurs() -> None:
    """Of a loss that divides by the target or takes its log, 0 in the rows left out would make every gradient NaN."""
    z = np.array([np.nan, 3.0, np.nan, 4.0], dtype=np.float32)
    rows = np.array([[np.nan, 1.0], [5.0, 6.0], [7.0, 8.0], [1.0, np.nan]], dtype=np.float32)
    none = np.full(4, np.nan, dtype=np.float32)
    made = Federation.from_arrays(X[:4], {"z": z, "rows": rows, "none": none, "k": [2, -100, 1, 2]}, clients=1)
    assert made.targets["z"].tolist() == [3, 3, 3, 4]
    assert made.targets["rows"].tolist() == [[5, 6], [5, 6], [7, 8], [5, 6]]
    assert made.targets["none"].tolist() == [0, 0, 0, 0]
    assert made.targets["k"].tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_a_loss_that_divides_by_its_target_may_lack_labels(engine: str, tmp_path: Path) -> None:
    def relative(output: Tensor, target: Tensor) -> Tensor:
        return ((output[:, 0] - target) / target).square() + target.log()

    z = np.abs(X[:, 1]) + 0.5
    z[::3] = np.nan
    data = Federation.from_arrays(X, {"z": z}, clients=ROWS)
    one = Problem(nn.Linear(3, 1), [Objective("z", relative)])
    result = polyfed.train(one, data, "fedavg", rounds=2, engine=engine, out=tmp_path / "run")
    assert np.isfinite([line["losses"]["z"] for line in result.history]).all()
    assert all(bool(p.isfinite().all()) for p in result.model.parameters())


def test_a_client_without_an_objective_is_not_given_zeros_for_it(tmp_path: Path) -> None:
    """Many clients' losses are computed at once, also those that then do not count."""

    def relative(output: Tensor, target: Tensor) -> Tensor:
        return ((output[:, 0] - target) / target).square()

    a, z = np.abs(X[:, 0]) + 1, np.abs(X[:, 1]) + 1
    z[0] = np.nan
    data = Federation.from_clients([(X[:20], {"a": a[:20], "z": z[:20]}), (X[20:], {"a": a[20:]})])
    assert data.targets["z"].min() >= 1
    assert int((~data.labelled["z"].bool()).sum()) == 1
    two = Problem(nn.Linear(3, 1), [Objective("a", relative), Objective("z", relative)])
    result = polyfed.train(two, data, "fedavg", rounds=1, engine="batched", out=tmp_path / "run")
    assert not result.history[-1]["failures"]
