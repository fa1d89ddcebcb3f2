"""The networks of FedCMOO (Askin et al. 2025, appendix D.3; layers from its code, `methods.md` section 7)."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.data import Dataset
from polyfed.models import models
from polyfed.models.layers import Dropout, channels, drop, flat_width, headed


@models("two-digit-net")
def two_digit_net(dataset: Dataset, *, dropout: Dropout = 0.5) -> nn.Module:
    """Two convolutions and two layers a head: 34,635 parameters on MultiMNIST and MNIST+FMNIST.

    Args:
        dropout: the chance that a feature is left out of a training step; 0 for none.
    """
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "two-digit-net", 10), 10, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 15, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    body.extend([nn.Linear(flat_width(body, dataset), 50), nn.ReLU(), drop(dropout)])
    return headed(body, dataset, lambda k: nn.Sequential(nn.Linear(50, 50), nn.ReLU(), drop(dropout), nn.Linear(50, k)))


@models("cifar-mnist-net")
def cifar_mnist_net(dataset: Dataset, *, dropout: Dropout = 0.5) -> nn.Module:
    """Two wide convolutions, two shared layers, two linear layers a head: 1,726,508 parameters on CIFAR10+MNIST.

    Args:
        dropout: the chance that a feature is left out of a training step; 0 for none.
    """
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "cifar-mnist-net", 4), 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    body.extend([nn.Linear(flat_width(body, dataset), 384), nn.ReLU(), drop(dropout)])
    body.extend([nn.Linear(384, 192), nn.ReLU(), drop(dropout)])
    return headed(body, dataset, lambda k: nn.Sequential(nn.Linear(192, 100), nn.Linear(100, k)))


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, each normalised in two groups of channels."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(2, outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(2, outside),
        )  # fmt: skip
        change = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(2, outside))
        self.shortcut = nn.Identity() if (inside, stride) == (outside, 1) else change

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


@models("resnet18")
def resnet18(dataset: Dataset) -> nn.Module:
    """ResNet-18 for small images with GroupNorm(2), one linear head per objective: 11.2M parameters on CelebA.

    FedCMOO's code averages only the upper left 3x3 of the last 4x4 features; we average all of them.
    """
    planes = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "resnet18", 8), 64, 3, padding=1, bias=False), nn.GroupNorm(2, 64), nn.ReLU(),
        *(Block(a, b, stride=1 if a == b else 2) for a, b in pairwise(planes)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return headed(body, dataset, lambda k: nn.Linear(512, k))
