"""The gradient operators of many clients at once: stacked parameters, stacked batches, one program.

Work runs under `torch.func.vmap`. A gradient inside it is an operator of its own (`_Operator`), which takes the stacked
tensors out of vmap's hands, so that the step they belong to can be compiled and captured.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._functorch import config
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from polyfed.client.compiled import own_code
from polyfed.core.cachefolder import cache
from polyfed.core.metric import split_statistics
from polyfed.core.problem import Batch, Outputs, Problem
from polyfed.core.structure import arguments, leaves, mapped
from polyfed.engines.batched.kernels.attention import StackedAttention, stacked_attention
from polyfed.engines.batched.kernels.batch_norm import replace_batch_norms
from polyfed.engines.batched.kernels.convolution import replace_convolutions
from polyfed.engines.batched.kernels.embedding import replace_embeddings
from polyfed.engines.batched.kernels.pooled import can_pool, replace_pooled
from polyfed.engines.batched.kernels.recurrent import replace_recurrent, unreplaced
from polyfed.engines.batched.kernels.wide import replace_wide

LATER = (
    "the model has gradient checkpointing, which would compute activations again at other parameters than a client's; "
    "without it clients go together, and engine.recompute saves memory"
)
RECOMPUTED = 0.2  # of the bytes that a program keeps for its gradient stay, where memory is short


class Form(NamedTuple):
    """What a client's batch is like: how its tensors belong together, and their shapes."""

    spec: TreeSpec
    shapes: tuple[torch.Size, ...]


class Stacked:
    """Gradients, Jacobians and measurements of a module at stacked parameters x (clients, d)."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        compiled: bool,
        blanks: Mapping[str, Tensor],
        recompute: bool = False,
    ) -> None:
        """blanks: of objectives that some client lacks, a label; recompute: whether a compiled gradient computes most
        activations again, which takes less memory (gradient checkpointing)."""
        self.problem, self.device, self._blanks = problem, device, blanks
        self._recompute = recompute
        self.model = problem.replica(device)
        self._always = [m for m in self.model.modules() if self.model.training and not m.training]
        self._recurrent = False  # whether there are recurrent layers that vmap has no rule for
        self._replace()
        self._masks = replace_batch_norms(self.model)
        self._ties = _ties(self.model)
        compiled = compiled and not self._recurrent
        self._compiled, self._eager = compiled, nullcontext if compiled else self.eager
        self._known: list[tuple[Form, tuple[Callable[..., Any], ...]]] = []

    def attention(self) -> AbstractContextManager[None]:
        """Around programs: attention has a stacked form of its own."""
        return stacked_attention()

    def eager(self) -> AbstractContextManager[None]:
        """Around a module that is not compiled."""
        return _as_compiled()

    def _replace(self) -> None:
        """Layers become those that have a stacked form of their own."""
        replace_recurrent(self.model)
        self._recurrent = unreplaced(self.model)
        if not self._recurrent:
            self._convolutions()
        replace_embeddings(self.model, operators=not self._recurrent)

    def _convolutions(self) -> None:
        replace_convolutions(self.model)
        if self.device.type == "cuda":  # a host's library is as good as what is written out
            replace_wide(self.model)
            if self.problem.dtype == torch.float32 and can_pool(self.device):  # the kernels' type
                replace_pooled(self.model)

    def _together(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """What a client's program is for a stack of clients."""
        return vmap(f, in_dims=0, randomness="different")

    def _flat(self, batch: Batch) -> tuple[Form, list[Tensor]]:
        """A client's batch as a list of tensors, and what puts them together again."""
        flat, spec = tree_flatten(tuple(batch))
        return Form(spec, tuple(t.shape for t in flat)), flat

    def _programs(self, form: Form) -> tuple[Callable[..., Any], ...]:
        """The losses and the measurements of stacked batches of this form, and those with a split's statistics."""
        for known, programs in self._known:
            if known == form:
                return programs
        every = self._losses, self._measured, self._measured_split
        made = tuple(self._fast(self._together(partial(f, form)), f.__name__, form) for f in every)
        self._known.append((form, made))
        return made

    def _fast(self, program: Callable[..., Any], *about: Any) -> Callable[..., Any]:
        """A program, compiled where that is asked for."""
        if not self._compiled:
            return program
        sizes = [tuple(p.shape) for p in self.model.parameters()]
        return torch.compile(own_code(program, type(self).__name__, sizes, *about))

    def _outputs(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Outputs, Tensor]:
        """What the module makes of a client's batch, and its buffers afterwards."""
        given, named = arguments(self.model, mapped(self._input, batch.x))
        held = {name: view.clone() for name, view in self.problem.split_buffers(buffers).items()}
        masks = dict.fromkeys(self._masks, self._mask(batch)) if self._masks else {}

        def outputs(x: Tensor) -> Outputs:
            with self.problem.casting(x.device), self._eager(), _nothing_later():
                given_as = {**self._everywhere(self.problem.split(x)), **held, **masks}
                return functional_call(self.model, given_as, given, named, tie_weights=False)

        if not self._recurrent:
            return outputs(x), _joined(held, buffers)
        # vmap has no rule for such a layer, but below a gradient, without cuDNN, it comes apart
        with torch.backends.cudnn.flags(enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # on a CPU, with its own library
            return vjp(outputs, x)[0], _joined(held, buffers)

    def _everywhere(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters under each name that they have, where several modules share them."""
        return {**params, **{name: params[first] for name, first in self._ties.items() if first in params}}

    def _mask(self, batch: Batch) -> Tensor:
        """1 for each row that exists."""
        if batch.mask is not None:
            return batch.mask
        return torch.ones(batch.rows, dtype=self.problem.dtype, device=leaves(batch.x)[0].device)

    def _input(self, x: Tensor) -> Tensor:
        return x.to(self.problem.dtype) if x.is_floating_point() else x

    def _mode(self, train: bool) -> None:
        """Training or evaluating; what the user had put into evaluation mode stays there."""
        self.model.train(train)
        for module in self._always:
            module.eval()

    def _losses(self, form: Form, x: Tensor, buffers: Tensor, holds: Tensor, *flat: Tensor) -> tuple[Tensor, Tensor]:
        batch, params = self._batch(holds, form, flat), self.problem.split(x)
        out, after = self._outputs(x, buffers, batch)
        losses = torch.stack(self.problem.losses(out, batch, [True] * len(holds), params))
        return torch.where(holds > 0, losses, torch.zeros_like(losses)), after

    # a loss depends on its own client's parameters alone: the gradient of the sum over clients holds that of each

    def _grads(self, form: Form, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, omega, buffers, *batch = tensors
        with _backwards(self._recompute):
            x = x.detach().requires_grad_()
            losses, after = self._programs(form)[0](x, buffers, *batch)
            (g,) = torch.autograd.grad((losses * omega).sum(), x)
        return g, losses.detach(), after.detach()

    def _jacobians(self, form: Form, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, buffers, *batch = tensors
        with _backwards(self._recompute):
            x = x.detach().requires_grad_()
            losses, after = self._programs(form)[0](x, buffers, *batch)
            totals = losses.sum(0)
            rows = [torch.autograd.grad(total, x, retain_graph=True)[0] for total in totals]
        return torch.stack(rows, 1), losses.detach(), after.detach()

    def _measured(self, form: Form, x: Tensor, buffers: Tensor, holds: Tensor, *flat: Tensor) -> Tensor:
        batch = self._batch(holds, form, flat)
        return self._values(x, holds, self._outputs(x, buffers, batch)[0], batch)

    def _measured_split(
        self, form: Form, x: Tensor, buffers: Tensor, holds: Tensor, *flat: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch = self._batch(holds, form, flat)
        out, _ = self._outputs(x, buffers, batch)
        return self._values(x, holds, out, batch), *split_statistics(self.problem, out, batch, holds, x)

    def _figures(self, program: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        found = program(*tensors)
        return found if isinstance(found, tuple) else (found,)

    def _call(self, stacked: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        with self.attention():
            try:
                return _called(stacked, *tensors)
            except AssertionError as error:  # the compiler's own, or the model's, which comes again without it
                if not self._compiled:
                    raise
                raise RuntimeError("it cannot be compiled") from error

    def _values(self, x: Tensor, holds: Tensor, out: Outputs, batch: Batch) -> Tensor:
        params = self.problem.split(x)
        values = [
            holds[k] * batch.total(self.problem.value(k, name, out, batch, params), self.problem.labels[k])
            for k, objective in enumerate(self.problem.objectives)
            for name in objective.values
        ]
        return torch.stack(values)

    def _batch(self, holds: Tensor, form: Form, flat: Sequence[Tensor]) -> Batch:
        """A client's batch; targets of what it does not hold may be anything, NaN or a class of its own: a label takes
        their place, since the loss of 0 may be infinite."""
        batch = Batch(*tree_unflatten(flat, form.spec))
        named = dict(batch.targets)
        for k, name in enumerate(self.problem.names):
            if name in self._blanks and name in named:
                named[name] = torch.where(holds[k] > 0, named[name], self._blanks[name])
        return batch._replace(targets=named)

    def grad(
        self, x: Tensor, buffers: Tensor, omega: Tensor, holds: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._mode(True)
        form, flat = self._flat(batch)
        g, losses, after = self._call(partial(self._grads, form), x, omega, buffers, holds, *flat)
        return g, losses, after

    def jacobian(
        self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._mode(train)
        form, flat = self._flat(batch)
        J, losses, after = self._call(partial(self._jacobians, form), x, buffers, holds, *flat)
        return J, losses, after

    @torch.no_grad()
    def measure(self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch) -> Tensor:
        self._mode(False)
        form, flat = self._flat(batch)
        (values,) = self._call(partial(self._figures, self._programs(form)[1]), x, buffers, holds, *flat)
        return values

    @torch.no_grad()
    def measure_split(self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        self._mode(False)
        form, flat = self._flat(batch)
        values, counts, moments = self._call(partial(self._figures, self._programs(form)[2]), x, buffers, holds, *flat)
        return values, counts, moments


class Grouped(Stacked):
    """The same with the library's grouped convolutions, which may be the faster ones."""

    def _convolutions(self) -> None:
        """They stay as they are."""


def _ties(model: nn.Module) -> dict[str, str]:
    """Other names of parameters, in other modules than their first; a module that has two names counts once.

    torch ties them by itself, but then puts a module's own back twice, and the second time what it was called with.
    """
    first = {id(p): name for name, p in model.named_parameters()}
    every = [(f"{at}.{leaf}".lstrip("."), p) for at, m in model.named_modules() for leaf, p in m._parameters.items()]
    return {name: first[id(p)] for name, p in every if p is not None and first[id(p)] != name}


def _joined(held: Mapping[str, Tensor], buffers: Tensor) -> Tensor:
    """Buffers by name as one vector again; there may be none."""
    return torch.cat([t.reshape(-1) for t in held.values()]) if held else buffers


@contextmanager
def _as_compiled() -> Iterator[None]:
    """Inside, modules take the way that they have for the compiler: as it, vmap cannot look at numbers.

    Hugging Face's, for instance, leave out a mask that hides nothing, but not where a program is being made.
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        with StackedAttention():
            yield
    finally:
        torch.compiler._is_compiling_flag = before


def _nothing_later() -> AbstractContextManager[None]:
    """Inside, a module cannot leave a part of its forward to the backward pass, which comes when it has its own
    parameters again: torch.utils.checkpoint would take gradients at those. What is compiled has it in its program."""
    if torch.compiler.is_dynamo_compiling():
        return nullcontext()
    refused: AbstractContextManager[None] = torch.autograd.graph.disable_saved_tensors_hooks(LATER)
    return refused


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, code may be compiled again for another engine or cohort size, 256 times, and comes without advice.

    What has been compiled is kept for later runs, where the user has not said where.
    """
    _keep_compiled()
    import torch._dynamo  # takes a second, where nothing else needs it

    with (
        warnings.catch_warnings(),
        _quiet(ADVISES),
        torch._dynamo.config.patch(recompile_limit=256),
        several_gradients(),
    ):
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        warnings.filterwarnings("ignore", r"`torch\.jit", DeprecationWarning)  # of what torch itself imports
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")  # which it looks at
        yield


ADVISES = "torch._dynamo.variables.tensor"  # how to write a model that looks at numbers


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Inside, a logger says nothing but errors."""
    of = logging.getLogger(logger)
    before = of.level
    of.setLevel(logging.ERROR)
    try:
        yield
    finally:
        of.setLevel(before)


def _keep_compiled() -> None:
    """Compiled code goes to the cache folder, where it can be written to; else wherever torch puts it.

    Triton's, too: torch names a folder for it when it compiles, but not when it finds what it has compiled before, and
    then kernels of our own would not be found.
    """
    inductor, triton = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
    if inductor not in os.environ:
        with suppress(OSError, RuntimeError):  # the last: no home folder
            folder = cache() / "compiled"
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            os.environ[inductor] = str(folder)
    place = Path(os.environ.get(triton, "triton/0"))
    if inductor in os.environ and place.parent.name == "triton" and place.name.isdigit():  # as torch names it
        os.environ[triton] = str(Path(os.environ[inductor], "triton", "0"))


@contextmanager
def _backwards(recompute: bool) -> Iterator[None]:
    """Inside, gradients are taken, of one graph several times."""
    with torch.enable_grad(), several_gradients(), keeping(recompute):
        yield


def keeping(recompute: bool) -> AbstractContextManager[None]:
    """Inside, what is compiled keeps a part of the bytes for its gradient that it would keep by itself, or all."""
    kept: AbstractContextManager[None] = config.patch(activation_memory_budget=RECOMPUTED if recompute else 1.0)
    return kept


@contextmanager
def several_gradients() -> Iterator[None]:
    """Inside, a compiled program keeps what it needs for several gradients.

    That setting is a thread's own, so that the gradients have to be taken in this one.
    """
    with torch.autograd.set_multithreading_enabled(False), config.patch(donated_buffer=False):
        yield


def _called(stacked: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
    outs: tuple[Tensor, ...] = _Operator.apply(stacked, *tensors)  # type: ignore[no-untyped-call]  # torch has no types here
    return outs


class _Operator(torch.autograd.Function):
    """Calls a function of stacked tensors from inside vmap, on the tensors themselves."""

    generate_vmap_rule = False

    @staticmethod
    def forward(stacked: Callable[..., Any], *tensors: Tensor) -> Any:
        """One client: a stack of one."""
        return tuple(out.squeeze(0) for out in stacked(*(t.unsqueeze(0) for t in tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: nobody differentiates through a gradient here."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, stacked: Callable[..., Any], *tensors: Tensor) -> Any:
        full = [
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape).contiguous()
            for t, d in zip(tensors, in_dims[1:], strict=True)
        ]
        outs = tuple(stacked(*full))
        return outs, tuple(0 for _ in outs)
