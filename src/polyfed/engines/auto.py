"""Engine `auto`: `batched` on a GPU; on a CPU the faster of `batched` and `local` for each work, by a trial."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from polyfed.client.device import HOST, Device, resolve
from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Parts
from polyfed.core.work import works
from polyfed.engines.batched import Batched
from polyfed.engines.batched.chunks import ON_HOST
from polyfed.engines.batched.together import unfit
from polyfed.engines.local import Local
from polyfed.engines.trial import compared, cut, depends_on, local_steps, machine, seconds, some_of

GAIN = 1.2  # times as fast: less may be noise, and `local` is exact to the last bit
LONG = 0.005  # seconds of one client's step: so long a one is arithmetic, which a stack does not save
SPENT = 0.1  # seconds, about, of every repetition of a trial
PATIENCE = 3.0  # seconds of the first stacked step, above which nothing more is tried


@engines("auto")
def auto(
    parts: Parts,
    layers: Layers,
    *,
    device: Device = "auto",
    workers: Annotated[int, Field(ge=1)] = 1,
    timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0,
) -> Engine:
    """`batched` on a GPU where the models allow it; on a CPU the faster of `batched` and `local`, by a trial.

    Args:
        device: 'cpu', 'cuda', or 'auto' for the GPU where there is one.
        workers: of `local`, processes on the CPU; 1 for this one alone.
        timeout: of `local`, seconds that a worker may take for one client; 0 for any time.
    """
    on_gpu = resolve(device).type == "cuda"
    fit = [not unfit(part.problem, layers) for part in parts.values()]
    if on_gpu and all(fit):
        return Batched(parts, layers, device=device)
    if on_gpu or not any(fit):
        return Local(parts, layers, workers=workers, device=device, timeout=timeout)
    return OnHost(parts, layers, workers, timeout)


@dataclass(frozen=True)
class Chosen:
    """An engine's name, why it was chosen, and whether other runs would choose it, too."""

    engine: str
    why: str
    lasting: bool = True


class OnHost(Engine):
    """`local` or `batched` on a CPU: which one a work runs on is found at its first request, and kept.

    Both have the same clients: what these remember is one memory.

    Args:
        parts, layers: as of every engine.
        workers, timeout: of `local`.
    """

    def __init__(self, parts: Parts, layers: Layers, workers: int, timeout: float) -> None:
        super().__init__(parts, layers)
        self.local = Local(parts, layers, workers=workers, device="cpu", timeout=timeout)  # whose processes begin now
        self.overlaps = self.local.overlaps
        self._found: dict[tuple[str, str], str] = {}

    @cached_property
    def batched(self) -> Batched:
        """The other one, of the models that it can take, made when it is first needed."""
        fit = {name: part for name, part in self.parts.items() if not unfit(part.problem, self.layers)}
        made = Batched(fit, self.layers, device="cpu")
        for name, part in made.together.items():
            part.memory = self.local.memory[name]
        return made

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if self._engine(clients, request) == "local":
            yield from self.local.replies(clients, request)
            return
        with self._lock:  # what it sets is the process's own, and several models may be trained at once
            yield from self.batched.replies(clients, request)

    def _engine(self, clients: Ids, request: Request) -> str:
        """Which engine a request goes to."""
        name, work = (request.part, request.work), works[request.work]
        alone = work.needs == "rows" or work.state is not None or self.layers.remember(work)
        if alone or len(clients) < 2 or unfit(self.parts[request.part].problem, self.layers):
            return "local"
        if name not in self._found:
            with self._lock:
                self._found[name] = self._chosen(clients, request)
        return self._found[name]

    def _chosen(self, clients: Ids, request: Request) -> str:
        """As was found before, or by a trial."""
        about = depends_on(self.parts[request.part], self.layers, request, min(len(clients), ON_HOST))
        about |= {"machine": machine(HOST), "workers": self.local.workers}
        known = self.choices.known("engine", about, ("local", "batched").__contains__)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*runs client by client")  # then it is `local` that does so
            if known == "local" or (known and not self._draws(clients, request)):  # as its code may do by now
                return str(known)
            found = self._tried(clients, request)
        said = f"The work {request.work!r} runs on {found.engine}: {found.why}."
        self.choices.make("engine", about, found.engine, said, lasting=found.lasting)
        return found.engine

    def _tried(self, clients: Ids, request: Request) -> Chosen:
        """The faster engine, as far as that is worth a trial."""
        run = self._first(clients, request)
        if run()[0].error:
            return Chosen("local", f"client {clients[0]}, with which a trial began, has failed", lasting=False)
        if _drew():
            return Chosen("local", "it draws at random (dropout), and batched would draw otherwise")
        one = seconds(run, time.process_time)
        if one > LONG:
            return Chosen("local", f"a step of one client takes {1e3 * one:.0f} ms, of which stacking saves little")
        return self._compared(clients, request, one)

    def _first(self, clients: Ids, request: Request) -> Callable[[], tuple[Reply, Any]]:
        """One step of the first client."""
        part = self.parts[request.part]
        self.local.memory[request.part].recall(clients, request)  # of all at once: those of one past can go together
        (job,) = self._jobs(clients[:1], some_of(cut(request, 1), [0]))
        return partial(ClientRunner(part.problem, part.federation, self.layers), job)

    def _draws(self, clients: Ids, request: Request) -> bool:
        self._first(clients, request)()
        return _drew()

    def _compared(self, clients: Ids, request: Request, one: float) -> Chosen:
        """Some of the cohort and some of its steps on both engines, as many as the time allows.

        one: seconds of one step of one client.
        """
        many = max(2, min(len(clients), ON_HOST, int(SPENT / one)))
        places = np.linspace(0, len(clients) - 1, many).astype(int).tolist()
        some = [clients[i] for i in places]
        every = local_steps(request, self.population[request.part].examples[some])
        most = max(1, int(SPENT / (one * many)))
        whole = bool(every.max() <= most)
        tried = some_of(request if whole else cut(request, most), places)
        jobs = self._jobs(some, tried)

        def stacked() -> None:
            list(self.batched.started(some, tried))

        if seconds(stacked) > PATIENCE:
            return Chosen("local", "a stacked step takes too long for a trial")
        if self._apart(some, tried):
            return Chosen("local", "it cannot be stacked", lasting=False)  # which may be mended in the model's code
        # the processor's own time, unless other processes do the work: this one may have to wait for its turn
        clock = time.perf_counter if self.overlaps else time.process_time
        local, batched = compared(partial(self.local.attempt, jobs), stacked, clock=clock)
        padding = 1.0 if whole else float(every.max() / every.mean())  # who has few rows waits for who has most
        gain = local / (batched * padding)
        return Chosen("batched" if gain >= GAIN else "local", f"batched is {gain:.2g} times as fast as local")

    def _jobs(self, clients: Ids, request: Request) -> list[Job]:
        return list(self.local.memory[request.part].jobs(clients, request))

    def _apart(self, clients: Ids, request: Request) -> bool:
        """Whether `batched`, too, has clients work one after another."""
        part = self.batched.together[request.part]
        return request.work in part.ways.refused or all(group.singly for group in part.groups(clients, request))

    def tree(self) -> dict[str, Any]:
        return self.local.tree()

    def load(self, tree: Mapping[str, Any]) -> None:
        self.local.load(tree)

    def close(self) -> None:
        self.local.close()


def _drew() -> bool:
    """Whether a client's work has drawn from torch's generator, which is seeded when it begins."""
    fresh = torch.Generator().manual_seed(torch.default_generator.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())
