"""What is learned: a network, the objectives it is judged by, and the flat vector x in R^d that the server sees."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map_only

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.metric import SplitMetric
from polyfed.core.structure import Nested, by_name, leaves, length, names_of, picked

PerExample = Callable[..., Tensor]
Outputs = Any  # whatever a module returns
Columns = Mapping[str, Tensor]


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
    """A name, a loss, and the metrics people report for it.

    Args:
        name: what outputs, targets and figures call it.
        loss: 'cross-entropy', 'binary', 'squared' or 'cross-entropy-of-sigmoid', which bring their metric along; or a
            function of what `takes` names that returns a vector with one entry per example, so that padding can be
            masked, or one number where it is about the batch.
        metrics: by name, each a `polyfed.Metric`, which says whether more is better, or a `polyfed.SplitMetric`, of all
            rows together; those of a named loss if not given.
        classes: how many there are, where targets are class numbers and the loss is 'squared': it then compares as
            many outputs with one-hot targets.
        output: what the loss and the metrics see of the module's output: a key, an attribute or a position; a tuple of
            them; or a function of the output. If not given, the output of the objective's name, or the only one.
        per: 'example', or 'batch' for a loss that is one number for the whole batch: a gap between groups, a
            contrastive loss, a regulariser.
        takes: the loss's arguments in order: 'output', 'target', 'mask' (1 for rows that count, 0 for padding and for
            rows without a label), 'parameters' (a dict by name), or the name of one of the federation's columns.
    """

    name: str
    loss: str | PerExample
    metrics: Mapping[str, Metric | SplitMetric] | None = None
    classes: int | None = None
    output: str | int | tuple[str | int, ...] | Callable[[Any], Any] | None = None
    per: Literal["example", "batch"] = "example"
    takes: Sequence[str] = ("output", "target")

    def __post_init__(self) -> None:
        self._check_names()
        self._check_calls()

    def _check_calls(self) -> None:
        """What is said of how the loss is called."""
        own = f"Objective {shown(self.name)}"
        if self.per not in ("example", "batch"):
            raise BadInput(f"{own}: per should be 'example' or 'batch'. Found {shown(self.per)}.")
        if isinstance(self.takes, str) or not all(isinstance(what, str) for what in self.takes):
            raise BadInput(f"{own}: takes should be a tuple of names. Found {shown(self.takes)}.")
        object.__setattr__(self, "takes", tuple(self.takes))
        if isinstance(self.loss, str) and (self.per, self.takes) != ("example", ("output", "target")):
            raise BadInput(
                f"{own}: the loss {self.loss!r} takes ('output', 'target') per example; "
                f"per and takes are for a function of one's own. Found {shown(self.takes)}, {self.per!r}."
            )
        if set(self.takes) == {"parameters"} and self.per == "example":
            raise BadInput(f"{own}: a loss of the parameters alone is one number: say per='batch'. Found 'example'.")

    def _check_names(self) -> None:
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
            if not isinstance(metric, Metric | SplitMetric):
                raise BadInput(
                    f"{own}: say whether more of the metric {name!r} is better: "
                    f"Metric(function, better='higher') or 'lower'. Found {shown(metric)}."
                )

    @cached_property
    def measured(self) -> dict[str, Metric]:
        """What is a mean over examples: the loss first, then the metrics."""
        named = OF_CLASSES if self.classes else LOSSES
        loss, metrics = named[self.loss] if isinstance(self.loss, str) else (self.loss, {})
        own = metrics if self.metrics is None else self.metrics
        return {"loss": Metric(loss, "lower"), **{n: m for n, m in own.items() if isinstance(m, Metric)}}

    @cached_property
    def over_split(self) -> dict[str, SplitMetric]:
        """What is measured over all rows of a split together; one called 'loss' is reported in place of the mean."""
        return {name: m for name, m in (self.metrics or {}).items() if isinstance(m, SplitMetric)}

    @property
    def reported(self) -> dict[str, Metric | SplitMetric]:
        """All figures of this objective, in their order in tables."""
        return {**self.measured, **self.over_split}

    @cached_property
    def values(self) -> dict[str, PerExample]:
        """The functions of what is a mean over examples."""
        return {name: metric.function for name, metric in self.measured.items()}


NOTHING: Columns = MappingProxyType({})


class Batch(NamedTuple):
    """Some examples; mask is 0 where a row is only padding, None when there is none.

    columns are named beside the targets: groups, weights, times. labelled says, for targets that some rows lack, which
    rows have one (1 or 0).
    """

    x: Nested
    targets: Columns
    mask: Tensor | None = None
    columns: Columns = NOTHING
    labelled: Columns = NOTHING

    @property
    def rows(self) -> int:
        """How many rows there are, padding included."""
        return length(self.x)

    def counted(self, target: str | None = None) -> Tensor | None:
        """1 where a row counts for what needs this target (None: no target) and 0 where not; None where all do."""
        own = None if target is None else self.labelled.get("", self.labelled.get(target))
        if own is None or self.mask is None:
            return self.mask if own is None else own
        return self.mask * own

    def mean(self, values: Tensor, target: str | None = None) -> Tensor:
        """The mean over the rows that count; 0 where none does."""
        if not self.labelled:
            return values.mean() if self.mask is None else (values * self.mask).sum() / self.mask.sum()
        counted = self.counted(target)
        if counted is None:
            return values.mean()
        return torch.where(counted > 0, values, 0.0).sum() / counted.sum().clamp(min=1)

    def total(self, values: Tensor, target: str | None = None) -> Tensor:
        """The sum over the rows that count."""
        if not self.labelled:
            return values.sum() if self.mask is None else (values * self.mask).sum()
        counted = self.counted(target)
        return values.sum() if counted is None else torch.where(counted > 0, values, 0.0).sum()

    def number(self, target: str | None = None) -> Tensor:
        """How many rows count."""
        counted = self.counted(target)
        if counted is not None:
            return counted.sum()
        return torch.full((), float(self.rows), device=leaves(self.x)[0].device)


class Problem:
    """A `torch.nn.Module` and its objectives, float32 or float64.

    The module returns one tensor per objective (a dict by objective name), or one tensor for all of them; or anything
    from which `Objective(output=...)` picks. Its trainable parameters in order are the vector x; the float buffers that
    training changes (BatchNorm's statistics) are a second vector that travels beside it. If it has a `heads`
    attribute, an `nn.ModuleDict` keyed by objective, the parameters under it are those objectives' own; the rest are
    shared.

    Args:
        model: the module. It is left as it is: where it is of another type, a copy is trained. A frozen base in half
            precision keeps its type.
        objectives: what it is judged by.
        dtype: the type it is trained in, torch.float32 or torch.float64.
        freeze: patterns of the names of parameters that are not trained, besides those that the module has frozen:
            ['*lora_A*'] trains the matrices B of adapters alone (FFA-LoRA).
        autocast: 'bf16' (or true) computes the module's outputs under `torch.autocast` in bfloat16, in training and in
            evaluation; parameters, losses and gradients stay float32.
    """

    def __init__(
        self,
        model: nn.Module,
        objectives: Sequence[Objective],
        dtype: torch.dtype = torch.float32,
        *,
        freeze: Sequence[str] = (),
        autocast: Literal["bf16"] | bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise BadInput(f"A problem's model should be a torch.nn.Module. Found {shown(model)}.")
        if not isinstance(objectives, Sequence) or not all(isinstance(o, Objective) for o in objectives):
            raise BadInput(f"A problem's objectives should be a list of polyfed.Objective. Found {shown(objectives)}.")
        if dtype not in (torch.float32, torch.float64):
            raise BadInput(f"A problem's dtype should be torch.float32 or torch.float64. Found {shown(dtype)}.")
        if autocast not in ("bf16", True, False):
            raise BadInput(f"A problem's autocast should be 'bf16', true or false. Found {shown(autocast)}.")
        if autocast and dtype != torch.float32:
            raise BadInput(f"autocast = 'bf16' goes with the dtype float32. Found {dtype}; leave one of them out.")
        self.model = _in_type(_frozen(model, freeze), dtype)
        self.autocast = bool(autocast)
        self.objectives = tuple(objectives)
        self.names = tuple(o.name for o in self.objectives)
        self.dtype = dtype
        self.channels_last = True  # images go to the model in the layout convolutions want, where it can take it
        if not self.names or len(set(self.names)) < len(self.names):
            raise BadInput(f"A problem needs at least one objective, each with its own name; found {self.names}.")
        self.params = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.buffers = {name: b for name, b in self.model.named_buffers() if b.is_floating_point()}
        self.labels = tuple(o.name if "target" in o.takes else None for o in self.objectives)  # which a loss needs
        if not self.params:
            raise BadInput("The model has no trainable parameters; there is nothing to learn.")
        self._parts: dict[tuple[str, torch.device], Tensor] = {}
        for o in self.objectives:  # now: what is made within a compiled program has it compiled again
            _ = o.values, o.over_split

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
            "C": sum(metric.size for o in self.objectives for metric in o.over_split.values() if metric.counts),
            "S": sum(metric.size for o in self.objectives for metric in o.over_split.values() if not metric.counts),
        }

    @cached_property
    def doubtful(self) -> set[str]:
        """Float buffers of which nobody knows whether training changes them: all but the statistics of BatchNorm."""
        known = {f"{name}.{own}".lstrip(".") for name, module in self.model.named_modules()
                 if isinstance(module, _NormBase) for own, _ in module.named_buffers(recurse=False)}  # fmt: skip
        return set(self.buffers) - known

    def without_buffers(self, names: Collection[str]) -> None:
        """These buffers stay as they are, as a trial step has shown, and so need not travel."""
        self.buffers = {name: b for name, b in self.buffers.items() if name not in names}
        for cached in ("dims", "doubtful"):
            self.__dict__.pop(cached, None)

    def part(self, name: str, device: torch.device) -> Tensor:
        """The entries of x of one part, kept on each device they were asked for on."""
        if (name, device) not in self._parts:
            self._parts[name, device] = self.parts[name].to(device)
        return self._parts[name, device]

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

    def losses(self, outputs: Outputs, batch: Batch, holds: Sequence[bool], params: Columns = NOTHING) -> list[Tensor]:
        """Mean loss of every objective on a batch; 0 for those the client does not hold.

        params: the model's parameters by name, for losses that take them.
        """
        zero = None if all(holds) else torch.zeros((), dtype=self.dtype, device=leaves(batch.x)[0].device)
        return [
            batch.mean(self.value(k, "loss", outputs, batch, params), self.labels[k]).to(self.dtype)
            if zero is None or held
            else zero
            for k, held in enumerate(holds)
        ]

    def value(self, k: int, name: str, outputs: Outputs, batch: Batch, params: Columns = NOTHING) -> Tensor:
        """A loss or metric of objective k for each example of a batch; a loss about the batch is each one's."""
        objective = self.objectives[k]
        takes = objective.takes if name == "loss" else ("output", "target")
        value = objective.values[name](*(self.argument(k, what, outputs, batch, params) for what in takes))
        if name == "loss" and objective.per == "batch":
            if value.shape != ():
                raise BadInput(
                    f"Objective {objective.name!r}: a loss per batch should be one number. Found shape "
                    f"{tuple(value.shape)}."
                )
            return value.expand(batch.rows)
        if value.shape != (batch.rows,):
            raise BadInput(
                f"Objective {objective.name!r}: the {name} should be one value per example, shape ({batch.rows},). "
                f"Found shape {tuple(value.shape)}; with torch's losses say reduction='none'."
            )
        return value

    def counts(self, batch: Batch) -> Tensor:
        """How many rows of a batch count for each objective (M,)."""
        return torch.stack([batch.number(label).to(self.dtype) for label in self.labels])

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Inside, a module computes in bfloat16 where that is asked for; parameters change, so that no cast is kept."""
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if self.autocast else nullcontext()

    def output(self, k: int, outputs: Outputs) -> Any:
        """What objective k sees of the module's output; half precision comes in the problem's type."""
        found = self._output(k, outputs)
        return self._widened(found) if isinstance(found, Tensor) else tree_map_only(Tensor, self._widened, found)

    def _widened(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.dtype in (torch.bfloat16, torch.float16) else value

    def _output(self, k: int, outputs: Outputs) -> Any:
        which = self.objectives[k].output
        if which is not None:
            return picked(outputs, which, self.names[k])
        found = by_name(outputs, self.names[k], k, self.names)
        if found is None:
            raise BadInput(
                f"Objective {self.names[k]!r} has no output: one tensor, or one for each of {', '.join(self.names)}, "
                f"is needed, or Objective(..., output='logits'), which picks one. Found {names_of(outputs)}."
            )
        return found

    def target(self, k: int, targets: Columns) -> Tensor:
        """The targets of objective k."""
        found = targets.get("", targets.get(self.names[k]))
        if found is None:
            raise BadInput(
                f"Objective {self.names[k]!r} has no target: one tensor, or a dict with one for each of "
                f"{', '.join(self.names)}, is needed. Found {sorted(targets)}."
            )
        return found

    def argument(self, k: int, what: str, outputs: Outputs, batch: Batch, params: Columns) -> Any:
        """What the loss of objective k gets for one of the names that it takes."""
        if what == "output":
            return self.output(k, outputs)
        if what == "target":
            return self.target(k, batch.targets)
        if what == "mask":
            counted, device = batch.counted(self.labels[k]), leaves(batch.x)[0].device
            return torch.ones(batch.rows, dtype=self.dtype, device=device) if counted is None else counted
        if what == "parameters":
            return params
        if what not in batch.columns:
            raise BadInput(
                f"Objective {self.names[k]!r} takes {what!r}, which is no column of the data: give "
                f"Federation(columns={{{what!r}: ...}}).{nearest(what, [*batch.columns, *ARGUMENTS])}"
            )
        return batch.columns[what]

    def replica(self, device: torch.device) -> nn.Module:
        """A copy of the module on a device. Parameters that are not trained exist there once, for all copies."""
        if device not in self._frozen:
            frozen = [p for p in self.model.parameters() if not p.requires_grad]
            self._frozen[device] = {id(p): nn.Parameter(p.data.to(device), requires_grad=False) for p in frozen}
        return copy.deepcopy(self.model, memo=dict(self._frozen[device])).to(device)

    @cached_property
    def _frozen(self) -> dict[torch.device, dict[int, Any]]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Problem:
        """Another one, with parameters of its own; what is not trained is shared."""
        made = copy.copy(self)
        made.__dict__.pop("_frozen", None)
        made.model = self.replica(torch.device("cpu"))
        params, held = dict(made.model.named_parameters()), dict(made.model.named_buffers())
        made.params = {name: params[name] for name in self.params}
        made.buffers = {name: held[name] for name in self.buffers}
        memo[id(self)] = made
        return made

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state with these parameters and buffers, as `load_state_dict` wants it; of adapters (peft), what
        was trained and the adapters whole, frozen parts included."""
        views = {**self.split(x), **self.split_buffers(buffers)}
        own = {id(t): name for name, t in (*self.model.named_parameters(), *self.model.named_buffers())}
        state = {key: views.get(own.get(id(t), key), t) for key, t in self.model.state_dict(keep_vars=True).items()}
        if is_peft(self.model):
            trained = {id(t) for t in (*self.params.values(), *self.buffers.values())}
            named = self.model.state_dict(keep_vars=True)
            state = {k: t for k, t in state.items() if id(named[k]) in trained or is_adapter(self.model, k)}
        return {key: t.detach().cpu().contiguous().clone() for key, t in state.items()}


ARGUMENTS = ("output", "target", "mask", "parameters")


def is_peft(model: nn.Module) -> bool:
    """Whether a module is one of peft's: a base, and adapters that are saved by themselves."""
    return hasattr(model, "peft_config") and hasattr(model, "save_pretrained")


def is_adapter(model: nn.Module, key: str) -> bool:
    """Whether an array of a module of peft's belongs to an adapter, and not to the base."""
    return getattr(getattr(model, "base_model", None), "prefix", "lora_") in key


def _frozen(model: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """The module with more parameters frozen; a copy then, which shares what was frozen before."""
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise BadInput(f"freeze should be a list of patterns of parameters' names. Found {shown(patterns)}.")
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            found = f"Found {shown(names)}."
            raise BadInput(f"freeze names {shown(pattern)}, which no trainable parameter is like. {found}")
    if not patterns:
        return model
    made = copy.deepcopy(model, memo={id(p): p for p in model.parameters() if not p.requires_grad})
    for name, p in made.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            p.requires_grad_(False)
    return made


def _in_type(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in a type, but a frozen base in half precision stays as it is; a copy, where anything changes."""
    half = {torch.float16, torch.bfloat16}
    keep = {n for n, p in model.named_parameters() if not p.requires_grad and p.dtype in half}
    named = [*model.named_parameters(), *model.named_buffers()]
    wrong = {n for n, t in named if t.is_floating_point() and t.dtype != dtype and n not in keep}
    wrong -= {n for n, b in model.named_buffers() if keep and b.dtype in half}
    if not wrong:
        return model
    made = copy.deepcopy(model)
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        if name in wrong:
            tensor.data = tensor.data.to(dtype)
    return made


def _flatten(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    flat = [t.detach().reshape(-1).to(dtype) for t in tensors.values()]
    return torch.cat(flat).clone() if flat else torch.zeros(0, dtype=dtype)


def _unflatten(x: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    pieces = torch.split(x, [t.numel() for t in like.values()], -1)
    return {name: piece.view(t.shape) for (name, t), piece in zip(like.items(), pieces, strict=True)}
