"""The networks of FedMGDA+ (Hu et al. 2022, tables II, III and IV, and section V-A-3)."""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.core.errors import BadInput
from polyfed.data import Dataset, sample
from polyfed.models import models
from polyfed.models.layers import Dropout, channels, drop, flat_width, headed


@models("fedmgda-cifar-net")
def fedmgda_cifar_net(dataset: Dataset) -> nn.Module:
    """Two 5x5 convolutions with local response normalisation, three layers: 797,962 parameters on CIFAR-10."""
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "fedmgda-cifar-net", 16), 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.LocalResponseNorm(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.LocalResponseNorm(2), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    body.extend([nn.Linear(flat_width(body, dataset), 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()])
    return headed(body, dataset, lambda k: nn.Linear(192, k))


@models("fedmgda-fmnist-net")
def fedmgda_fmnist_net(dataset: Dataset, *, dropout: Dropout = 0.5) -> nn.Module:
    """Two 5x5 convolutions and two layers with dropout: 21,840 parameters on Fashion-MNIST.

    Args:
        dropout: the chance that a channel, or a feature of the first layer, is left out of a training step; 0 for none.
    """
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "fedmgda-fmnist-net", 16), 10, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout2d(dropout) if dropout else nn.Identity(), nn.Flatten(),
    )  # fmt: skip
    body.extend([nn.Linear(flat_width(body, dataset), 50), nn.ReLU(), drop(dropout)])
    return headed(body, dataset, lambda k: nn.Linear(50, k))


@models("femnist-net")
def femnist_net(dataset: Dataset, *, dropout: Dropout = 0.5) -> nn.Module:
    """Two 3x3 convolutions and two layers, dropout before each: 1,206,590 parameters on FEMNIST.

    As printed in table IV: ReLU after the second convolution only, and half as much dropout before the first layer.
    The code of the paper it is taken from (Reddi et al. 2021) has one after the first convolution and layer too.

    Args:
        dropout: the chance that a feature is left out before the last layer, half of it before the first; 0 for none.
    """
    body = nn.Sequential(
        nn.Conv2d(channels(dataset, "femnist-net", 6), 32, 3), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        drop(dropout / 2), nn.Flatten(),
    )  # fmt: skip
    body.extend([nn.Linear(flat_width(body, dataset), 128), drop(dropout)])
    return headed(body, dataset, lambda k: nn.Linear(128, k))


class Reader(nn.Module):
    """Reads numbered symbols (n, length) with stacked LSTMs; the state after the last is the feature."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embed(x.long()))[0]
        return states[:, -1]


@models("shakespeare-lstm")
def shakespeare_lstm(dataset: Dataset) -> nn.Module:
    """The next character from those before: 8 numbers a symbol, two LSTM(256), one linear head per objective."""
    shape, kind = tuple(sample(dataset).shape), dataset.x.dtype.kind
    if len(shape) != 2 or kind not in "iu":
        raise BadInput(
            f"The model 'shakespeare-lstm' reads whole numbers, (n, length). Found {dataset.x.dtype} of shape {shape}; "
            "choose another model.name."
        )
    symbols = 1 + max(int(t.max()) for t in (dataset.x, *dataset.targets.values()))
    return headed(Reader(symbols), dataset, lambda k: nn.Linear(256, k))
