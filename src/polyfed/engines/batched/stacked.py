"""The gradient operators of many clients at once: stacked parameters, stacked batches, one program.

Work runs under `torch.func.vmap`. A gradient inside it is an operator of its own (`_Operator`), which takes the stacked
tensors out of vmap's hands, so that the step they belong to can be compiled and captured.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config
from torch.func import functional_call, vjp, vmap

from polyfed.core.problem import Batch, Outputs, Problem
from polyfed.engines.batched.kernels.convolution import replace_convolutions


class Stacked:
    """Gradients, Jacobians and measurements of a module at stacked parameters x (clients, d)."""

    def __init__(
        self, problem: Problem, device: torch.device, compiled: bool, targets: tuple[str, ...], partial: bool
    ) -> None:
        """targets: the targets' names, in the order they are passed in; partial: whether some client lacks one."""
        self.problem, self.names, self.partial = problem, targets, partial
        self.model = copy.deepcopy(problem.model).to(device)
        self._always = [m for m in self.model.modules() if self.model.training and not m.training]
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in self.model.modules())
        if not self._recurrent:
            replace_convolutions(self.model)
        over: dict[str, Any] = {"in_dims": 0, "randomness": "different"}
        fast: Callable[[Any], Any] = torch.compile if compiled and not self._recurrent else lambda f: f
        self.losses = fast(vmap(self._losses, **over))
        self.measures = fast(vmap(self._measured, **over))

    def _outputs(self, x: Tensor, bx: Tensor) -> Outputs:
        bx = bx.to(self.problem.dtype) if bx.is_floating_point() else bx

        def outputs(x: Tensor) -> Outputs:
            called: Outputs = functional_call(self.model, self.problem.split(x), (bx,))
            return called

        if self._recurrent:  # vmap has no rule for such a layer, but below a gradient, without cuDNN, it comes apart
            with torch.backends.cudnn.flags(enabled=False), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # on a CPU, with its own library
                called: Outputs = vjp(outputs, x)[0]
                return called
        return outputs(x)

    def _mode(self, train: bool) -> None:
        """Training or evaluating; what the user had put into evaluation mode stays there."""
        self.model.train(train)
        for module in self._always:
            module.eval()

    def _losses(self, x: Tensor, holds: Tensor, bx: Tensor, mask: Tensor, *targets: Tensor) -> Tensor:
        batch = self._batch(holds, bx, mask, targets)
        losses = torch.stack(self.problem.losses(self._outputs(x, bx), batch, [True] * len(holds)))
        return torch.where(holds > 0, losses, torch.zeros_like(losses))

    # a loss depends on its own client's parameters alone: the gradient of the sum over clients holds that of each

    def _grads(self, x: Tensor, omega: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        with _backwards():
            x = x.detach().requires_grad_()
            losses = self.losses(x, *batch)
            (g,) = torch.autograd.grad((losses * omega).sum(), x)
        return g, losses.detach()

    def _jacobians(self, x: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        with _backwards():
            x = x.detach().requires_grad_()
            losses = self.losses(x, *batch)
            totals = losses.sum(0)
            rows = [torch.autograd.grad(total, x, retain_graph=True)[0] for total in totals]
        return torch.stack(rows, 1), losses.detach()

    def _measured(self, x: Tensor, holds: Tensor, bx: Tensor, mask: Tensor, *targets: Tensor) -> Tensor:
        batch, out = self._batch(holds, bx, mask, targets), self._outputs(x, bx)
        values = [
            holds[k] * batch.total(self.problem.value(k, name, out, batch))
            for k, objective in enumerate(self.problem.objectives)
            for name in objective.values
        ]
        return torch.stack(values)

    def _batch(self, holds: Tensor, bx: Tensor, mask: Tensor, targets: Sequence[Tensor]) -> Batch:
        """A client's batch; targets of what it does not hold may be anything, NaN or a class of its own: they are 0."""
        named = dict(zip(self.names, targets, strict=True))
        for k, name in enumerate(self.problem.names) if self.partial else ():
            if name in named:
                named[name] = torch.where(holds[k] > 0, named[name], torch.zeros_like(named[name]))
        return Batch(bx, named, mask)

    def grad(self, x: Tensor, omega: Tensor, holds: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        self._mode(True)
        g, losses = _call(self._grads, x, omega, holds, *_flat(batch))
        return g, losses

    def jacobian(self, x: Tensor, holds: Tensor, batch: Batch, train: bool) -> tuple[Tensor, Tensor]:
        self._mode(train)
        J, losses = _call(self._jacobians, x, holds, *_flat(batch))
        return J, losses

    @torch.no_grad()
    def measure(self, x: Tensor, holds: Tensor, batch: Batch) -> Tensor:
        self._mode(False)
        (values,) = _call(lambda *a: (self.measures(*a),), x, holds, *_flat(batch))
        return values


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, code may be compiled again for another engine or cohort size, 256 times, and comes without advice."""
    import torch._dynamo  # takes a second, where nothing else needs it

    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=256):
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        yield


@contextmanager
def _backwards() -> Iterator[None]:
    """Inside, gradients are taken, of one graph several times: compiled code keeps what it needs for that.

    That setting is a thread's own, so that the gradients have to be taken in this one.
    """
    with (
        torch.enable_grad(),
        torch.autograd.set_multithreading_enabled(False),
        config.patch(donated_buffer=False),
    ):
        yield


def _flat(batch: Batch) -> tuple[Tensor, ...]:
    assert batch.mask is not None
    return batch.x, batch.mask, *batch.targets.values()


def _call(stacked: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
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
