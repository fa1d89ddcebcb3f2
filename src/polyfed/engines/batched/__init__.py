"""Engine `batched`: the cohort's work as one program over stacked parameters, data resident on the device.

The same work functions as everywhere, under `vmap`. Batches are drawn on the device from the same hashes, so that every
client sees the rows that it sees on the local engine; clients with few rows, and last batches of a pass, are padded and
masked. On a GPU a chunk's whole round is captured in one CUDA graph and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from polyfed.client.device import Device, resolve
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Parts
from polyfed.engines.batched.chunks import Chunks
from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.sharded import others, replies_of
from polyfed.engines.batched.together import Group, Together, in_cohort_order, only_finite, weakly
from polyfed.engines.batched.ways import Recompute, Settings, Way


@engines("batched")
class Batched(Engine):
    """The whole cohort as one program (vmap), data on the device; `chunk` clients at a time, 0 for as many as fit.

    Args:
        device: 'cpu', 'cuda', or 'auto' for the GPU where there is one.
        chunk: clients in one program; 0 for as many as a trial finds room for on a GPU, up to 1024, and 64 on a CPU.
            Halved when memory runs out all the same.
        tf32: whether products may be rounded to TF32, faster on a GPU and less exact.
        compile: whether steps are compiled by torch, on a GPU with Triton; models with `nn.RNN` never are.
        graph: whether a chunk's round is recorded as one CUDA graph and replayed, on a GPU.
        way: of gradient steps, 'stacked' layers of all clients, the same with the library's 'grouped' convolutions, or
            each client's own layers in parallel 'branches'; 'auto' for the fastest one by a trial on a GPU, and for
            branches where a model cannot be stacked.
        recompute: whether compiled steps compute most activations again for a gradient: less memory, more time;
            'auto' for where one client alone does not fit.
        devices: GPUs that the cohort is spread over, in equal stretches; 0 for all that torch sees. Where there are
            fewer, or on a CPU, stretches share one.
    """

    def __init__(
        self,
        parts: Parts,
        layers: Layers,
        *,
        device: Device = "auto",
        chunk: Annotated[int, Field(ge=0)] = 0,
        tf32: bool = False,
        compile: bool = True,
        graph: bool = True,
        way: Way = "auto",
        recompute: Recompute = "auto",
        devices: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__(parts, layers)
        self.device = resolve(device)
        fast = self.device.type == "cuda"
        self.gpu = torch.cuda.current_device() if fast else None
        if slow := why_no_triton(self.device) if fast else "":
            warnings.warn(f"Rounds take longer here, without Triton: {slow}.", RuntimeWarning, stacklevel=2)
        pool = torch.cuda.graph_pool_handle() if graph and fast else None
        settings = Settings(self.device, tf32, compile and fast and not slow, graph and fast, pool, way, recompute)
        self.chunks = Chunks(chunk, self.device, self.choices)
        about = layers, settings, self.choices, weakly(self._forget)
        self.together = {name: Together(part, *about) for name, part in parts.items()}
        own: dict[str, Any] = {"device": device, "chunk": chunk, "tf32": tf32, "compile": compile}
        own |= {"graph": graph, "way": way, "recompute": recompute, "devices": 1}
        self.others = others(self, devices, partial(Batched, parts, layers, **own))

    @property
    def chunk(self) -> int:
        """The most clients that go at once."""
        return self.chunks.most

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        several = bool(self.others)
        found = replies_of([self, *self.others], clients, request) if several else self.started(clients, request)
        return map(only_finite, found)

    def started(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """The replies of this engine alone: a GPU may still be at work on them, and nobody has looked at them."""
        part = self.together[request.part]
        groups = part.groups(clients, request)
        stacks = (stack for group in groups for stack in self._run(part, group))
        yield from stacks if len(groups) == 1 else in_cohort_order(list(stacks), clients)

    def _run(self, part: Together, group: Group) -> Iterator[Stack]:
        """A group's work, as many clients at once as fit."""
        done = 0
        while done < len(group.clients):
            size = self.chunks(part, group)
            stacks: Iterator[Stack] | None = None
            with suppress(torch.cuda.OutOfMemoryError):
                stacks, done = part.run(group, done, size)
            if stacks is None:  # and the error, which would hold memory, is gone
                self._forget()
                self.chunks.smaller(part, group, min(size, len(group.clients)))
                continue
            yield from stacks

    def _forget(self) -> None:
        """Let go of all memory that can be made again."""
        for part in self.together.values():
            part.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def tree(self) -> dict[str, Any]:
        return {name: part.memory.tree() for name, part in self.together.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, part in self.together.items():
            part.memory.load(tree.get(name, {}))
