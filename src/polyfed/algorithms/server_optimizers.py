"""What the server makes of a round's step: momentum, FedAdam, FedYogi or FedAdagrad over any method with a network.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization", 2021, Algorithm 2.
The method's own round goes from x to some x'. A server optimiser takes g = x - x' for a gradient (the paper's Delta_t
is -g) and steps itself:

    m <- beta1 m + (1 - beta1) g,   v <- v + g^2                                 (FedAdagrad)
    x <- x - lr m / (sqrt(v) + tau)  v <- v - (1 - beta2) g^2 sign(v - g^2)      (FedYogi)
                                     v <- beta2 v + (1 - beta2) g^2              (FedAdam)

from m = 0 and v = tau^2, the least that the paper allows, without a correction of the bias, as there. 'momentum' is
FedAvgM (Hsu, Qi, Brown, 2019): m <- beta m + g, x <- x - lr m. Buffers stay as the method gives them. What is
remembered is in the run's state beside the method's own, and so in the checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from polyfed.core.algorithm import Algorithm, Remembered
from polyfed.core.hooks import check_hooks
from polyfed.core.registry import Registry
from polyfed.core.settings import Positive, choose, settings

Beta = Annotated[float, Field(ge=0, lt=1)]


class ServerOptimizer(ABC):
    """A rule from a round's g = x - x' to the server's step, a dataclass of its settings.

    It is a value: what it remembers comes in and goes out.
    """

    @abstractmethod
    def step(self, x: Tensor, g: Tensor, kept: Remembered) -> tuple[Tensor, Remembered]:
        """The next x, and what to remember; kept: what was remembered of the last round, nothing in the first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, ServerOptimizer)


server_optimizers: Registry[type[Any]] = Registry(
    "server_optimizer", modules=("polyfed.algorithms.server_optimizers",)
)  # fmt: skip


@server_optimizers("momentum")
@settings
class ServerMomentum(ServerOptimizer):
    """FedAvgM's: a round's step is added to beta times the step before.

    Args:
        lr: times the sum of steps; with 1 and beta = 0 the method steps as it would alone.
        beta: how much of the last step is kept.
    """

    lr: Positive = 1.0
    beta: Beta = 0.9

    def step(self, x: Tensor, g: Tensor, kept: Remembered) -> tuple[Tensor, Remembered]:
        m = self.beta * kept["m"] + g if kept else g
        return x - self.lr * m, {"m": m}


@settings
class Adaptive(ServerOptimizer):
    """Each parameter has a step size of its own.

    Args:
        lr: the server's step size, in place of the method's: about what a parameter moves in a round.
        beta1: how much of the mean of steps is kept.
        tau: how adaptive it is: parameters whose steps are far below tau hardly move.
    """

    lr: Positive = 0.01
    beta1: Beta = 0.9
    tau: Annotated[float, Field(gt=0, le=1)] = 1e-3

    def step(self, x: Tensor, g: Tensor, kept: Remembered) -> tuple[Tensor, Remembered]:
        m = kept["m"] if kept else torch.zeros_like(x)
        v = kept["v"] if kept else torch.full_like(x, self.tau**2)
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self._second(v, g * g)
        return x - self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}

    @abstractmethod
    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from this round's g^2."""


@server_optimizers("fedadagrad")
@settings
class FedAdagrad(Adaptive):
    """Step sizes fall with the sum of all squared steps so far; without momentum, as in the paper's experiments."""

    beta1: Beta = 0.0

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@server_optimizers("fedadam")
@settings
class FedAdam(Adaptive):
    """Step sizes by a running mean of squared steps.

    Args:
        beta2: how much of the mean of squares is kept.
    """

    beta2: Beta = 0.99

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@server_optimizers("fedyogi")
@settings
class FedYogi(Adaptive):
    """FedAdam whose step sizes change more slowly where squared steps become smaller.

    Args:
        beta2: how little a round changes the squares.
    """

    beta2: Beta = 0.99

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@settings
class ServerOptimised:
    """A method whose server may have an optimiser.

    Args:
        server_optimizer: what the server makes of a round's step, the step itself if not given: 'momentum', 'fedadam',
            'fedyogi' or 'fedadagrad', a dict with a name and settings, or a `polyfed.ServerOptimizer`.
    """

    server_optimizer: str | Mapping[str, Any] | ServerOptimizer | None = None

    def __post_init__(self) -> None:
        if self._optimizer is None:
            return
        if getattr(self, "output", "last") == "random":
            raise ValueError(
                "output = 'random' ends with the model of an earlier round, which is no step; set output = 'last' or "
                "leave out server_optimizer."
            )
        if isinstance(self, Algorithm) and type(self).personal is not Algorithm.personal:
            raise ValueError("server_optimizer is for methods with one model, and this one learns a model a client.")

    @cached_property
    def _optimizer(self) -> ServerOptimizer | None:
        if self.server_optimizer is None:
            return None
        where = "algorithm.server_optimizer"
        made: ServerOptimizer = choose(server_optimizers, self.server_optimizer, where, ServerOptimizer)
        return made

    def server_step(self, x: Tensor, proposed: Tensor, kept: Remembered) -> tuple[Tensor, Remembered]:
        """Where the server goes from x when the round proposes another model, and what it remembers."""
        return (proposed, {}) if self._optimizer is None else self._optimizer.step(x, x - proposed, kept)
