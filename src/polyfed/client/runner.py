"""One client after another in this process, with plain autograd, and what happens around its work on every engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from polyfed.client.ahead import read_ahead
from polyfed.client.compiled import next_step, own_code, replayed
from polyfed.client.device import HOST, arrays_on, precision
from polyfed.client.kept import Kept
from polyfed.client.memory import Job, Memory
from polyfed.client.tracebacks import keep_traceback
from polyfed.core.client import Client, ClientState, all_finite
from polyfed.core.errors import BadInput, reason
from polyfed.core.federation import Federation, Index
from polyfed.core.interrupt import may_go_on
from polyfed.core.keys import client_key, common_key, key, other, permutation
from polyfed.core.layer import Layer, Layers, Outgoing
from polyfed.core.messages import DTYPES, Reply, Request
from polyfed.core.metric import split_statistics
from polyfed.core.problem import Batch, Outputs, Problem
from polyfed.core.schema import weigh
from polyfed.core.structure import Nested, arguments, mapped
from polyfed.core.work import works

Carry = TypeVar("Carry")


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
        compiled: whether gradients are those of compiled programs, on a GPU replayed; where the compiler fails they are
            not.
    """

    def __init__(self, problem: Problem, device: torch.device = HOST, compiled: bool = False) -> None:
        self.problem = problem
        self.model = problem.replica(device)
        start = problem.initial()
        self._x, self._buffers = start["x"].to(device), start["buffers"].to(device)
        self._named = self._alias(problem.split(self._x))
        self._params = list(self._named.values())
        self._views = [(*self._home(name), view) for name, view in problem.split_buffers(self._buffers).items()]
        others = [name for name, _ in self.model.named_buffers() if name not in problem.buffers]
        every = ((*self._home(name), self.model.get_buffer(name).contiguous().clone()) for name in others)
        self._others = [(module, leaf, own, own.clone()) for module, leaf, own in every]
        self._always = [m for m in self.model.modules() if self.model.training and not m.training]
        self._plain = Programs(self.model, partial(problem.losses, params=self._named), self._weighted)
        self._fast: Programs | None = None  # compiled after a first gradient that is not
        self._compiled, self._worked = compiled, False
        self._set()

    def _home(self, name: str) -> tuple[nn.Module, str]:
        module, _, leaf = name.rpartition(".")
        return self.model.get_submodule(module), leaf

    def reset(self) -> None:
        """Forget the last client: buffers that do not travel are as they were at the start."""
        for _, _, own, value in self._others:
            own.copy_(value)  # in its place, which compiled programs know
        self._set()

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

    def _place(self, x: Tensor, buffers: Tensor, train: bool) -> None:
        """The module gets a client's parameters and buffers."""
        self._x.copy_(x)
        self._buffers.copy_(buffers)
        for module, leaf, view in self._views:  # a forward may have put other tensors in their place
            module._buffers[leaf] = view
        self._mode(train)

    def _forward(self, programs: Programs, batch: Batch) -> Outputs:
        given, named = arguments(self.model, inputs(batch.x, self.problem))
        with self.problem.casting(self._x.device):
            return programs.model(*given, **named)

    def _weighted(
        self, outputs: Outputs, batch: Batch, holds: list[bool], held: list[int], omega: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All losses, and the sum of those that count."""
        losses = self.problem.losses(outputs, batch, holds, self._named)
        every = torch.stack(losses)
        some = every, omega
        if len(held) < len(losses):  # zeros need no backward pass
            some = torch.stack([losses[k] for k in held]), torch.stack([omega[k] for k in held])
        # a product, not `grad_outputs`, whose first use imports a computer algebra system
        return every.detach(), torch.dot(*some)

    def _tried(self, name: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What a function of programs gives: of compiled ones, or, where the compiler fails, of those that are not."""
        f: Callable[..., tuple[Tensor, Tensor, Tensor]] = getattr(self, name)
        if not self._compiled:
            return f(self._plain, *arguments)
        if self._fast is None:
            kept = _tensors(self.model)
            found = f(self._plain, *arguments)
            self._fast = self._made(replays=_tensors(self.model) == kept)
            return found
        before = None if self._worked else self._state()
        try:
            next_step()
            found = f(self._fast, *arguments)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            return self._without(error, before, name, *arguments)
        self._worked = True
        return found

    def _made(self, replays: bool) -> Programs:
        """Compiled programs; replayed ones only of a module that keeps no tensor of a step, as they write over it."""
        number, how = next(NUMBERS), replayed if replays else _compiled
        return Programs(*(how(own_code(f, number, i), self._x.device) for i, f in enumerate(self._plain)))

    def _state(self) -> tuple[list[Tensor], list[Tensor]]:
        """What a step changes beside its arguments: generators, and buffers that do not travel."""
        return _drawn(self._x.device), [module.get_buffer(leaf).clone() for module, leaf, _, _ in self._others]

    def _without(self, error: Exception, before: Any, name: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The same by programs that are not compiled, of a module that the failure has not touched.

        An error of the model's or of a client comes again, and says nothing of the compiler.
        """
        twin = Autograd(self.problem, self._x.device)
        draws, buffers = before or self._state()
        _draw_again(draws, self._x.device)
        for (_, _, own, _), value in zip(twin._others, buffers, strict=True):
            own.copy_(value)
        twin._set()
        found: tuple[Tensor, Tensor, Tensor] = getattr(twin, name)(twin._plain, *arguments)
        warnings.warn(f"Work of one client after another is not compiled any more: {reason(error)}", RuntimeWarning,
                      stacklevel=2)  # fmt: skip
        vars(self).update(vars(twin))
        return found

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, holds: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._tried("_grad", x, buffers, batch, omega, holds)

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
        return self._tried("_jacobian", x, buffers, batch, holds, train)

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


NUMBERS = count()  # of compiled programs


def _compiled(f: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    return torch.compile(f)


def _tensors(model: nn.Module) -> dict[tuple[str, str], int]:
    """Which tensors a module keeps, by their places, in buffers or as attributes."""
    kept = ((at, {**module._buffers, **vars(module)}) for at, module in model.named_modules())
    return {(at, name): id(t) for at, table in kept for name, t in table.items() if isinstance(t, Tensor)}


def _drawn(device: torch.device) -> list[Tensor]:
    """How far the generators of the host and the device are."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _draw_again(draws: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(draws[0])
    for state in draws[1:]:
        torch.cuda.set_rng_state(state, device)


def inputs(x: Nested, problem: Problem) -> Nested:
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


@dataclass
class LoopClient:
    """A `Client` whose loop is a Python loop."""

    id: int
    key: int
    common_key: int
    exchange: int
    n: int
    holds: Tensor
    fractions: Tensor
    allowed: Tensor
    held: list[bool]  # what it holds, for the host
    measured: list[bool]  # what it may have labels for, for the host
    problem: Problem
    federation: Federation
    on_device: Federation  # the same with its arrays on the device
    place: int
    autograd: Autograd
    reader: Kept | None = None  # of x, where it is streamed
    scratch: dict[str, Any] = field(default_factory=dict)

    def data(self, split: str = "train") -> Batch:
        return self.federation.take(torch.from_numpy(self.federation.rows(split, self.place)))

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.grad(x, buffers, batch, omega, self.held)

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.jacobian(x, buffers, batch, self.held, train=train)

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        return self.autograd.measure(x, buffers, batch, self.measured)

    def measure_split(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.measure_split(x, buffers, batch, self.measured)

    def loop(
        self,
        step: Callable[[Carry, Batch, int], Carry],
        carry: Carry,
        *,
        batch_size: int,
        steps: int = 0,
        epochs: int = 0,
        split: str = "train",
        shuffle: bool = True,
        draw: int = 0,
    ) -> Carry:
        rows = self.federation.rows(split, self.place)
        if not len(rows):
            raise BadInput(f"client {self.id} has no {split} rows")
        per_epoch = -(-len(rows) // (batch_size or len(rows)))
        augment = self.federation.augment if shuffle and split == "train" else None  # never when measuring
        batches = self._batches(rows, batch_size, steps or epochs * per_epoch, shuffle, draw)
        with closing(self._taken(batches)) as taken:
            for i, batch in enumerate(taken):
                if augment is not None:
                    batch = batch._replace(x=augment(batch.x, key(self.key, "augment", i, *other(draw))))
                carry = step(carry, batch, i)
                may_go_on()
        return carry

    def _taken(self, batches: Iterator[Index]) -> Generator[Batch]:
        """The examples of each batch; of a source read ahead, while `prepare`, the user's own, stays in this thread."""
        if self.reader is None:
            for index in batches:
                yield self.on_device.take(torch.from_numpy(index))
            return
        with closing(read_ahead(self.reader, batches)) as found:
            for index, x in found:
                yield self.on_device.take(torch.from_numpy(index), x=x)

    def _batches(self, rows: Index, batch_size: int, steps: int, shuffle: bool, draw: int) -> Iterator[Index]:
        """Pass after pass over the rows, each in a fresh order, cut into batches; the last of a pass may be smaller."""
        size = batch_size or len(rows)
        cuts = range(0, len(rows), size)
        shuffle = shuffle and len(cuts) > 1  # of one batch the order does not matter
        for epoch in range(-(-steps // len(cuts))):
            of = key(self.key, "batch", epoch, *other(draw))
            order = rows[permutation(of, len(rows))] if shuffle else rows
            for start in cuts[: steps - epoch * len(cuts)]:
                yield order[start : start + size]


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
    for name, value in arrays.items():
        if not all_finite(torch.as_tensor(value)):
            raise FloatingPointError(f"{name!r} holds NaN or infinity")


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
    ) -> None:
        self.problem, self.federation, self.layers, self.offset = problem, federation, layers, offset
        self.device, self._tf32, self._home = device, tf32, home
        self._on_device = on_device or arrays_on(device, federation)
        self._reader = Kept(self._on_device) if federation.streamed else None
        self.autograd = Autograd(problem, device, compiled)
        self._sent: tuple[Any, Any, dict[str, Tensor]] = None, None, {}  # of which exchange, as sent, on the device
        self._holds, self._fractions = federation.matrix(problem.names), federation.fractions(problem.names)
        self._allowed = federation.allowed(problem.names)

    def __call__(self, job: Job) -> tuple[Reply, ClientState | None]:
        try:
            arrays, state = self._perform(job)
            return Reply({name: self._fit(name, v).to(self._home) for name, v in arrays.items()}), self._kept(state)
        except Exception as error:  # a client that fails is an answer, not the end of the run
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
    return ""
