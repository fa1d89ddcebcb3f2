"""The gradient operator of one client at a time: plain autograd over a flat vector of parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyfed.client.device import HOST
from polyfed.core.metric import split_statistics
from polyfed.core.problem import Batch, Outputs, Problem
from polyfed.core.structure import Nested, arguments, mapped


class Programs(NamedTuple):
    """What a gradient is taken of: the module, and what comes after it, apart, as a module may look at numbers."""

    model: Callable[..., Outputs]
    losses: Callable[..., list[Tensor]]
    weighted: Callable[..., tuple[Tensor, Tensor]]


class Autograd:
    """The gradient operator of a loop: a copy of the module whose parameters are views of one flat vector.

    Args:
        problem: the model and its objectives.
        device: where the copy is.
    """

    def __init__(self, problem: Problem, device: torch.device = HOST) -> None:
        self.problem = problem
        self.model = problem.replica(device)
        start = problem.initial()
        self._x, self._buffers = start["x"].to(device), start["buffers"].to(device)
        self._named = self._alias(problem.split(self._x))
        self._params = list(self._named.values())
        self._own = [(parameter, parameter.data, parameter.data_ptr()) for parameter in self._params]
        self._views = [(*self._home(name), view) for name, view in problem.split_buffers(self._buffers).items()]
        others = [name for name, _ in self.model.named_buffers() if name not in problem.buffers]
        every = ((*self._home(name), self.model.get_buffer(name).contiguous().clone()) for name in others)
        self._others = [(module, leaf, own, own.clone()) for module, leaf, own in every]
        self._always = [m for m in self.model.modules() if self.model.training and not m.training]
        weighted = partial(_weighted, problem, self._named)  # a method's object would hold itself
        self._plain = Programs(self.model, partial(problem.losses, params=self._named), weighted)
        self._set()

    def _home(self, name: str) -> tuple[nn.Module, str]:
        module, _, leaf = name.rpartition(".")
        return self.model.get_submodule(module), leaf

    def reset(self) -> None:
        """Forget the last client: buffers that do not travel are as they were at the start."""
        for _, _, own, value in self._others:
            own.copy_(value)  # in its place, which compiled programs know
        self._set()

    def forget(self) -> None:
        """Let go of memory that can be made again."""

    def _set(self) -> None:
        """A forward may have put others in the place of buffers that do not travel."""
        for module, leaf, own, _ in self._others:
            module._buffers[leaf] = own

    def _mode(self, train: bool) -> None:
        """Training or evaluating; what the user had put into evaluation mode stays there."""
        if self.model.training != train:  # walking the modules would cost as much as a layer
            self.model.train(train)
            for module in self._always:
                module.eval()

    def _alias(self, views: dict[str, Tensor]) -> dict[str, nn.Parameter]:
        params = dict(self.model.named_parameters())
        for name, view in views.items():
            params[name].data = view
        return {name: params[name] for name in views}

    def outputs(self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool) -> Outputs:
        self._place(x, buffers, train)
        return self._forward(self._plain, batch)

    def buffers_after(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        """The buffers as a forward in training leaves them, gradients being recorded and none taken: worker processes
        could not train after one, on a machine with a GPU."""
        with torch.enable_grad():
            self.outputs(x, buffers, batch, train=True)
        with torch.no_grad():
            return self._after(buffers)

    def _place(self, x: Tensor, buffers: Tensor, train: bool) -> None:
        """The module gets a client's parameters and buffers."""
        self._x.copy_(x)  # not views of x: a module may write over its parameters, as nn.Embedding with max_norm does
        for parameter, view in self._given_others():
            parameter.data = view
        self._buffers.copy_(buffers)
        for module, leaf, view in self._views:  # a forward may have put other tensors in their place
            module._buffers[leaf] = view
        self._mode(train)

    def _given_others(self) -> list[tuple[nn.Parameter, Tensor]]:
        """The parameters that a forward has given other data, as one that keeps weights short may, and their own."""
        return [(parameter, view) for parameter, view, place in self._own if parameter.data_ptr() != place]

    def _forward(self, programs: Programs, batch: Batch) -> Outputs:
        given, named = arguments(self.model, _inputs(batch.x, self.problem))
        with self.problem.casting(self._x.device):
            return programs.model(*given, **named)

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, holds: list[bool], *, losses: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not losses and x.device == HOST:  # with 40 objectives the others' would take as long as the gradient
            holds = [hold and bool(count) for hold, count in zip(holds, omega.tolist(), strict=True)]
        return self._grad(self._plain, x, buffers, batch, omega, holds)

    def _grad(
        self, programs: Programs, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, holds: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._place(x, buffers, True)
        outputs = self._forward(programs, batch)
        wanted = omega.tolist() if x.device == HOST else holds  # asking a GPU for numbers would stall it
        held = [k for k, hold in enumerate(holds) if hold and wanted[k]]
        if not held:
            every = torch.stack(self.problem.losses(outputs, batch, holds, self._named))
            return torch.zeros_like(x), every.detach(), self._after(buffers)
        every, total = programs.weighted(outputs, batch, holds, held, omega)
        pieces = torch.autograd.grad(total, self._params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in pieces]), every.clone(), self._after(buffers)

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, holds: list[bool], *, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._jacobian(self._plain, x, buffers, batch, holds, train)

    def _jacobian(
        self, programs: Programs, x: Tensor, buffers: Tensor, batch: Batch, holds: list[bool], train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._place(x, buffers, train)
        losses = programs.losses(self._forward(programs, batch), batch, holds)
        rows = x.new_zeros(len(holds), len(x))
        for k in (k for k, hold in enumerate(holds) if hold):
            pieces = torch.autograd.grad(losses[k], self._params, retain_graph=True, materialize_grads=True)
            torch.cat([g.reshape(-1) for g in pieces], out=rows[k])
        return rows, torch.stack(losses).detach(), self._after(buffers)

    def _after(self, buffers: Tensor) -> Tensor:
        for module, leaf, view in self._views:
            if module._buffers[leaf] is not view:
                view.copy_(module.get_buffer(leaf))
        return self._buffers.clone() if self._views else buffers

    @torch.no_grad()
    def measure(self, x: Tensor, buffers: Tensor, batch: Batch, holds: list[bool]) -> Tensor:
        return self._values(self.outputs(x, buffers, batch, train=False), batch, holds)

    @torch.no_grad()
    def measure_split(
        self, x: Tensor, buffers: Tensor, batch: Batch, holds: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self.outputs(x, buffers, batch, train=False)
        counts, moments = split_statistics(self.problem, outputs, batch, holds, x)
        return self._values(outputs, batch, holds), counts, moments

    def _values(self, outputs: Outputs, batch: Batch, holds: list[bool]) -> Tensor:
        zero = torch.zeros((), dtype=self.problem.dtype, device=self._x.device)
        return torch.stack(
            [
                batch.total(self.problem.value(k, name, outputs, batch, self._named), self.problem.labels[k])
                if held
                else zero
                for k, held in enumerate(holds)
                for name in self.problem.objectives[k].values
            ]
        )


def _weighted(
    problem: Problem, params: dict[str, nn.Parameter], outputs: Outputs, batch: Batch, holds: list[bool],
    held: list[int], omega: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All losses, and the sum of those that count."""
    losses = problem.losses(outputs, batch, holds, params)
    every = torch.stack(losses)
    some = every, omega
    if len(held) < len(losses):  # zeros need no backward pass
        some = torch.stack([losses[k] for k in held]), torch.stack([omega[k] for k in held])
    # a product, not `grad_outputs`, whose first use imports a computer algebra system
    return every.detach(), torch.dot(*some)


def _inputs(x: Nested, problem: Problem) -> Nested:
    """Floats in the problem's type; images in channels-last, which convolutions on a CPU want."""
    return mapped(partial(_input, problem=problem), x)


def _input(x: Tensor, problem: Problem) -> Tensor:
    if x.is_floating_point():
        x = x.to(problem.dtype)
    if x.dim() != 4 or not problem.channels_last:
        return x
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    n, c, h, w = x.shape  # with one channel both layouts are the same bytes: only the strides tell them apart
    return x.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))
