"""What is learned: a network, the objectives it is judged by, and the flat vector x in R^d that the server sees."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core.errors import BadInput, nearest, shown

PerExample = Callable[[Tensor, Tensor], Tensor]
Outputs = Tensor | Mapping[str, Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy of logits (n, classes) with class numbers (n,)."""
    return F.cross_entropy(output, target.long(), reduction="none")


def cross_entropy_of_sigmoid(output: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy of sigmoid(output), as the multi-model paper's authors trained their logistic regressions:
    its inputs lie in (0, 1), so it stays above log(1 + (classes - 1) / e)."""
    return cross_entropy(output.sigmoid(), target)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest logit is the right one."""
    return (output.argmax(-1) == target).to(output.dtype)


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Logistic loss of logits with labels in {0, 1}, one or several an example; averaged over an example's."""
    loss = F.binary_cross_entropy_with_logits(output.reshape(target.shape), target.to(output.dtype), reduction="none")
    return loss.reshape(len(loss), -1).mean(1)


def binary_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the logit has the label's sign; the mean over an example's labels."""
    right = ((output.reshape(target.shape) > 0) == (target > 0.5)).to(output.dtype)
    return right.reshape(len(right), -1).mean(1)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Squared error, averaged over the coordinates of one example."""
    return (output - target.reshape(output.shape).to(output.dtype)).square().reshape(len(output), -1).mean(1)


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Absolute error, averaged over the coordinates of one example."""
    return (output - target.reshape(output.shape).to(output.dtype)).abs().reshape(len(output), -1).mean(1)


def squared_error_of_classes(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of outputs (n, classes) from one-hot class numbers (n,), averaged over the classes."""
    classes = torch.arange(output.shape[-1], device=output.device)
    return squared_error(output, target.unsqueeze(-1) == classes)


def nearest_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the output is nearer to its label, 0 or 1, than to the other; the mean over an example's labels."""
    return binary_accuracy(output - 0.5, target)


@dataclass(frozen=True)
class Metric:
    """A figure that people report, and whether more of it is better: only then is the worst client the worst.

    Args:
        function: of (output, target), with one value per example.
        better: 'higher' or 'lower'.
    """

    function: PerExample
    better: Literal["higher", "lower"]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise BadInput(f"Metric: function should be a function of (output, target). Found {shown(self.function)}.")
        if self.better not in ("higher", "lower"):
            raise BadInput(f"Metric: better should be 'higher' or 'lower'. Found {shown(self.better)}.")


LOSSES: dict[str, tuple[PerExample, dict[str, Metric]]] = {
    "cross-entropy": (cross_entropy, {"accuracy": Metric(accuracy, "higher")}),
    "binary": (binary_cross_entropy, {"accuracy": Metric(binary_accuracy, "higher")}),
    "squared": (squared_error, {"absolute_error": Metric(absolute_error, "lower")}),
    "cross-entropy-of-sigmoid": (cross_entropy_of_sigmoid, {"accuracy": Metric(accuracy, "higher")}),
}
OF_CLASSES: dict[str, tuple[PerExample, dict[str, Metric]]] = {  # where the loss does not see classes by itself
    "squared": (squared_error_of_classes, {"accuracy": Metric(accuracy, "higher")}),
}


@dataclass(frozen=True)
class Objective:
    """A name, a loss, and the metrics people report for it; each gives one value per example.

    Args:
        name: what outputs, targets and figures call it.
        loss: 'cross-entropy', 'binary', 'squared' or 'cross-entropy-of-sigmoid', which bring their metric along; or a
            function of (output, target) that returns a vector with one entry per example, so that padding can be
            masked.
        metrics: by name, each a `polyfed.Metric`, which says whether more is better; those of a named loss if not
            given.
        classes: how many there are, where targets are class numbers and the loss is 'squared': it then compares as
            many outputs with one-hot targets.
    """

    name: str
    loss: str | PerExample
    metrics: Mapping[str, Metric] | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise BadInput(f"Objective: name should be a text. Found {shown(self.name)}.")
        own = f"Objective {shown(self.name)}"
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise BadInput(f"{own}: unknown loss {shown(self.loss)}.{nearest(self.loss, LOSSES)}")
        if not isinstance(self.loss, str) and not callable(self.loss):
            raise BadInput(f"{own}: loss should be a name or a function of (output, target). Found {shown(self.loss)}.")
        if self.metrics is not None and not isinstance(self.metrics, Mapping):
            raise BadInput(f"{own}: metrics should be a dict of polyfed.Metric by name. Found {shown(self.metrics)}.")
        if self.classes is not None and (isinstance(self.classes, bool) or not isinstance(self.classes, int)):
            raise BadInput(f"{own}: classes should be a whole number. Found {shown(self.classes)}.")
        if self.classes is not None and (self.classes < 2 or self.loss not in OF_CLASSES):
            raise BadInput(
                f"{own}: classes should be 2 or more, beside the loss 'squared'; other losses need none. Found "
                f"{shown(self.classes)} beside {shown(self.loss)}."
            )
        for name, metric in (self.metrics or {}).items():
            if not isinstance(metric, Metric):
                raise BadInput(
                    f"{own}: say whether more of the metric {name!r} is better: "
                    f"Metric(function, better='higher') or 'lower'. Found {shown(metric)}."
                )

    @cached_property
    def measured(self) -> dict[str, Metric]:
        """Everything measured for this objective: the loss first, then the metrics."""
        named = OF_CLASSES if self.classes else LOSSES
        loss, metrics = named[self.loss] if isinstance(self.loss, str) else (self.loss, {})
        return {"loss": Metric(loss, "lower"), **(metrics if self.metrics is None else self.metrics)}

    @cached_property
    def values(self) -> dict[str, PerExample]:
        """The functions of all that is measured."""
        return {name: metric.function for name, metric in self.measured.items()}


class Batch(NamedTuple):
    """Some examples; mask is 0 where a row is only padding, None when there is none."""

    x: Tensor
    targets: Mapping[str, Tensor]
    mask: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        return values.mean() if self.mask is None else (values * self.mask).sum() / self.mask.sum()

    def total(self, values: Tensor) -> Tensor:
        return values.sum() if self.mask is None else (values * self.mask).sum()


class Problem:
    """A `torch.nn.Module` and its objectives, float32 or float64.

    The module returns one tensor per objective (a dict by objective name), or one tensor for all of them; targets
    likewise. Its parameters in order are the vector x; its float buffers (BatchNorm's statistics) are a second
    vector that travels beside it. If it has a `heads` attribute, an `nn.ModuleDict` keyed by objective, the
    parameters under it are those objectives' own; the rest are shared.

    Args:
        model: the module.
        objectives: what it is judged by.
        dtype: the type it is trained in, torch.float32 or torch.float64.
    """

    def __init__(self, model: nn.Module, objectives: Sequence[Objective], dtype: torch.dtype = torch.float32) -> None:
        if not isinstance(model, nn.Module):
            raise BadInput(f"A problem's model should be a torch.nn.Module. Found {shown(model)}.")
        if not isinstance(objectives, Sequence) or not all(isinstance(o, Objective) for o in objectives):
            raise BadInput(f"A problem's objectives should be a list of polyfed.Objective. Found {shown(objectives)}.")
        if dtype not in (torch.float32, torch.float64):
            raise BadInput(f"A problem's dtype should be torch.float32 or torch.float64. Found {shown(dtype)}.")
        self.model = model.to(dtype)
        self.objectives = tuple(objectives)
        self.names = tuple(o.name for o in self.objectives)
        self.dtype = dtype
        self.channels_last = True  # images go to the model in the layout convolutions want, where it can take it
        if not self.names or len(set(self.names)) < len(self.names):
            raise BadInput(f"A problem needs at least one objective, each with its own name; found {self.names}.")
        self.params = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.buffers = {name: b for name, b in self.model.named_buffers() if b.is_floating_point()}
        if not self.params:
            raise BadInput("The model has no trainable parameters; there is nothing to learn.")

    @property
    def dim(self) -> int:
        """d, the number of trainable parameters."""
        return sum(p.numel() for p in self.params.values())

    @cached_property
    def dims(self) -> dict[str, int]:
        """The letters that message schemas are written in."""
        return {
            "d": self.dim,
            "b": sum(b.numel() for b in self.buffers.values()),
            "M": len(self.names),
            "K": sum(len(o.values) for o in self.objectives),
        }

    def part(self, name: str, device: torch.device) -> Tensor:
        """The entries of x of one part, kept on each device they were asked for on."""
        if (name, device) not in self._parts:
            self._parts[name, device] = self.parts[name].to(device)
        return self._parts[name, device]

    @cached_property
    def _parts(self) -> dict[tuple[str, torch.device], Tensor]:
        return {}

    @cached_property
    def loss_places(self) -> list[int]:
        """Where the losses stand among the K measured values."""
        lengths = [len(o.values) for o in self.objectives]
        return [sum(lengths[:k]) for k in range(len(lengths))]

    def initial(self) -> dict[str, Tensor]:
        """The module's own parameters and buffers, as {'x': ..., 'buffers': ...}."""
        return {"x": _flatten(self.params, self.dtype), "buffers": _flatten(self.buffers, self.dtype)}

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """x as named views of the parameters' shapes (one `split`: slicing makes large backwards slow)."""
        return _unflatten(x, self.params)

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        return _unflatten(buffers, self.buffers)

    @cached_property
    def parts(self) -> dict[str, Tensor]:
        """Which entries of x belong to 'shared' and to each objective's head, as index vectors."""
        groups: dict[str, list[Tensor]] = {}
        for name, where in self.split(torch.arange(self.dim)).items():
            part = name.split(".")[1] if name.startswith("heads.") else "shared"
            groups.setdefault(part, []).append(where.reshape(-1))
        return {part: torch.cat(pieces) for part, pieces in groups.items()}

    def losses(self, outputs: Outputs, batch: Batch, holds: Sequence[bool]) -> list[Tensor]:
        """Mean loss of every objective on a batch; 0 for those the client does not hold."""
        return [
            batch.mean(self.value(k, "loss", outputs, batch)).to(self.dtype)
            if held
            else torch.zeros((), dtype=self.dtype, device=batch.x.device)
            for k, held in enumerate(holds)
        ]

    def value(self, k: int, name: str, outputs: Outputs, batch: Batch) -> Tensor:
        """A loss or metric of objective k for each example of a batch."""
        objective = self.objectives[k]
        output = outputs if isinstance(outputs, Tensor) else self._its(outputs, "output", k)
        target = batch.targets[""] if "" in batch.targets else self._its(batch.targets, "target", k)
        value = objective.values[name](output, target)
        if value.shape != (len(batch.x),):
            raise BadInput(
                f"Objective {objective.name!r}: the {name} should be one value per example, shape ({len(batch.x)},). "
                f"Found shape {tuple(value.shape)}; with torch's losses say reduction='none'."
            )
        return value

    def _its(self, tensors: Mapping[str, Tensor], what: str, k: int) -> Tensor:
        if not isinstance(tensors, Mapping) or self.names[k] not in tensors:
            found = sorted(tensors) if isinstance(tensors, Mapping) else type(tensors).__name__
            raise BadInput(
                f"Objective {self.names[k]!r} has no {what}: one tensor, or a dict with one for each of "
                f"{', '.join(self.names)}, is needed. Found {found}."
            )
        return tensors[self.names[k]]

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state with these parameters and buffers, as `load_state_dict` wants it."""
        model = copy.deepcopy(self.model)  # loaded by parameter, so that tied ones agree
        views = {**self.split(x), **self.split_buffers(buffers)}
        with torch.no_grad():
            for name, own in (*model.named_parameters(), *model.named_buffers()):
                if name in views:
                    own.copy_(views[name])
        return {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}


def _flatten(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    flat = [t.detach().reshape(-1).to(dtype) for t in tensors.values()]
    return torch.cat(flat).clone() if flat else torch.zeros(0, dtype=dtype)


def _unflatten(x: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    pieces = torch.split(x, [t.numel() for t in like.values()], -1)
    return {name: piece.view(t.shape) for (name, t), piece in zip(like.items(), pieces, strict=True)}
