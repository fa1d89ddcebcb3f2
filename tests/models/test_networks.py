"""The papers' networks: their parameter counts, their shared parts and heads, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyfed.client.autograd import Autograd
from polyfed.core.errors import BadInput
from polyfed.core.problem import Batch, Objective, Problem
from polyfed.data import Dataset
from polyfed.models import models


def fake(shape: tuple[int, ...], classes: int, objectives: int = 1, loss: str = "cross-entropy") -> Dataset:
    """One example of each class; whole numbers where a text is wanted."""
    names = [f"o{s}" for s in range(objectives)]
    text = np.tile(np.arange(shape[0]), (classes, 1))
    x = text if len(shape) == 1 else np.random.default_rng(0).normal(size=(classes, *shape)).astype(np.float32)
    return Dataset(x, dict.fromkeys(names, np.arange(classes)), tuple(Objective(name, loss) for name in names))


MULTIMNIST, CIFAR_MNIST = fake((1, 28, 28), 10, 2), fake((3, 32, 32), 10, 2)
CIFAR, FASHION, FEMNIST = fake((3, 32, 32), 10), fake((1, 28, 28), 10), fake((1, 28, 28), 62)
CELEBA, SHAKESPEARE = fake((3, 32, 32), 2, 40, "binary"), fake((80,), 80)

COUNTS = [
    ("two-digit-net", MULTIMNIST, 34_635, 50 * 50 + 50 + 50 * 10 + 10),
    ("cifar-mnist-net", CIFAR_MNIST, 1_726_508, 192 * 100 + 100 + 100 * 10 + 10),
    ("resnet18", CELEBA, 11_189_352, 512 + 1),
    ("fedmgda-cifar-net", CIFAR, 797_962, 1930),
    ("fedmgda-fmnist-net", FASHION, 21_840, 510),
    ("femnist-net", FEMNIST, 1_206_590, 7998),
    ("shakespeare-lstm", SHAKESPEARE, 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (512 + 2) + 257 * 80, 257 * 80),
]


@pytest.mark.parametrize(("name", "dataset", "count", "head"), COUNTS)
def test_counts_shared_part_and_heads(name: str, dataset: Dataset, count: int, head: int) -> None:
    problem = Problem(models[name](dataset), dataset.objectives)
    parts = {part: len(index) for part, index in problem.parts.items()}
    assert problem.dim == count
    assert parts == {"shared": count - head * len(problem.names), **dict.fromkeys(problem.names, head)}


@pytest.mark.parametrize(("name", "dataset"), [(name, dataset) for name, dataset, _, _ in COUNTS if name != "resnet18"])
def test_every_parameter_learns(name: str, dataset: Dataset) -> None:
    torch.manual_seed(0)
    problem = Problem(models[name](dataset), dataset.objectives)
    start, held = problem.initial(), [True] * len(problem.names)
    batch = Batch(torch.from_numpy(dataset.x[:8]), {k: torch.from_numpy(t[:8]) for k, t in dataset.targets.items()})
    g, losses, _ = Autograd(problem).grad(start["x"], start["buffers"], batch, torch.ones(len(held)), held)
    assert torch.isfinite(g).all()
    assert losses == pytest.approx(np.log(len(dataset.x)), rel=0.5)
    assert all(bool(piece.any()) for piece in problem.split(g).values())


def test_resnet18_takes_small_images_of_any_kind() -> None:
    dataset = fake((1, 20, 12), 3, 2)
    outputs = models["resnet18"](dataset)(torch.from_numpy(dataset.x))
    assert {name: tuple(y.shape) for name, y in outputs.items()} == {"o0": (3, 3), "o1": (3, 3)}


@pytest.mark.parametrize("name", ["two-digit-net", "cifar-mnist-net", "fedmgda-fmnist-net", "femnist-net"])
def test_dropout_can_be_switched_off(name: str) -> None:
    dataset = CIFAR_MNIST if name == "cifar-mnist-net" else FASHION
    x = torch.from_numpy(dataset.x)
    for dropout, same in ((0.0, True), (0.5, False)):
        model = models[name](dataset, dropout=dropout)
        assert torch.equal(model(x)["o0"], model(x)["o0"]) is same
        model.eval()
        assert torch.equal(model(x)["o0"], model(x)["o0"])


def test_dropout_does_not_change_the_initial_weights() -> None:
    start = []
    for dropout in (0.0, 0.5):
        torch.manual_seed(3)
        start.append(Problem(models["femnist-net"](FEMNIST, dropout=dropout), FEMNIST.objectives).initial()["x"])
    assert torch.equal(*start)


@pytest.mark.parametrize("name", [name for name, *_ in COUNTS if name != "shakespeare-lstm"])
def test_images_that_do_not_fit_are_a_sentence(name: str) -> None:
    for dataset in (fake((80,), 10), fake((1, 3, 3), 10)):
        with pytest.raises(BadInput, match=f"The model {name!r} needs images of at least"):
            models[name](dataset)


def test_the_reader_wants_symbols() -> None:
    with pytest.raises(BadInput, match="'shakespeare-lstm' reads whole numbers"):
        models["shakespeare-lstm"](FASHION)
