"""One model's clients together: who can go with whom, the program of a chunk, and what goes client by client."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.client.device import HOST, arrays_on, no_memory, precision, resident
from polyfed.client.memory import Memory
from polyfed.client.runner import ClientRunner, perform, unchecked
from polyfed.core import tensorkeys
from polyfed.core.choices import Choices
from polyfed.core.errors import cut as clipped
from polyfed.core.errors import reason
from polyfed.core.federation import SPLITS, Index, Rows
from polyfed.core.fleet import Ids, Population, Stack
from polyfed.core.keys import client_key, common_key, key, other
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.problem import Problem
from polyfed.core.work import Work, works
from polyfed.engines.batched.capture import Captured, Program, Waits
from polyfed.engines.batched.kernels.batch_norm import takes
from polyfed.engines.batched.kernels.embedding import counts_words
from polyfed.engines.batched.manyclients import Loop, ManyClients, Question, Sizes
from polyfed.engines.batched.stacked import Stacked, compiling, keeping
from polyfed.engines.batched.streams import MOST, Streams
from polyfed.engines.batched.ways import Settings, Ways
from polyfed.engines.trial import Facts, cut, depends_on, local_steps, machine

MOST_GRAPHS = 64  # options that change every round would fill the device with graphs


STEPS = 2  # of a trial: the second begins with what the first has left


@dataclass(frozen=True)
class Group:
    """Clients of a request that have been sent the same arrays, and so can go together; and their places."""

    clients: list[int]
    places: list[int]
    request: Request  # with all arrays that all of them have been sent
    sent: list[Mapping[str, Tensor]]  # all that each of them has
    singly: bool


@dataclass(frozen=True)
class Task:
    """What a chunk's program is made of, and what it is given."""

    clients: list[int]
    asked: Request
    request: Request  # the same without the options that are arguments of the program
    sizes: Sizes
    loops: Sequence[Loop]
    arguments: Any
    failed: Mapping[int, str]  # clients whose rows could not be read


class Together:
    """The work of one model's clients.

    Args:
        part: the model and its data.
        layers: around the work.
        settings: where and how programs run.
        choices: of the run.
        make_room: lets go of all memory of the engine that can be made again.
    """

    def __init__(
        self, part: Part, layers: Layers, settings: Settings, choices: Choices, make_room: Callable[[], None]
    ) -> None:
        self.problem, self.federation, self.layers, self.settings = part.problem, part.federation, layers, settings
        self._part, self._make_room = part, make_room
        self.memory = Memory()
        population = Population.of(part.problem, part.federation)
        self._examples, self._holds = population.examples, population.holds
        self._objectives = {"holds": self._holds, "fractions": population.fractions, "allowed": population.allowed}
        self._arrays = arrays_on(settings.device, part.federation)
        self._on_device = resident(settings.device, self._arrays)
        splits = {s: rows for s in SPLITS if (rows := getattr(part.federation, s)) is not None}
        self._rows = {s: _padded(rows, len(part.federation)) for s, rows in splits.items()}
        self._most = {s: int(length.max(initial=0)) for s, (_, length) in self._rows.items()}
        self._choices = choices
        self.ways = Ways(part.problem, settings, self._blanks(), choices)
        self._captured: dict[Any, Captured] = {}
        self._waits: set[str] = set()  # work that cannot be recorded
        self._questions: dict[Any, list[Question]] = {}  # that a work has put to the clients' sizes
        self._one_by_one: dict[str, str] = {}  # work that vmap cannot take, and why
        self._looks = ""  # why vmap refuses the model, where work of it that trains cannot be recorded either
        self._tried: set[str] = set()  # work of which it is known whether it can be stacked
        self._runners: dict[bool, ClientRunner] = {}  # one that is compiled, and one that is not
        self._streams = Streams(part.problem, part.federation) if part.federation.streamed else None
        if why := unfit(part.problem, layers):
            self._fall_back("", why)

    def _blanks(self) -> dict[str, Tensor]:
        """Of objectives that some client lacks, a label that another one has; 0 where nobody has one."""
        found = {}
        for k, name in enumerate(self.problem.names):
            held, target = np.asarray(self._holds)[:, k], self.federation.targets.get(name)
            if target is not None and not held.all():
                holders = np.flatnonzero(held & (self.federation.examples > 0))
                label = target.new_zeros(target.shape[1:])
                if len(holders):
                    label = target[int(self.federation.rows("train", int(holders[0]))[0])]
                found[name] = label.to(self.settings.device)
        return found

    def groups(self, clients: Ids, request: Request) -> list[Group]:
        """The clients of a request that can go together, wherever they stand in the cohort."""
        work = works[request.work]
        own = sent = self.memory.recall(clients, request)
        if work.measures:  # of everybody: what only the cohort has been sent should not matter
            different = list({id(past): past for past in sent}.values())
            common = {name: a for name, a in different[0].items() if all(past.get(name) is a for past in different)}
            sent = [common] * len(clients)
        alone, loops = self.layers.singly(work), self._loops(work)
        found: dict[tuple[int, bool], list[int]] = {}
        for i, client in enumerate(clients):
            found.setdefault((id(sent[i]), client in alone), []).append(i)
        return [
            Group(
                [clients[i] for i in at],
                at,
                replace(request, shared=sent[at[0]]),
                [own[i] for i in at],
                loops or singly,
            )
            for (_, singly), at in found.items()
        ]

    def run(self, group: Group, start: int, chunk: int) -> tuple[Iterator[Stack], int]:
        """The work of a group from its client `start` on: a chunk of it, or all the rest one by one; and how far."""
        rest = slice(start, len(group.clients))
        work = group.request.work
        if self._looks and work not in self._tried:
            self._look_first(group.request)
        if group.singly or work in self._one_by_one:
            return self._run_each(group, rest), rest.stop
        now = slice(start, min(start + chunk, rest.stop))
        try:
            if self._streams is not None:
                now = self._fitting(group, now)
            if now.start == now.stop:
                return self._run_each(group, rest), rest.stop
            self._tried.add(work)
            found = self._run_stacked(group, now)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError, IndexError) as error:
            if no_memory(error):
                raise torch.cuda.OutOfMemoryError(str(error)) from error
            return self._otherwise(group, rest, error)
        self.ways.say_refused(group.request.work, lambda: self.about(group.request, 0))
        return iter([found]), now.stop

    def _otherwise(self, group: Group, rest: slice, error: Exception) -> tuple[Iterator[Stack], int]:
        """What a work that cannot go so comes to: another way, when it is asked for again, or one by one."""
        work, why = group.request.work, reason(error)
        if self.ways.refuse(work, why):
            return iter(()), rest.start
        if self._alone(work):
            self._go_singly(group.request, str(error) if isinstance(error, Waits) else why)
        elif self.settings.graph and work in self.ways.refused and work not in self._waits:
            self._waits.add(work)  # whatever ended its recording, it may go without one
            return iter(()), rest.start
        elif self.settings.compile and work in self.ways.refused and work not in self.ways.plain:
            self.ways.plain.add(work)
            said = f"The work {work!r} is not compiled: {clipped(why, 150)}."
            self._choices.make("compile", self.about(group.request, 0), False, said, lasting=False)
            return iter(()), rest.start
        else:
            self._fall_back(work, self.ways.refused.get(work, why))
        return self._run_each(group, rest), rest.stop

    def _alone(self, work: str) -> bool:
        """Whether a work that can be neither stacked nor recorded goes one client after another: where gradients are
        taken of compiled programs, that takes no longer than side by side."""
        return self.settings.compile and work in self.ways.refused and not works[work].measures

    def _go_singly(self, request: Request, why: str) -> None:
        work = request.work
        self._one_by_one[work] = why
        if not self._looks and (looks := self._refusal(work)):
            self._looks = looks
            torch.compiler.reset()  # it leaves out for good what has failed under vmap, as the model's forward has
        said = f"The work {work!r} goes one client after another, compiled: it cannot be stacked"
        said += f" ({clipped(self.ways.refused[work], 100)}), nor recorded ({clipped(why, 100)})."
        self._choices.make("graph", self.about(request, 0), False, said, lasting=False)

    def _refusal(self, work: str) -> str:
        """Why vmap refuses the model, as a work uses it, on some rows of a client; nothing where it does not."""
        most = int(np.argmax(self._examples))
        held = [bool(one) for one in np.asarray(self._holds)[most]]
        with suppress(Exception), self._inside():  # without memory, or with rows that cannot be read, it is not known
            some = self._arrays.take(torch.from_numpy(self.federation.rows("train", most)[:2]))
            return self.ways.refusal(some, held, works[work].measures)
        return ""

    def _look_first(self, request: Request) -> None:
        """A model that vmap refuses is not tried with another work: the compiler would leave it out again."""
        self._tried.add(request.work)
        if (why := self._refusal(request.work)) and self.ways.refuse(request.work, why) and self._alone(request.work):
            self._go_singly(request, "as another work of this model")

    def forget(self) -> None:
        """Let go of recorded programs."""
        self._captured.clear()
        for runner in self._runners.values():
            runner.forget()

    # trials

    def about(self, request: Request, clients: int) -> Facts:
        """All that a choice for this work depends on."""
        s = self.settings
        how = {"machine": machine(s.device), "how": [s.tf32, s.compile, s.graph, s.way, s.recompute]}
        return {**depends_on(self._part, self.layers, request, clients), **how}

    def attempt(self, group: Group, clients: int) -> None:
        """The work of a group's largest clients, cut short and without a compiler, for nothing but a trial."""
        work = works[group.request.work]
        _, length = self._rows[work.split(group.request.options)]
        at = np.argsort(-length[np.asarray(group.clients)], kind="stable")[:clients].tolist()
        some = Group(
            [group.clients[i] for i in at],
            [group.places[i] for i in at],
            cut(group.request, STEPS),
            [group.sent[i] for i in at],
            singly=False,
        )
        self._computed(self._task(some, slice(0, clients)), self.ways.eager(work.name))

    def _loops(self, work: Work) -> bool:
        keeps = work.state is not None or self.layers.remember(work)
        return bool({"", work.name} & self._one_by_one.keys()) or keeps or work.needs == "rows"

    def _fall_back(self, work: str, why: str) -> None:
        self._one_by_one[work] = why
        what = f"The work {work!r}" if work else "All work"
        warnings.warn(f"{what} runs client by client: {why}", RuntimeWarning, stacklevel=2)

    # client by client

    def _run_each(self, group: Group, which: slice) -> Iterator[Stack]:
        compiled = self.settings.compile and bool({"", group.request.work} & self._one_by_one.keys())
        runner = self._runner(compiled)
        for client, place, sent in zip(group.clients[which], group.places[which], group.sent[which], strict=True):
            job = self.memory.job(client, replace(group.request.row(place), shared=sent))
            reply, state = runner(job)
            self.memory.keep(job, state)
            yield Stack.of(client, reply)

    def _runner(self, compiled: bool) -> ClientRunner:
        """Of work that is refused it is worth compiling; of single clients, as attackers are, it is not."""
        if compiled not in self._runners:
            device, tf32 = self.settings.device, self.settings.tf32
            made = partial(
                ClientRunner, self.problem, self.federation, self.layers,
                device=device, on_device=self._arrays, tf32=tf32, compiled=compiled, home=device,
                make_room=weakly(self._less if compiled else self._room),
                around=weakly(self._compiling_one) if compiled else nullcontext,
            )  # fmt: skip
            with suppress(torch.cuda.OutOfMemoryError):
                self._runners[compiled] = made()
            if compiled not in self._runners:
                self._make_room()
                self._runners[compiled] = made()
        return self._runners[compiled]

    @contextmanager
    def _compiling_one(self) -> Iterator[None]:
        """Inside, one client's programs may be compiled: anew, once memory has run out."""
        with self._compiling(), keeping(self.ways.recompute):
            yield

    def _room(self, request: Request) -> None:
        self._make_room()

    def _less(self, request: Request) -> None:
        """One client alone does not fit into memory."""
        if self.ways.keep_less():
            said = "Activations are computed again for gradients: memory ran out with one client."
            self._choices.make("recompute", self.about(request, 0), True, said, lasting=False)
        self._make_room()

    def _compiling(self) -> AbstractContextManager[None]:
        """Inside, programs may be compiled."""
        return compiling() if self.settings.compile else nullcontext()

    # together

    def _run_stacked(self, group: Group, which: slice) -> Stack:
        task = self._task(group, which)
        found = Stack(task.clients, self._given(task))
        return found.drop(task.failed) if task.failed else found

    def _task(self, group: Group, which: slice) -> Task:
        """A chunk's work, with arguments that are still where they were made: a recorded program copies them itself."""
        request, clients = group.request, group.clients[which]
        mine, sizes = self._per_client(clients, request)
        each = {name: rows[group.places[which]] for name, rows in request.each.items()}
        loops: Sequence[Loop] = ()
        failed: dict[int, str] = {}
        if self._streams is not None:
            loops = self._loops_of(group, which)
            mine["streams"], failed = self._streams.read(loops, clients, mine, sizes)
        numbers = self._numbers(request) if self.settings.graph else {}
        request = replace(request, options={k: v for k, v in request.options.items() if k not in numbers})
        common = torch.tensor([tensorkeys.signed(common_key(request.seed, request.round)), request.exchange])
        arguments = request.shared, each, mine, common, numbers
        return Task(clients, group.request, request, sizes, loops, arguments, failed)

    def _given(self, task: Task) -> dict[str, Tensor]:
        """What a chunk's program gives: recorded where it can be."""
        if self.settings.graph and task.request.work not in self._waits:
            try:
                return self._replayed(task)
            except Waits as why:
                if self._alone(task.request.work):
                    raise
                self._waits.add(task.request.work)
                said = f"The work {task.request.work!r} is not recorded: {why}."
                self._choices.make("graph", self.about(task.asked, 0), False, said, lasting=False)
        return self._computed(task)

    def _computed(self, task: Task, operators: Stacked | None = None) -> dict[str, Tensor]:
        """What a chunk's program gives, as it is."""
        operators = operators or self.ways.of_work(task.request.work)
        device, arguments = self.settings.device, task.arguments
        with self._inside():
            if device != HOST:
                arguments = pytree.tree_map(lambda t: t.to(device), arguments)
            program = self._program(task.request, self._client(task.sizes, task.loops, operators))
            self._seed(task.clients[0], task.request)
            return program(*arguments)

    def _replayed(self, task: Task) -> dict[str, Tensor]:
        """What a chunk's program gives, recorded."""
        with self._inside():
            graph = self._recorded(task)
            self._seed(task.clients[0], task.request)  # not before: a recording draws, too
            return graph(task.arguments)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Inside, programs are made and run; the caller's random state stays his."""
        fast = self.settings.device.type == "cuda"
        with (
            precision(self.settings.tf32),
            self._compiling(),
            torch.random.fork_rng(devices=[torch.cuda.current_device()] if fast else []),
        ):
            yield

    def _fitting(self, group: Group, which: slice) -> slice:
        """As many of a chunk's clients as have room for their streamed batches; nobody when one alone has not."""
        assert self._streams is not None
        _, sizes = self._per_client(group.clients[which], group.request)
        one = self._streams.bytes(self._loops_of(group, which), sizes)
        if one > MOST:
            why = f"a client's streamed batches take {one >> 20} MiB, and programs get {MOST >> 20} MiB at once."
            self._fall_back(group.request.work, why)
            return slice(which.start, which.start)
        return slice(which.start, min(which.stop, which.start + MOST // max(one, 1)))

    def _loops_of(self, group: Group, which: slice) -> tuple[Loop, ...]:
        """The loops that the group's work asks for."""
        streams, request = self._streams, group.request
        assert streams is not None
        options = {name: v for name, v in request.options.items() if name not in works[request.work].numbers}

        def ask() -> list[Loop]:
            found: list[Loop] = []
            first = slice(which.start, which.start + 1)
            mine, sizes = self._per_client(group.clients[first], request)
            each = {name: rows[group.places[first]] for name, rows in request.each.items()}
            arguments: Any = request.shared, each, mine, torch.zeros(2, dtype=torch.int64), {}
            with torch.random.fork_rng(devices=[]):
                on_host = pytree.tree_map(lambda t: t.cpu(), arguments)
                self._program(request, streams.asking(found, sizes))(*on_host)
            return found

        return streams.loops((request.work, request.weighed, repr(sorted(options.items()))), ask)

    def _client(self, sizes: Sizes, loops: Sequence[Loop], operators: Stacked) -> Callable[..., ManyClients]:
        """The client of a program, of what is known of one."""

        def client(streams: Sequence[Any] = (), **known: Any) -> ManyClients:
            read = dict(zip(loops, streams, strict=True))
            return ManyClients(self.problem, self._on_device, operators, sizes=sizes, streams=read, **known)

        return client

    def _seed(self, first: int, request: Request) -> None:
        """A chunk's dropout follows from its first client's key, and so is the same in all exchanges of a round:
        FSMGDA's second upload, FedCMOO's first step and the measure of progress repeat a training, or begin it.
        """
        draw: Any = request.options.get("draw", 0)
        of = key(client_key(request.seed, request.round, first), "dropout", *other(draw))
        torch.default_generator.manual_seed(of >> 1)
        if self.settings.device.type == "cuda":
            torch.cuda.manual_seed(of >> 1)

    def _numbers(self, request: Request) -> dict[str, Tensor]:
        """Options that may change from round to round without a new program, as arguments of it."""
        names = [name for name in works[request.work].numbers if isinstance(request.options.get(name), float)]
        return {name: torch.tensor(request.options[name], dtype=self.problem.dtype) for name in names}

    def _per_client(self, clients: Sequence[int], request: Request) -> tuple[dict[str, Any], Sizes]:
        """Keys, sizes and rows of some clients, as tensors and as host numbers."""
        ids = np.asarray(clients)
        keys = np.array([tensorkeys.signed(client_key(request.seed, request.round, c)) for c in clients])
        put = torch.from_numpy  # indexing has made each of these arrays anew
        places = {s: (put(start[ids]), put(length[ids])) for s, (start, length) in self._rows.items()}
        n = put(self._examples[ids]).to(self.problem.dtype)
        objectives = {name: put(table[ids]).to(self.problem.dtype) for name, table in self._objectives.items()}
        lengths = {s: length[ids] for s, (_, length) in self._rows.items()}
        mine = {"id": put(ids), "key": put(keys), "n": n, **objectives, "place": places}
        return mine, Sizes(lengths, self._most)

    def _program(self, request: Request, make: Callable[..., ManyClients]) -> Program:
        """The work of a chunk as a function of tensors alone; the round is hidden, so that nothing is baked in.

        make: the client.
        """
        timeless = replace(request, seed=-1, round=-1, exchange=-1, folded=None)
        guarded = bool(self.layers.on(works[request.work]))  # else the server sees what is not finite as it is

        def one(shared: Any, each: Any, mine: dict[str, Any], common: Tensor, numbers: Any) -> dict[str, Tensor]:
            client = make(common_key=common[0], exchange=common[1], **mine)
            asked = replace(timeless, shared=shared, each=each, options={**request.options, **numbers})
            flags: dict[str, Tensor] = {}

            def note_finite(arrays: Mapping[str, Any]) -> None:
                values = [a for a in arrays.values() if isinstance(a, Tensor) and a.is_floating_point()]
                flags[FINITE] = torch.stack([torch.isfinite(a).all() for a in values]).all()

            arrays, _ = perform(client, asked, None, self.layers, note_finite if guarded else unchecked)
            like = client.n
            made = {name: a if isinstance(a, Tensor) else torch.full_like(like, a) for name, a in arrays.items()}
            return {**made, **flags}

        return torch.func.vmap(one, in_dims=(None, 0, 0, None, None), randomness="different")

    def _recorded(self, task: Task) -> Captured:
        request, sizes = task.request, task.sizes
        options = tuple((name, repr(v)) for name, v in sorted(request.options.items()))
        what = request.work, request.weighed, options
        like = tuple(tuple((name, a.shape, a.dtype) for name, a in arrays.items()) for arrays in task.arguments[:2])

        def shape() -> Any:
            return what, like, len(task.clients), *map(sizes.answer, self._questions.get(what, ()))

        graph = self._captured.pop(shape(), None)
        if graph is None:
            if len(self._captured) >= MOST_GRAPHS:
                del self._captured[next(iter(self._captured))]
            graph = self._first(task)
            self._questions[what] = sorted(sizes.asked)
        self._captured[shape()] = graph  # the latest last
        return graph

    def _first(self, task: Task) -> Captured:
        """A program that has not been recorded yet."""
        trains = works[task.asked.work].cost is not None
        steps = int(local_steps(task.asked, self._examples[task.clients]).sum()) if trains else 0

        def record(way: str) -> Captured:
            operators = self.ways.operators(way)
            program = self._program(task.request, self._client(task.sizes, task.loops, operators))
            return Captured(program, task.arguments, self.settings.device, self.settings.pool)

        about = partial(self.about, task.asked, len(task.clients))
        return self.ways.recorded(record, task.arguments, task.asked.work, about, steps)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method for those whom its object holds: the object, and the memory that it has, goes when nobody else needs it,
    and not when Python next looks for cycles."""
    of = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        found = of()
        assert found is not None  # who calls is held by the object
        return found(*arguments)

    return call


FINITE = "polyfed.finite"  # whether a client's arrays were finite before the layers changed them


def only_finite(stack: Stack) -> Stack:
    """Without the clients that `perform` would have stopped, had it been allowed to look."""
    if FINITE not in stack.arrays:
        return stack
    fine = stack[FINITE].tolist()
    arrays = {name: a for name, a in stack.arrays.items() if name != FINITE}
    bad = [client for client, finite in zip(stack.clients, fine, strict=True) if not finite]
    whole = Stack(stack.clients, arrays, stack.failed)
    return whole.drop(dict.fromkeys(bad, "FloatingPointError: the reply holds NaN or infinity")) if bad else whole


def in_cohort_order(stacks: list[Stack], clients: Ids) -> Iterator[Stack]:
    """Stacks of several groups, cut and mixed so that clients come in their order."""
    at = {client: (s, i) for s, stack in enumerate(stacks) for i, client in enumerate(stack.clients)}
    yield from (Stack((), {}, stack.failed) for stack in stacks if stack.failed)
    there = [client for client in clients if client in at]
    for s, run in groupby(there, key=lambda client: at[client][0]):
        some = list(run)
        rows = [at[client][1] for client in some]
        yield Stack(some, {name: a[rows] for name, a in stacks[s].arrays.items()})


def unfit(problem: Problem, layers: Layers) -> str:
    """Why clients cannot be run together, or nothing."""
    known = {f"{name}.{own}".lstrip(".") for name, module in problem.model.named_modules() if takes(module)
             for own, _ in module.named_buffers(recurse=False)}  # fmt: skip
    if others := set(problem.buffers) - known:
        return f"training changes {sorted(others)[0]!r}, a buffer of its model, which padding would disturb."
    if unaware := [o.name for o in problem.objectives if o.per == "batch" and not {"mask"} & {*o.takes} and
                   set(o.takes) != {"parameters"}]:  # fmt: skip
        return f"the loss of {unaware[0]!r} is about the batch and takes no 'mask', so that it would see padding."
    if counted := [name for name, module in problem.model.named_modules() if counts_words(module)]:
        return f"the embedding {counted[0]!r} scales its gradient by how often a word comes, padding included."
    if any(layer.remembers for layer in layers.listed):
        return "a layer keeps state at the clients."
    return ""


def _padded(rows: Rows, clients: int) -> tuple[Index, Index]:
    """Starts and lengths of all clients' rows; those that the split does not name have none."""
    more = (0, clients - len(rows))
    return np.pad(rows.start, more), np.pad(rows.length, more)
