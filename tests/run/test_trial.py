"""What is tried before the first round: slips of one's own functions are sentences then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import BadInput, Federation, Objective, Problem, metrics
from polyfed.losses import demographic_parity, equalised_odds
from polyfed.run.plan import check_compatible

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24.0) / 10
SEX = torch.arange(24) % 2


def federation(y: Any = Y, x: Any = X, **more: Any) -> Federation:
    return Federation.from_arrays(x, y, clients=[np.arange(12), np.arange(12, 24)], **more)


def refused(problem: Problem, data: Federation) -> str:
    with pytest.raises(BadInput) as found:
        check_compatible(problem, data)
    assert len(str(found.value)) <= 400
    return str(found.value)


def of(loss: Any, outputs: int = 1, **more: Any) -> Problem:
    return Problem(nn.Linear(4, outputs), [Objective("y", loss, **more)])


def squares(o: Tensor, t: Tensor) -> Tensor:
    return (o.squeeze(-1) - t).square()


MIXING: dict[str, Callable[..., Tensor]] = {
    "one number for all": lambda o, t: squares(o, t).mean().expand(len(o)),
    "shapes that broadcast": lambda o, t: (o - t).square().mean(1),
    "ranks in the batch": lambda o, t: squares(o, t) * (t.unsqueeze(0) > t.unsqueeze(1)).sum(1),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_per_example_that_sees_the_others_is_refused(name: str) -> None:
    said = refused(of(MIXING[name]), federation())
    assert "Objective 'y': its loss of one example depends on the others of its batch; say per='batch'" in said
    assert "Found output (5, 1), target (5,)" in said


@pytest.mark.parametrize(
    "loss",
    [
        squares,
        lambda o, t: squares(o, t) + 0.1 * torch.rand(len(o)),  # noise is not the others
        lambda o, t: squares(o, t) / t,  # NaN and infinity are an example's own
        lambda o, t: nn.functional.mse_loss(o.squeeze(), t, reduction="none"),
    ],
)  # fmt: skip
def test_a_loss_of_each_example_alone_is_welcome(loss: Any) -> None:
    check_compatible(of(loss), federation())
    check_compatible(of(loss), federation(torch.ones(24)))  # no two targets differ


class Centred(nn.Module):
    """A module that mixes the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y - y.mean(0)


def test_a_module_that_mixes_rows_is_not_the_loss() -> None:
    check_compatible(Problem(Centred(), [Objective("y", squares)]), federation())


def test_outputs_that_do_not_come_by_rows_are_not_judged() -> None:
    class Turned(Centred):
        def forward(self, x: Tensor) -> Tensor:
            turned: Tensor = self.body(x).T
            return turned

    loss = Objective("y", lambda o, t: (o[0] - t).square())
    check_compatible(Problem(Turned(), [loss]), federation())


@pytest.mark.parametrize("make", [demographic_parity, equalised_odds])
@pytest.mark.parametrize(
    ("column", "says"),
    [
        (SEX + 1, "Found 2 in row 1, of client 0; recode them, or say groups=3 (12 of them)"),
        (torch.arange(24) % 3, "Found 2 in row 2, of client 0; recode them, or say groups=3"),
        (torch.where(SEX > 0, torch.nan, 0.0), "Found nan in row 1, of client 0; recode them (12 of them)"),
        (SEX - 2, "Found -2 in row 0, of client 0; recode them"),
        (SEX * 0.5, "Found 0.5 in row 1"),
    ],
)
def test_groups_of_other_numbers_are_refused(make: Any, column: Tensor, says: str) -> None:
    problem = Problem(nn.Linear(4, 1), [make("fair", "sex")])
    said = refused(problem, federation(SEX.float(), columns={"sex": column}))
    assert "Objective 'fair': its loss should find groups 0 to 1, or -1 for none, in the column 'sex'" in said
    assert says in said
    gap = Problem(nn.Linear(4, 1), [Objective("y", "binary", {"gap": metrics.demographic_parity_gap("sex")})])
    said = refused(gap, federation(SEX.float(), columns={"sex": column}))
    assert "the metric 'gap'" in said
    assert says in said


@pytest.mark.parametrize("column", [SEX, SEX.bool(), SEX.float(), torch.where(torch.arange(24) < 4, -1, SEX)])
def test_groups_and_those_of_none_are_welcome(column: Tensor) -> None:
    check_compatible(Problem(nn.Linear(4, 1), [demographic_parity("fair", "sex")]), federation(columns={"sex": column}))


@pytest.mark.parametrize(
    "metric",
    [metrics.auc(), metrics.average_precision(), metrics.f1(), metrics.balanced_accuracy(), metrics.calibration_error(),
     metrics.equalised_odds_gap("sex")],
)  # fmt: skip
def test_binary_metrics_of_other_targets_are_refused(metric: Any) -> None:
    problem = of("squared", metrics={"own": metric})
    columns = {"sex": SEX}
    check_compatible(problem, federation(SEX.float(), columns=columns))
    said = refused(problem, federation(SEX + 1.0, columns=columns))
    assert "Objective 'y': the metric 'own' should see class numbers 0 to 1. Found 2 in row 1, of client 0" in said
    assert "of labels -1 and 1 make (y + 1) / 2" in refused(problem, federation(SEX * 2.0 - 1, columns=columns))


@pytest.mark.parametrize("x", [torch.arange(96).reshape(24, 4), torch.ones(24, 4, dtype=torch.uint8)])
def test_whole_numbers_for_a_model_of_floats(x: Tensor) -> None:
    assert "say Federation(prepare=lambda x: x.float())" in refused(of("squared"), federation(x=x))
    check_compatible(of("squared"), federation(x=x, prepare=lambda x: x.float()))


def test_the_output_function_that_fails_is_named() -> None:
    said = refused(of("squared", output=lambda out: out["logits"]), federation())
    assert "Objective 'y': its function output= should take the module's output. Found one Tensor, on which" in said


@pytest.mark.parametrize(("loss", "y"), [("squared", Y), ("binary", SEX), ("squared", torch.ones(24, 2))])
def test_outputs_and_targets_of_other_widths(loss: str, y: Tensor) -> None:
    said = refused(of(loss, 3), federation(y))
    assert f"Objective 'y': the loss '{loss}' compares outputs with as many targets. Found outputs of" in said
    assert "(2, 3)" in said
    assert f"targets of shape {tuple(y[:2].shape)} for 2 examples" in said


def test_an_output_that_is_a_dict_is_no_tensor() -> None:
    class Nest(Centred):
        def forward(self, x: Tensor) -> Any:
            return {"y": {"logits": self.body(x)}, "z": self.body(x)}

    said = refused(Problem(Nest(), [Objective("y", "squared")]), federation())
    assert "Objective 'y': the loss 'squared' takes one tensor. Found the keys logits; pick it" in said


def returns_nothing(x: Tensor, key: Any) -> None:
    x += 1


@pytest.mark.parametrize(
    ("augment", "says"),
    [
        (lambda x: x, "Found TypeError"),
        (lambda x, key: x @ x, "Found RuntimeError"),
        (returns_nothing, "Found one NoneType for 2 examples"),
        (lambda x, key: x[:1], "Found one Tensor for 2 examples"),
    ],
)
def test_an_augment_that_cannot_be_applied_is_refused(augment: Any, says: str) -> None:
    said = refused(of("squared"), replace(federation(), augment=augment))
    assert "A federation's augment should take (x, key)" in said
    assert says in said


def test_the_trial_changes_no_example() -> None:
    kept = X.clone()
    check_compatible(of("squared"), replace(federation(), augment=lambda x, key: x.add_(1)))
    assert torch.equal(X, kept)
