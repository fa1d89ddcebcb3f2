"""The gradient operators of many clients, one client's compiled step after another, side by side on a GPU.

A large model's step fills the chip by itself, and the libraries' kernels for one client are faster than stacked ones: a
stack has nothing to win there. Clients take turns on a few streams, so that a recorded round has branches that run at
once. The same way takes models that vmap refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from polyfed.engines.batched.kernels.embedding import replace_embeddings
from polyfed.engines.batched.kernels.recurrent import replace_recurrent
from polyfed.engines.batched.stacked import Form, Stacked

STREAMS = 16  # branches of a graph


class Branches(Stacked):
    """Gradients, Jacobians and measurements of a module at stacked parameters x (clients, d), client by client."""

    @cached_property
    def _streams(self) -> list[Any]:
        cuda: Any = torch.cuda  # which has no types here
        return [cuda.Stream(self.device) for _ in range(STREAMS)] if self.device.type == "cuda" else []

    def attention(self) -> AbstractContextManager[None]:
        """torch's own is right for one client."""
        return nullcontext()

    def eager(self) -> AbstractContextManager[None]:
        """Modules go as they are."""
        return nullcontext()

    def _replace(self) -> None:
        """The libraries' layers stay, as each has one client, but for sums that would come in any order, and for
        recurrent layers, which want their weights elsewhere."""
        replace_embeddings(self.model, operators=True)
        replace_recurrent(self.model)

    def _together(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Of a stack of one."""

        def one(*tensors: Tensor) -> Any:
            return tree_map(lambda t: t.unsqueeze(0), f(*(t.squeeze(0) for t in tensors)))

        return one

    def _grads(self, form: Form, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._each(partial(super()._grads, form), tensors)

    def _jacobians(self, form: Form, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._each(partial(super()._jacobians, form), tensors)

    def _figures(self, program: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._each(partial(super()._figures, program), tensors)

    def _each(self, one: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        done = []
        with self._side_by_side(len(tensors[0])) as at, _fastest_convolutions():
            for c in range(len(tensors[0])):
                with at(c):
                    done.append(one(*(t[c : c + 1] for t in tensors)))
        return tuple(torch.cat(some) for some in zip(*done, strict=True))

    @contextmanager
    def _side_by_side(self, clients: int) -> Iterator[Callable[[int], AbstractContextManager[Any]]]:
        """Which stream a client goes to; all begin after what came before, and what comes next waits for all."""
        if not self._streams:
            yield lambda c: nullcontext()
            return
        before, streams = torch.cuda.current_stream(), self._streams[:clients]
        for stream in streams:
            stream.wait_stream(before)
        try:
            yield lambda c: torch.cuda.stream(streams[c % len(streams)])
        finally:  # also where memory ran out: a recording cannot be ended while a branch of it is open
            for stream in streams:
                before.wait_stream(stream)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Inside, cuDNN tries its kernels, once for each shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
