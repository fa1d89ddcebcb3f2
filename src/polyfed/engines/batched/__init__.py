"""Engine `batched`: the cohort's work as one program over stacked parameters, data resident on the device.

The same work functions as everywhere, under `vmap`. Batches are drawn on the device from the same hashes, so that every
client sees the rows that it sees on the local engine; clients with few rows, and last batches of a pass, are padded and
masked. On a GPU a chunk's whole round is captured in one CUDA graph and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from polyfed.client.device import Device, resolve
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Parts
from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.together import Group, Settings, Together, in_cohort_order, unfit


@engines("batched")
class Batched(Engine):
    """The whole cohort as one program (vmap), data on the device; `chunk` clients at a time, 0 for as many as fit.

    Args:
        device: 'cpu', 'cuda', or 'auto' for the GPU where there is one.
        chunk: clients in one program; 0 begins with 1024 on a GPU, 64 on a CPU. Halved when a GPU's memory runs out.
        tf32: whether products may be rounded to TF32, faster on a GPU and less exact.
        compile: whether steps are compiled by torch, on a GPU with Triton; models with `nn.RNN` never are.
        graph: whether a chunk's round is recorded as one CUDA graph and replayed, on a GPU.
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
    ) -> None:
        super().__init__(parts, layers)
        self.device = resolve(device)
        fast = self.device.type == "cuda"
        if slow := why_no_triton(self.device) if fast else "":
            warnings.warn(f"Rounds take longer here, without Triton: {slow}.", RuntimeWarning, stacklevel=2)
        pool = torch.cuda.graph_pool_handle() if graph and fast else None
        settings = Settings(self.device, tf32, compile and fast and not slow, graph and fast, pool)
        self.chunk = chunk or (1024 if fast else 64)
        self.together = {name: Together(part, layers, settings) for name, part in parts.items()}

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        part = self.together[request.part]
        groups = part.groups(clients, request)
        stacks = (stack for group in groups for stack in self._run(part, group))
        yield from stacks if len(groups) == 1 else in_cohort_order(list(stacks), clients)

    def _run(self, part: Together, group: Group) -> Iterator[Stack]:
        """A group's work, as many clients at once as fit."""
        done = 0
        while done < len(group.clients):
            try:
                stacks, done = part.run(group, done, self.chunk)
            except torch.cuda.OutOfMemoryError:
                self._smaller()
                continue
            yield from stacks

    def _smaller(self) -> None:
        if self.chunk == 1:
            raise BadInput("One client alone does not fit into the device's memory; use a smaller batch_size.")
        for part in self.together.values():
            part.forget()
        torch.cuda.empty_cache()
        self.chunk = (self.chunk + 1) // 2

    def tree(self) -> dict[str, Any]:
        return {name: part.memory.tree() for name, part in self.together.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, part in self.together.items():
            part.memory.load(tree.get(name, {}))


@engines("auto")
def auto(
    parts: Parts,
    layers: Layers,
    *,
    device: Device = "auto",
    workers: Annotated[int, Field(ge=1)] = 1,
    timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0,
) -> Engine:
    """`batched` where there is a GPU and the models allow it, else `local`.

    Args:
        device: 'cpu', 'cuda', or 'auto' for the GPU where there is one; 'cpu' always means `local`.
        workers: of `local`, processes on the CPU; 1 for this one alone.
        timeout: of `local`, seconds that a worker may take for one client; 0 for any time.
    """
    if resolve(device).type == "cuda" and not any(unfit(part.problem, layers) for part in parts.values()):
        return Batched(parts, layers, device=device)
    return engines["local"](parts, layers, workers=workers, device=device, timeout=timeout)
