"""What the neural methods share: how a client trains, step sizes that change, weights over who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.algorithms.server_optimizers import ServerOptimised
from polyfed.core.door import Door
from polyfed.core.errors import BadInput
from polyfed.core.messages import Option
from polyfed.core.settings import Count, NotNegative, Positive, settings
from polyfed.rates import BatchRule, LrRule, Moment, Rule, ServerLrRule, evaluated, plain


@settings
class StepDecay:
    """start * decay^floor((t - 1) / every)."""

    start: Positive
    decay: Annotated[float, Field(gt=0, le=1)]
    every: Annotated[int, Field(ge=1)] = 1

    def value(self, t: int, frame: int) -> float:
        return self.start * float(self.decay ** ((t - 1) // self.every))


Every = Annotated[int, Field(ge=1)] | Literal["frame"]  # rounds; a frame is as many as models are trained together


def stage(t: int, every: Every, frame: int) -> int:
    """1 + floor((t - 1) / every): which stretch of so many rounds t lies in."""
    return 1 + (t - 1) // (frame if every == "frame" else every)


@settings
class InverseDecay:
    """beta / (1 + floor((t - 1) / every) + gamma); with every = 1, beta / (t + gamma).

    every = "frame" holds a rate for M rounds, M the number of models trained together, as MFA-RR's Theorem 2 asks.
    """

    beta: Positive
    gamma: NotNegative = 0.0
    every: Every = 1

    def value(self, t: int, frame: int) -> float:
        return self.beta / (stage(t, self.every, frame) + self.gamma)


@settings
class GrowingBatch:
    """A batch that grows from `start` rows to all, as Theorem 2 of the multi-model paper asks.

    The share of the `full` rows (the largest client's) that a step leaves out is at most
    (1 - start / full) (1 + gamma) / (1 + floor((t - 1) / every) + gamma), so proportional to a decaying step of the
    same gamma and every. The batch is the smallest that cuts no client's pass into a part that leaves out more of that
    client's rows: from half of the rows on, the next size is all of them.
    """

    start: Annotated[int, Field(ge=1)]
    full: Annotated[int, Field(ge=1)]
    gamma: NotNegative = 0.0
    every: Every = 1

    def value(self, t: int, frame: int, examples: NDArray[np.int64]) -> int:
        """Rows of a step in round t, for clients with so many examples; 0 for all."""
        left_out = (1 - self.start / self.full) * (1 + self.gamma) / (stage(t, self.every, frame) + self.gamma)
        n = np.unique(examples[examples > 0])
        least = np.ceil(n * (1 - max(left_out, 0.0)) - 1e-9)
        for size in range(int(max(least.max(), 1)), int(n.max())):
            part = np.where(n % size, n % size, size)  # the smallest of a pass
            if ((size >= n) | (part >= least)).all():
                return size
        return 0


ADAMW_DECAY = 0.01  # torch's, too
Rate = Positive | StepDecay | InverseDecay | LrRule
ServerRate = Positive | StepDecay | InverseDecay | ServerLrRule


def value_in_round(rate: Any, t: int, fleet: Door, setting: str = "lr", steps: float = 1.0, lr: float = 1.0) -> float:
    """A setting's value in round t: a number, a schedule, a rule or a function of t.

    setting: which one, for rules; steps, lr: the clients' local steps and step size, for rules of the server's.
    """
    if isinstance(rate, float | int):
        return rate
    if isinstance(rate, StepDecay | InverseDecay):
        return rate.value(t, fleet.frame)
    return evaluated(rate, setting, moment(t, fleet, setting, steps, lr))


@dataclass(frozen=True)
class Outlook:
    """What is known of a run before it begins.

    rounds, frame: as the fleet's; names: the objectives'; examples: of each client.
    """

    rounds: int
    frame: int
    names: Sequence[str]
    examples: NDArray[np.int64]
    remembered: Mapping[str, Any] = field(default_factory=dict)


def announced(method: Any, ahead: Outlook) -> list[str]:
    """A sentence for every setting whose value a rule gives; what its theorem does not cover is refused."""
    fleet: Any = ahead
    found = []
    for name, rule in rules_of(method).items():
        title = getattr(rule, "rule", type(rule).__name__)
        if rule.theorem and not _plain_sgd(method):
            raise BadInput(
                f"The rule {title!r} is about plain SGD: set optimizer = 'sgd' and momentum = 0, and leave out "
                "weight_decay, clip and server_optimizer."
            )
        if title == "plateau" and not isinstance(method, LocalTraining):
            raise BadInput("The rule 'plateau' needs a method that logs its training loss; choose another schedule.")
        rule.check(name, _moment_of(method, name, 1, fleet))
        ends = [evaluated(rule, name, _moment_of(method, name, t, fleet)) for t in (1, ahead.rounds)]
        constants = ", ".join(f"{k} = {v}" for k, v in plain(rule).items() if k != "rule")
        span = f"{ends[0]:.4g}" if ends[0] == ends[1] else f"{ends[0]:.4g} in round 1, {ends[1]:.4g} in the last"
        found.append(f"{name} by {title} ({constants}): {'at first ' * (title == 'plateau')}{span}")
    return found


def _plain_sgd(method: Any) -> bool:
    """Whether clients and server step along gradients and updates as they are."""
    more = ("momentum", "weight_decay", "clip", "server_optimizer")
    return getattr(method, "optimizer", "sgd") == "sgd" and not any(getattr(method, name, None) for name in more)


def rules_of(method: Any) -> dict[str, Rule]:
    """The settings of a method whose values rules give; PGD's step is its weighting's."""
    places = {**vars(method), **({"step": getattr(method.rule, "step", None)} if hasattr(method, "weighting") else {})}
    return {name: value for name, value in places.items() if isinstance(value, Rule)}


def values_by_rules(method: Any, t: int, fleet: Door) -> dict[str, float]:
    """What rules gave in round t, for its line of metrics."""
    return {name: evaluated(r, name, _moment_of(method, name, t, fleet)) for name, r in rules_of(method).items()}


def _moment_of(method: Any, setting: str, t: int, fleet: Door) -> Moment:
    trains = isinstance(method, LocalTraining)
    steps = method.steps_a_round(t, fleet) if trains else 1.0
    lr = method.client_lr(t, fleet) if trains and setting == "server_lr" else 1.0
    return moment(t, fleet, setting, steps, lr, method)


def moment(t: int, fleet: Door, setting: str, steps: float = 1.0, lr: float = 1.0, method: Any = None) -> Moment:
    """What a rule may know in round t."""
    size = getattr(method, "batch_size", 0)
    return Moment(
        t=t, rounds=fleet.rounds, frame=fleet.frame, objectives=len(fleet.names), steps=steps, lr=lr,
        normalised=bool(getattr(method, "normalise", False)),
        batch=("some" if size else "full") if isinstance(size, int) else "more",
        examples=int(fleet.examples.sum()), kept=fleet.remembered.get(setting, {}),
    )  # fmt: skip


@settings
class LocalTraining(ServerOptimised):
    """How a client trains.

    Args:
        lr: the clients' step size: a number; a schedule, {'start': 0.1, 'decay': 0.5, 'every': 10} or
            {'beta': 1.0, 'gamma': 0.0, 'every': 1} for beta / (t + gamma); a rule by its name, {'rule': 'cosine',
            'start': 0.1}; or, from Python, a function of the round.
        local_steps: steps a round.
        local_epochs: passes over a client's rows a round, in place of steps.
        batch_size: rows of a step; 0 for all of a client's, or one that grows ({'start': 8, 'full': 100}), or a rule.
        optimizer: 'sgd', 'adam' or 'adamw'; what it remembers does not last from round to round.
        momentum: of SGD.
        weight_decay: the factor of an L2 term in the gradient, as torch's SGD and Adam have it, or AdamW's decoupled
            decay. If not given 0, and torch's 0.01 with 'adamw'.
        clip: the longest gradient of a local step, over all trained parameters together; any if not given.
        weighting_by: what a client counts in a mean: 1 ('uniform') or its number of examples ('size', as in McMahan's
            FedAvg).
    """

    lr: Rate = 0.1
    local_steps: Count = 10
    local_epochs: Count = 0
    batch_size: Count | GrowingBatch | BatchRule = 32
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NotNegative | None = None
    clip: Positive | None = None
    weighting_by: Literal["uniform", "size"] = "uniform"

    def __post_init__(self) -> None:
        if not self.local_steps and not self.local_epochs:
            raise ValueError("local_steps or local_epochs should be at least 1. Found 0 for both.")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum is SGD's; leave it out, or set optimizer = 'sgd'. Found {self.optimizer!r}.")
        super().__post_init__()

    def local_options(self, t: int, fleet: Door) -> dict[str, Option]:
        """The options of a request for local work in round t (`work.sgd.LocalSteps`); epochs replace steps.

        What is not asked for is not sent, so that clients of an earlier version understand it.
        """
        decay = ADAMW_DECAY if self.weight_decay is None and self.optimizer == "adamw" else self.weight_decay
        more = {"weight_decay": decay, "clip": self.clip}
        return {
            "lr": self.client_lr(t, fleet),
            "steps": 0 if self.local_epochs else self.local_steps,
            "epochs": self.local_epochs,
            "batch_size": self.batch_rows(t, fleet),
            "optimizer": self.optimizer,
            "momentum": self.momentum,
            "weight": self.weighting_by,
            **{name: value for name, value in more.items() if value},
        }

    def batch_rows(self, t: int, fleet: Door) -> int:
        """Rows of a step in round t; 0 for all of a client's."""
        size = self.batch_size
        if isinstance(size, GrowingBatch):
            return size.value(t, fleet.frame, fleet.examples)
        if isinstance(size, int):
            return size
        return int(evaluated(size, "batch_size", moment(t, fleet, "batch_size")))

    def steps_a_round(self, t: int, fleet: Door) -> float:
        """K: local steps, or what a client's passes come to on average."""
        if not self.local_epochs:
            return float(self.local_steps)
        rows, n = self.batch_rows(t, fleet), fleet.examples[fleet.examples > 0]
        return self.local_epochs * (float(np.ceil(n / rows).mean()) if rows else 1.0)

    def client_lr(self, t: int, fleet: Door) -> float:
        """eta_c in round t."""
        steps = 1.0 if isinstance(self.lr, float | int) else self.steps_a_round(t, fleet)
        return value_in_round(self.lr, t, fleet, "lr", steps)

    def at_server(self, rate: Any, t: int, fleet: Door) -> float:
        """eta_s in round t."""
        if isinstance(rate, float | int):
            return rate
        if isinstance(rate, Rule):
            return evaluated(rate, "server_lr", _moment_of(self, "server_lr", t, fleet))
        return value_in_round(rate, t, fleet, "server_lr")

    def shares(self, cohort: Sequence[int], fleet: Door) -> NDArray[np.float64]:
        """a_i of every client asked: 1, or its number of examples."""
        n: NDArray[np.float64] = fleet.examples[np.asarray(cohort)].astype(float)
        return n if self.weighting_by == "size" else np.ones_like(n)

    def stakes(self, cohort: Sequence[int], fleet: Door) -> NDArray[Any]:
        """Which part of a_i counts for each objective: all for those held; by size, the part that has a label."""
        every = fleet.fractions if self.weighting_by == "size" else fleet.holds
        return np.asarray(every[np.asarray(cohort)])


def present(lam: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights over the objectives that somebody in the cohort holds; the others have 0, and share out what they had."""
    lam = np.where(holds.any(0), lam, 0.0)
    simplex: NDArray[np.float64] = lam / max(lam.sum(), np.finfo(float).tiny)
    return simplex


def objective_weights(lam: NDArray[np.float64], a: NDArray[np.float64], stakes: NDArray[Any]) -> NDArray[np.float64]:
    """omega_s = lambda_s W / W_s: what a client multiplies f_s by, so that the mean over all clients of their weighted
    objectives is sum_s lambda_s times the mean over those who hold s (W sums a over all, W_s over the holders, each by
    the part of a that counts for s).
    """
    W_s = a @ stakes
    omega: NDArray[np.float64] = np.divide(lam * a.sum(), W_s, out=np.zeros_like(lam), where=W_s > 0)
    return omega


def descended(x: Tensor, rate: float, g: Tensor) -> Tensor:
    """x - rate g, written over g, which must be nobody else's.

    A new array of a large model takes ten times as long, as the system has yet to find its pages; and what has come
    from a GPU lies where it goes back from in no time.
    """
    g = g.to(x.dtype)
    return torch.sub(x, g.mul_(rate), out=g)
