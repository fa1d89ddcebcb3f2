"""Losses about the batch: right by hand, blind to padding, and the same model on every engine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed import Federation, Objective, Problem
from polyfed.core.errors import BadInput
from polyfed.core.problem import Batch
from polyfed.losses import demographic_parity, equalised_odds, l2, supervised_contrastive

SIZES = (10, 15, 40, 85, 150)  # of the finding that padding changed the model


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {"logit": self.head(h).squeeze(1), "embedding": h}


def data() -> Federation:
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    sex = rng.integers(0, 2, n)
    y = (x[:, 0] + sex + 0.3 * rng.normal(size=n) > 0.5).astype(np.int64)
    ends = np.cumsum(SIZES)
    rows = [np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    made = Federation.from_arrays(x, {"risk": y, "odds": y, "classes": y}, clients=rows)
    return Federation(made.x, made.targets, made.train, columns={"sex": torch.from_numpy(sex)})


EXTRA = {
    "parity": demographic_parity("parity", "sex", output="logit"),
    "odds": equalised_odds("odds", "sex", output="logit"),
    "classes": supervised_contrastive("classes", output="embedding"),
    "l2": l2(),
}


def problem(extra: Objective) -> Problem:
    torch.manual_seed(0)
    return Problem(Net(), [Objective("risk", "binary", output="logit"), extra])


@pytest.mark.parametrize("batch_size", [0, 8])
@pytest.mark.parametrize("extra", list(EXTRA))
def test_the_same_model_on_local_and_batched(extra: str, batch_size: int, tmp_path: Path) -> None:
    """F1: clients of unequal sizes are padded on `batched`, and a loss about the batch must not see that."""
    found = []
    for engine in ("local", "batched"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # no falling back to one client after another
            method = polyfed.FedCMOO(lr=0.3, local_steps=4, batch_size=batch_size)
            made, out = problem(EXTRA[extra]), tmp_path / engine
            result = polyfed.train(made, data(), method, rounds=3, engine=engine, out=out)
        found.append((result.model.state_dict(), result.history[-1]["losses"]))
    (one, losses), (two, theirs) = found
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=2e-4)
    assert losses == {name: pytest.approx(value, rel=1e-3, abs=1e-6) for name, value in theirs.items()}


def test_parity_is_the_gap_of_means_and_the_report_that_of_all_rows(tmp_path: Path) -> None:
    made = problem(EXTRA["parity"])
    result = polyfed.train(made, data(), polyfed.FedAvg(lr=0.1, local_steps=2), rounds=2, out=tmp_path / "run")
    f = data()
    with torch.no_grad():
        score = result.model.eval()(f.x)["logit"].sigmoid().double()
    sex = f.columns["sex"]
    gap = (score[sex == 1].mean() - score[sex == 0].mean()).square().item()
    assert result.history[-1]["losses"]["parity"] == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize("extra", ["parity", "odds", "classes"])
def test_padding_changes_nothing(extra: str) -> None:
    objective = EXTRA[extra]
    assert callable(objective.loss)
    rng = torch.Generator().manual_seed(3)
    output = torch.randn(12, 5 if extra == "classes" else 1, generator=rng, requires_grad=True)
    target, sex = torch.randint(0, 2, (2, 12), generator=rng)
    mask = (torch.arange(12) < 7).float()

    def value(rows: int, mask: Tensor) -> Tensor:
        given: dict[str, Any] = {"output": output[:rows], "target": target[:rows], "mask": mask, "sex": sex[:rows]}
        assert callable(objective.loss)
        return objective.loss(*(given[name] for name in objective.takes))

    padded, plain = value(12, mask), value(7, torch.ones(7))
    torch.testing.assert_close(padded, plain)
    one, two = (torch.autograd.grad(v, output)[0] for v in (padded, plain))
    torch.testing.assert_close(one, two)
    assert (one[7:] == 0).all()
    assert plain > 0


def test_contrastive_loss_by_hand() -> None:
    objective = supervised_contrastive("classes", temperature=0.5)
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]])
    target = torch.tensor([0, 1, 0, 2])  # the last two classes have one example: no partner
    unit = torch.nn.functional.normalize(z)
    s = unit @ unit.T / 0.5
    expected = 0.0
    for i, p in ((0, 2), (2, 0)):
        others = [j for j in range(4) if j != i]
        expected += -(s[i, p] - torch.logsumexp(s[i, others], 0)).item() / 2
    assert callable(objective.loss)
    assert objective.loss(z, target, torch.ones(4)).item() == pytest.approx(expected, rel=1e-5)


def test_a_batch_loss_without_a_mask_runs_one_client_after_another(tmp_path: Path) -> None:
    def spread(output: Tensor) -> Tensor:
        return output.var()

    own = Objective("spread", spread, per="batch", takes=("output",), output="logit")
    method = polyfed.FedAvg(lr=0.1, local_steps=2)
    local = polyfed.train(problem(own), data(), method, rounds=2, out=tmp_path / "local")
    with pytest.warns(RuntimeWarning, match="takes no 'mask'"):
        batched = polyfed.train(problem(own), data(), method, rounds=2, engine="batched", out=tmp_path / "batched")
    for name, value in local.model.state_dict().items():
        torch.testing.assert_close(value, batched.model.state_dict()[name])


def test_a_loss_says_what_it_takes() -> None:
    with pytest.raises(BadInput, match="one number: say per='batch'"):
        Objective("l2", lambda parameters: parameters["w"], takes=("parameters",))
    with pytest.raises(BadInput, match=r"takes \('output', 'target'\) per example"):
        Objective("y", "binary", per="batch")
    with pytest.raises(BadInput, match="takes should be a tuple of names"):
        Objective("y", lambda output: output, takes="output")
    made = Problem(nn.Linear(2, 1), [Objective("y", lambda output, age: output[:, 0] * age, takes=("output", "age"))])
    batch = Batch(torch.ones(3, 2), {"y": torch.ones(3)}, columns={"ages": torch.ones(3)})
    with pytest.raises(BadInput, match=r"'age', which is no column of the data.*'ages'"):
        made.value(0, "loss", made.model(batch.x), batch)


def test_a_pattern_names_parameters() -> None:
    made = problem(l2(parameters="body.*"))
    start = made.initial()["x"]
    params = made.split(start)
    batch = data().take(torch.arange(4))
    value = made.value(1, "loss", None, batch, params)
    expected = 0.5 * sum(params[name].square().sum() for name in ("body.weight", "body.bias"))
    torch.testing.assert_close(value[0], expected)
    with pytest.raises(BadInput, match="should name parameters"):
        problem(l2(parameters="foot.*")).value(1, "loss", None, batch, params)
