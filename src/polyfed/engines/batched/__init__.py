"""Engine `batched`: the cohort's work as one program over stacked parameters, data resident on the device.

The same work functions as everywhere, under `vmap`. Batches are drawn on the device from the same hashes, so that every
client sees the rows that it sees on the local engine; clients with few rows, and last batches of a pass, are padded and
masked. On a GPU a chunk's whole round is captured in one CUDA graph and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.client.device import Device, precision, resident, resolve
from polyfed.client.runner import Bench
from polyfed.core import tensorkeys
from polyfed.core.client import Memory, Wrappers
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Index, Rows
from polyfed.core.fleet import Engine, Ids, Stack
from polyfed.core.keys import common_key, key
from polyfed.core.messages import Request
from polyfed.core.problem import Problem
from polyfed.core.work import works
from polyfed.engines import engines
from polyfed.engines.batched.capture import Captured
from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.manyclients import ManyClients, Question, Sizes
from polyfed.engines.batched.stacked import Stacked, compiling

Program = Callable[..., dict[str, Tensor]]
SPLITS = ("train", "valid", "test")


@engines("batched")
class Batched(Engine):
    """The whole cohort as one program (vmap), data on the device; `chunk` clients at a time, 0 for as many as fit."""

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        wrappers: Wrappers,
        *,
        device: Device = "auto",
        chunk: Annotated[int, Field(ge=0)] = 0,
        tf32: bool = False,
        compile: bool = True,
        graph: bool = True,
    ) -> None:
        self.names, self.examples = problem.names, federation.examples
        self.holds = federation.matrix(problem.names)
        self.memory = Memory()
        self.device = resolve(device)
        self._fast = self.device.type == "cuda"
        self._problem, self._federation, self._wrappers = problem, federation, wrappers
        self._there = resident(self.device, federation)
        self._rows = {s: _padded(rows, len(federation)) for s in SPLITS if (rows := getattr(federation, s)) is not None}
        self._most = {s: int(length.max(initial=0)) for s, (_, length) in self._rows.items()}
        if slow := why_no_triton(self.device) if self._fast else "":
            warnings.warn(f"Rounds take longer here, without Triton: {slow}.", RuntimeWarning, stacklevel=2)
        self._stacked = Stacked(problem, self.device, compile and self._fast and not slow)
        self._stacked.names = tuple(federation.targets)
        self._graph, self._tf32 = graph and self._fast, tf32
        self._chunk = chunk or (1024 if self._fast else 64)
        self._captured: dict[Any, Captured] = {}
        self._questions: dict[Any, list[Question]] = {}  # that a work has put to the clients' sizes
        self._pool = torch.cuda.graph_pool_handle() if self._graph else None
        self._one_by_one: dict[str, str] = {}  # work that vmap cannot take, and why
        self._bench: Bench | None = None
        if why := unfit(problem, wrappers):
            self._fall_back("", why)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        pasts = self.memory.recall(clients, request)
        shared = pasts
        if works[request.work].measures:  # of everybody: what only the cohort has been sent should not matter
            different = list({id(past): past for past in pasts}.values())
            common = {name: a for name, a in different[0].items() if all(past.get(name) is a for past in different)}
            shared = [common] * len(clients)
        runs = groupby(range(len(clients)), key=lambda i: id(shared[i]))  # clients with the same past go together
        for _, run in runs:
            places = list(run)
            some = replace(request, shared=shared[places[0]])
            yield from self._some([clients[i] for i in places], places, some, pasts)

    def _some(self, clients: list[int], places: list[int], request: Request, pasts: Sequence[Any]) -> Iterator[Stack]:
        if self._loops(request.work):
            yield from self._loop(clients, places, request, pasts)
            return
        done = 0
        while done < len(clients):
            now = slice(done, done + self._chunk)
            try:
                arrays = self._together(clients[now], places[now], request)
            except torch.cuda.OutOfMemoryError:
                self._smaller()
                continue
            except (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError) as error:
                self._fall_back(request.work, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                yield from self._loop(clients[done:], places[done:], request, pasts)
                return
            yield Stack(clients[now], arrays)
            done = now.stop

    def _loops(self, work: str) -> bool:
        return "" in self._one_by_one or work in self._one_by_one or works[work].state is not None

    def _fall_back(self, work: str, why: str) -> None:
        self._one_by_one[work] = why
        what = f"The work {work!r}" if work else "All work"
        warnings.warn(f"{what} runs client by client: {why}", RuntimeWarning, stacklevel=2)

    def _smaller(self) -> None:
        if self._chunk == 1:
            raise BadInput("One client alone does not fit into the device's memory; use a smaller batch_size.")
        self._captured.clear()
        torch.cuda.empty_cache()
        self._chunk = (self._chunk + 1) // 2

    # client by client

    def _loop(self, clients: list[int], places: list[int], request: Request, pasts: Sequence[Any]) -> Iterator[Stack]:
        if self._bench is None:
            there = replace(self._federation, x=self._there.x, targets=self._there.targets)
            self._bench = Bench(
                self._problem, self._federation, self._wrappers, device=self.device, there=there, tf32=self._tf32
            )
        for client, place in zip(clients, places, strict=True):
            row = replace(request.row(place), shared=pasts[place])
            state = self.memory.settle(client, row)
            reply, state = self._bench(client, row, state)
            self.memory.keep(client, row, state)
            yield Stack.of(client, reply)

    # together

    def _together(self, clients: list[int], places: list[int], request: Request) -> dict[str, Tensor]:
        mine, sizes = self._per_client(clients, request)
        each = {name: rows[places].to(self.device) for name, rows in request.each.items()}
        shared = {name: a.to(self.device) for name, a in request.shared.items()}
        numbers = self._numbers(request) if self._graph else {}
        request = replace(request, options={k: v for k, v in request.options.items() if k not in numbers})
        arguments = shared, each, mine, self._common(request), numbers
        program = self._program(request, sizes)
        with precision(self._tf32), compiling() if self._fast else nullcontext():
            run = self._replay if self._graph else _run
            return run(request, sizes, program, arguments)

    def _common(self, request: Request) -> Tensor:
        return torch.tensor(tensorkeys.signed(common_key(request.seed, request.round)), device=self.device)

    def _numbers(self, request: Request) -> dict[str, Tensor]:
        """Options that may change from round to round without a new program, as arguments of it."""
        names = [name for name in works[request.work].numbers if isinstance(request.options.get(name), float)]
        return {name: torch.tensor(request.options[name], dtype=self._problem.dtype).to(self.device) for name in names}

    def _per_client(self, clients: list[int], request: Request) -> tuple[dict[str, Any], Sizes]:
        """Keys, sizes and rows of some clients, as tensors and as host numbers."""
        ids = np.asarray(clients)
        keys = np.array([tensorkeys.signed(key(request.seed, request.round, c)) for c in clients])
        put = self._put
        places = {s: (put(start[ids]), put(length[ids])) for s, (start, length) in self._rows.items()}
        n = put(self.examples[ids]).to(self._problem.dtype)
        holds = put(self.holds[ids]).to(self._problem.dtype)
        lengths = {s: length[ids] for s, (_, length) in self._rows.items()}
        return {"id": put(ids), "key": put(keys), "n": n, "holds": holds, "place": places}, Sizes(lengths, self._most)

    def _put(self, values: NDArray[Any]) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self.device)

    def _program(self, request: Request, sizes: Sizes) -> Callable[..., dict[str, Tensor]]:
        """The work of a chunk as a function of tensors alone; the round is hidden, so that nothing is baked in."""
        timeless = replace(request, seed=-1, round=-1, folded=None)

        def one(shared: Any, each: Any, mine: dict[str, Any], common: Tensor, numbers: Any) -> dict[str, Tensor]:
            client = ManyClients(self._problem, self._there, self._stacked, common_key=common, sizes=sizes, **mine)
            asked = replace(timeless, shared=shared, each=each, options={**request.options, **numbers})
            arrays, _ = works[request.work](client, asked, None)  # type: ignore[arg-type]
            like = client.n
            return {name: a if isinstance(a, Tensor) else torch.full_like(like, a) for name, a in arrays.items()}

        return torch.func.vmap(one, in_dims=(None, 0, 0, None, None), randomness="different")

    def _replay(self, request: Request, sizes: Sizes, program: Any, arguments: Any) -> dict[str, Tensor]:
        what = request.work, tuple((name, repr(v)) for name, v in sorted(request.options.items()))
        like = tuple(tuple((name, a.shape, a.dtype) for name, a in arrays.items()) for arrays in arguments[:2])

        def shape() -> Any:
            return what, like, len(arguments[2]["id"]), *map(sizes.answer, self._questions.get(what, ()))

        graph = self._captured.pop(shape(), None)
        if graph is None:
            if len(self._captured) >= 64:  # options that change every round would fill the device with graphs
                del self._captured[next(iter(self._captured))]
            graph = Captured(program, arguments, self._pool)
            self._questions[what] = sorted(sizes.asked)
        self._captured[shape()] = graph  # the latest last
        return graph(arguments)

    def tree(self) -> dict[str, Any]:
        return self.memory.tree()

    def load(self, tree: Mapping[str, Any]) -> None:
        self.memory.load(tree)


def unfit(problem: Problem, wrappers: Wrappers) -> str:
    """Why clients cannot be run together, or nothing."""
    if problem.buffers:
        return "its model has float buffers (BatchNorm), which padding would disturb; use GroupNorm."
    if wrappers.attacks or wrappers.guards:
        return "functions around the clients' work decide client by client."
    return ""


def _padded(rows: Rows, clients: int) -> tuple[Index, Index]:
    """Starts and lengths of all clients' rows; those that the split does not name have none."""
    more = (0, clients - len(rows))
    return np.pad(rows.start, more), np.pad(rows.length, more)


def _run(request: Request, sizes: Sizes, program: Program, arguments: Any) -> dict[str, Tensor]:
    return program(*arguments)


@engines("auto")
def auto(
    problem: Problem,
    federation: Federation,
    wrappers: Wrappers,
    *,
    device: Device = "auto",
    workers: Annotated[int, Field(ge=1)] = 1,
) -> Engine:
    """`batched` where there is a GPU and the model allows it, else `local`."""
    if resolve(device).type == "cuda" and not unfit(problem, wrappers):
        return Batched(problem, federation, wrappers, device=device)
    return engines["local"](problem, federation, wrappers, workers=workers, device=device)
