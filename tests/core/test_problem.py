"""The flat view of a module, and objectives with one value per example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed import FedAvg, Objective, Problem, train
from polyfed.core.errors import BadInput
from polyfed.core.problem import Batch
from small import small_federation, small_problem


def test_heads_and_shared_part_partition_the_vector() -> None:
    parts = small_problem(objectives=3).parts
    assert set(parts) == {"shared", "left", "right", "middle"}
    assert torch.cat(list(parts.values())).sort().values.equal(torch.arange(small_problem(objectives=3).dim))
    assert len(parts["left"]) == 8 * 3 + 3


def test_a_model_without_heads_is_all_shared() -> None:
    problem = Problem(nn.Linear(3, 2), [Objective("y", "cross-entropy")])
    assert list(problem.parts) == ["shared"]


def test_split_views_are_the_parameters() -> None:
    problem = small_problem()
    views = problem.split(problem.initial()["x"])
    for name, p in problem.model.named_parameters():
        assert torch.equal(views[name], p)


def test_a_masked_mean_ignores_padding() -> None:
    values = torch.tensor([1.0, 2.0, 100.0])
    batch = Batch(torch.zeros(3, 1), {}, torch.tensor([1.0, 1.0, 0.0]))
    assert batch.mean(values) == 1.5
    assert batch.total(values) == 3


def test_buffers_travel_and_are_restored() -> None:
    problem = Problem(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), [Objective("y", "cross-entropy")])
    assert problem.dims["b"] == 6
    state = problem.state_dict(torch.zeros(problem.dim), torch.arange(6.0))
    assert state["1.running_mean"].tolist() == [0, 1, 2]
    assert "1.num_batches_tracked" in state
    problem.model.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Objective("y", "cros-entropy"), "Did you mean 'cross-entropy'"),
        (lambda: Problem(nn.Linear(1, 1), []), "at least one objective"),
        (lambda: Problem(nn.Linear(1, 1), [Objective("a", "squared")] * 2), "its own name"),
        (lambda: Problem(nn.Flatten(), [Objective("a", "squared")]), "no trainable parameters"),
    ],
)
def test_impossible_problems_are_sentences(make: Callable[[], object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


def test_a_reduced_loss_is_refused_with_the_remedy() -> None:
    problem = Problem(nn.Linear(5, 3), [Objective("left", nn.CrossEntropyLoss())])
    with pytest.raises(BadInput, match="reduction='none'"):
        problem.losses(torch.zeros(4, 3), Batch(torch.zeros(4, 5), {"": torch.zeros(4, dtype=torch.int64)}), [True])


def test_regression_and_binary_losses() -> None:
    y = torch.tensor([0, 1, 1])
    out = torch.tensor([[-2.0], [3.0], [-1.0]])
    values = Objective("b", "binary").values
    assert values["accuracy"](out, y).tolist() == [1, 1, 0]
    assert torch.allclose(values["loss"](out, y), F.softplus(torch.tensor([-2.0, -3.0, 1.0])))
    squared = Objective("s", "squared").values
    assert squared["loss"](out, y).tolist() == [4, 4, 4]
    assert squared["absolute_error"](out, y).tolist() == [2, 2, 2]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.dec.weight = self.enc.weight
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.dec(torch.tanh(self.enc(x))))
        return out


def test_tied_weights_are_trained_and_saved_tied() -> None:
    problem = Problem(Tied(), [Objective("left", "cross-entropy")])
    before = problem.model.get_parameter("enc.weight").clone()
    model = train(problem, small_federation(), FedAvg(), rounds=2).model
    assert not torch.equal(model.get_parameter("enc.weight"), before)
    assert torch.equal(model.get_parameter("enc.weight"), model.get_parameter("dec.weight"))
