"""One client after another in this process, and what happens around its work on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polyfed.client.autograd import Autograd
from polyfed.client.compiled import CompiledAutograd
from polyfed.client.device import HOST, arrays_on, no_memory, precision
from polyfed.client.kept import Kept
from polyfed.client.loop import LoopClient
from polyfed.client.memory import Job, Memory
from polyfed.client.tracebacks import keep_traceback
from polyfed.core.client import Client, ClientState, all_finite
from polyfed.core.federation import Federation
from polyfed.core.keys import client_key, common_key, key
from polyfed.core.layer import Layer, Layers, Outgoing
from polyfed.core.messages import DTYPES, Reply, Request
from polyfed.core.problem import Problem
from polyfed.core.schema import weigh
from polyfed.core.work import works


def perform(
    client: Client,
    request: Request,
    state: ClientState | None,
    layers: Layers,
    check_finite: Callable[[Mapping[str, Any]], None],
) -> tuple[Mapping[str, Any], ClientState | None]:
    """Do what the request asks for: the work, with the layers' client halves around it.

    Attacks come first, then the finite check (the engine's: one that runs many clients at once must not branch),
    guards, the weights where a sum was asked for, and what changes how the reply travels.
    """
    work = works[request.work]
    active = layers.on(work)
    for layer in reversed(active):  # the first listed is nearest the work
        client = layer.client(client)
    arrays, after = work(client, request, state)
    out = Outgoing(client, request, work.fields(request.options), arrays, (state if after is None else after) or {})
    _pass_through(active, ATTACKS, out)
    check_finite(out.arrays)
    _pass_through(active, GUARDS, out)
    if set(out.arrays) != set(out.fields):
        raise TypeError(f"the reply should hold {sorted(out.fields)}; found {sorted(out.arrays)}")
    if request.weighed:
        out.arrays = weigh(out.arrays, out.fields)
        out.arrays = {name: a for name, a in out.arrays.items() if out.fields[name].in_sums}
    _pass_through(active, TRAVEL, out)
    return out.arrays, out.state if layers.remember(work) else after


ATTACKS, GUARDS, TRAVEL = {"attack"}, {"guard", "aggregate"}, {"quantise", "mask", "transport"}


def _pass_through(layers: Sequence[Layer], stages: set[str], out: Outgoing) -> None:
    for place, layer in enumerate(layers):
        if layer.stage in stages:
            out.place = place
            out.arrays, out.fields = layer.reply(out), layer.transported(out.fields)


def unchecked(arrays: Mapping[str, Any]) -> None:
    """No finite check: the server's own measurements may be infinite, and that is worth knowing."""


def refuse_not_finite(arrays: Mapping[str, Any]) -> None:
    """Refuse to send what is not a number."""
    named = {name: torch.as_tensor(value) for name, value in arrays.items()}
    if not all_finite(*named.values()):
        wrong = next(name for name, value in named.items() if not all_finite(value))
        raise FloatingPointError(f"{wrong!r} holds NaN or infinity")


class ClientRunner:
    """Does one client's work: finds its data, keys its randomness, and turns whatever goes wrong into a reply.

    What comes in is on the host; the work itself is done on the device.

    Args:
        problem: the model and its objectives.
        federation: the clients' data.
        layers: the layers around the work.
        offset: the number of the federation's first client.
        device: where the work is done.
        on_device: the federation with its arrays on the device, where somebody has it already.
        tf32: whether products may be rounded to TF32.
        compiled: whether gradients are compiled.
        home: where replies go.
        make_room: lets go of memory that can be made again: a request's work whose memory has run out is done once more
            after it.
        around: what each attempt is inside of.
    """

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        layers: Layers,
        *,
        offset: int = 0,
        device: torch.device = HOST,
        on_device: Federation | None = None,
        tf32: bool = False,
        compiled: bool = False,
        home: torch.device = HOST,
        make_room: Callable[[Request], None] | None = None,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.problem, self.federation, self.layers, self.offset = problem, federation, layers, offset
        self.device, self._tf32, self._home, self._make_room, self._around = device, tf32, home, make_room, around
        self._on_device = on_device or arrays_on(device, federation)
        self._reader = Kept(self._on_device) if federation.streamed else None
        self.autograd = (CompiledAutograd if compiled else Autograd)(problem, device)
        self._sent: tuple[Any, Any, dict[str, Tensor]] = None, None, {}  # of which exchange, as sent, on the device
        self._holds, self._fractions = federation.matrix(problem.names), federation.fractions(problem.names)
        self._allowed = federation.allowed(problem.names)

    def __call__(self, job: Job) -> tuple[Reply, ClientState | None]:
        try:
            return self._answered(job)
        except Exception as error:  # a client that fails is an answer, not the end of the run
            if self._make_room is None or not no_memory(error):
                return self._failed(job, error)
        self._make_room(job.request)  # now that the error, which would hold memory, is gone
        try:
            return self._answered(job)
        except Exception as error:
            return self._failed(job, error)

    def forget(self) -> None:
        """Let go of memory that can be made again."""
        self._sent = None, None, {}
        self.autograd.forget()

    def _answered(self, job: Job) -> tuple[Reply, ClientState | None]:
        with self._around():
            arrays, state = self._perform(job)
        return Reply({name: self._fit(name, v).to(self._home) for name, v in arrays.items()}), self._kept(state)

    def _failed(self, job: Job, error: Exception) -> tuple[Reply, None]:
        about = f"Client {job.client}, round {job.request.round}, {job.request.work!r}"
        keep_traceback(self.layers.failures, error, about)
        return Reply(error=f"{type(error).__name__}: {error}{_remedy(error)}"), None

    def _perform(self, job: Job) -> tuple[Mapping[str, Any], ClientState | None]:
        client, request, state = job
        check = refuse_not_finite if self.layers.finite else unchecked
        if self.device == HOST or works[request.work].needs == "rows":  # whose loops are the host's
            return perform(self._client(client, request), request, state, self.layers, check)
        moved = replace(request, shared=self._once(request), each=self._moved(request.each))
        with precision(self._tf32):
            here = None if state is None else self._moved(state)
            return perform(self._client(client, moved), moved, here, self.layers, check)

    def _fit(self, name: str, value: Any) -> Tensor:
        """What can travel: a tensor of a known type, without the graph it came from."""
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=self.problem.dtype)
        if tensor.dtype not in DTYPES.values():
            raise TypeError(f"{name!r} is {tensor.dtype}; replies and states hold {', '.join(DTYPES)}")
        return tensor

    def _once(self, request: Request) -> dict[str, Tensor]:
        """What all clients of an exchange are sent goes to the device once."""
        exchange = request.seed, request.round, request.exchange
        if self._sent[0] != exchange or self._sent[1] is not request.shared:
            self._sent = exchange, request.shared, self._moved(request.shared)
        return self._sent[2]

    def _moved(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: a.to(self.device) for name, a in arrays.items()}

    def _kept(self, state: ClientState | None) -> ClientState | None:
        return None if state is None else {name: self._fit(name, v).to(HOST) for name, v in state.items()}

    def _client(self, client: int, request: Request) -> LoopClient:
        place = client - self.offset
        self.autograd.reset()
        of = client_key(request.seed, request.round, client)
        draw: Any = request.options.get("draw", 0)
        dropout = (key(of, "dropout", draw) if draw else of) >> 1
        torch.default_generator.manual_seed(dropout)
        if self.device != HOST:
            torch.cuda.manual_seed(dropout)
        held, fractions, allowed = (
            torch.tensor(table[place], dtype=self.problem.dtype, device=self.device)
            for table in (self._holds, self._fractions, self._allowed)
        )
        n = int(self.federation.examples[place])
        common = common_key(request.seed, request.round)
        data = self.federation, self._on_device
        trained, measured = ([bool(h) for h in table[place]] for table in (self._holds, self._allowed))
        who = client, of, common, request.exchange
        return LoopClient(
            *who, n, held, fractions, allowed, trained, measured, self.problem, *data, place, self.autograd,
            self._reader,
        )  # fmt: skip


def run_jobs(
    runner: Callable[[Job], tuple[Reply, ClientState | None]], memory: Memory, clients: Sequence[int], request: Request
) -> Iterator[tuple[Job, Reply]]:
    """Some clients' work one after another: what they have been sent, what they remember, the work, what they keep."""
    for job in memory.jobs(clients, request):
        reply, state = runner(job)
        memory.keep(job, state)
        yield job, reply


def run_row(
    runner: Callable[[Job], tuple[Reply, ClientState | None]], memory: Memory, client: int, row: Request
) -> tuple[Job, Reply]:
    """One client's work, from its own row of a request."""
    (shared,) = memory.recall([client], row)
    job = memory.job(client, replace(row, shared=shared))
    reply, state = runner(job)
    memory.keep(job, state)
    return job, reply


def _remedy(error: Exception) -> str:
    """What to do about an error whose own words do not say."""
    if "more than 1 value per channel" in str(error):
        return "; BatchNorm cannot train on a batch of one row: choose another batch_size, or use GroupNorm"
    if no_memory(error):
        return "; one client alone does not fit into the device's memory: use a smaller batch_size"
    return ""
