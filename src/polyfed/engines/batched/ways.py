"""Ways of a chunk's gradient steps that give the same: layers of all clients stacked, convolutions by our own kernels
or grouped by the library; or each client's layers in parallel branches of one program.

Which is the fastest one is found by a trial of all, where a step is long enough to be worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from polyfed.client.device import no_memory
from polyfed.core.choices import Choices
from polyfed.core.errors import cut, reason
from polyfed.core.problem import Batch, Problem
from polyfed.engines.batched.branches import STREAMS, Branches
from polyfed.engines.batched.capture import Captured
from polyfed.engines.batched.stacked import Grouped, Stacked
from polyfed.engines.trial import Facts, compared, gpu_clock

Way = Literal["auto", "stacked", "grouped", "branches"]
Recompute = Literal["auto", True, False]
WAYS: dict[str, type[Stacked]] = {"stacked": Stacked, "grouped": Grouped, "branches": Branches}
NAMED = {"stacked": "stacked", "grouped": "stacked with grouped convolutions", "branches": "in branches"}
WORTH = 0.25e-3  # seconds a client and step: a stack that takes less is never worth another compilation


@dataclass(frozen=True)
class Settings:
    """Where and how programs run: the device, TF32 products, compiled steps, CUDA graphs and the memory they share, the
    way of gradient steps, and whether those compute activations again."""

    device: torch.device
    tf32: bool
    compile: bool
    graph: bool
    pool: Any
    way: Way = "auto"
    recompute: Recompute = "auto"


class Ways:
    """The gradient operators of one model's clients.

    Args:
        problem: the model.
        settings: where and how programs run.
        blanks: of objectives that some client lacks, a label.
        choices: of the run.
    """

    def __init__(self, problem: Problem, settings: Settings, blanks: Mapping[str, Tensor], choices: Choices) -> None:
        self._problem, self._settings, self._blanks, self._choices = problem, settings, blanks, choices
        self._made: dict[tuple[str, bool], Stacked] = {}
        self.recompute = settings.recompute is True
        self.refused: dict[str, str] = {}  # work that cannot be stacked, and why
        self.plain: set[str] = set()  # work that cannot be compiled
        self._said: set[str] = set()
        self._tries = settings.way == "auto" and settings.device.type == "cuda"  # a host has no parallel branches

    def operators(self, way: str, compiled: bool = True) -> Stacked:
        """Those of a way, compiled where that is asked for."""
        if (way, compiled) not in self._made:
            self._made[way, compiled] = self._new(way, compiled and self._settings.compile)
        return self._made[way, compiled]

    def of_work(self, work: str) -> Stacked:
        """Those of a work's way."""
        return self.operators(self.of(work), work not in self.plain)

    def eager(self, work: str) -> Stacked:
        """Those of a work's way, for once, and without a compiler."""
        return self._new(self.of(work), False)

    def _new(self, way: str, compiled: bool) -> Stacked:
        return WAYS[way](self._problem, self._settings.device, compiled, self._blanks, self.recompute)

    def keep_less(self) -> bool:
        """From now on activations are computed again: whether that is anything new."""
        if self.recompute or self._settings.recompute is False or not self._settings.compile:
            return False
        self.recompute = True
        self._made.clear()
        return True

    def of(self, work: str) -> str:
        """The way of a work that nobody has tried."""
        if work in self.refused:
            return "branches"
        return "stacked" if self._settings.way == "auto" else self._settings.way

    def lanes(self, work: str) -> int:
        """How many clients' temporary memory there is at once, where they do not go together."""
        return STREAMS if self.of(work) == "branches" else 1

    def refuse(self, work: str, why: str) -> bool:
        """A work cannot be stacked: whether there is another way for it."""
        if self._settings.way != "auto" or work in self.refused:
            return False
        self.refused[work] = why
        return True

    def refusal(self, batch: Batch, held: Sequence[bool], measures: bool) -> str:
        """Why vmap refuses the model itself, trained on a client's batch or measured; nothing where it does not."""
        operators, device = self._new("stacked", False), self._settings.device
        start = {name: a.to(device)[None] for name, a in self._problem.initial().items()}
        own = batch._replace(mask=torch.ones(batch.rows, dtype=self._problem.dtype, device=device))
        rows = pytree.tree_map(lambda t: t[None], own)

        def one(x: Tensor, buffers: Tensor, batch: Batch) -> Any:
            holds = torch.tensor(held, dtype=x.dtype, device=x.device)
            if measures:
                return operators.measure(x, buffers, holds, batch)
            return operators.grad(x, buffers, holds, holds, batch)

        try:
            vmap(one, randomness="different")(start["x"], start["buffers"], rows)
        except Exception as error:
            return "" if no_memory(error) else reason(error)
        return ""

    def say_refused(self, work: str, about: Callable[[], Facts]) -> None:
        """The other way works: nothing is lost, and whoever wants to know is told."""
        if work in self.refused and work not in self._said:
            self._said.add(work)
            why = cut(self.refused[work], 150)
            said = f"The work {work!r} goes in branches, as it cannot be stacked ({why})."
            self._choices.make("way", about(), "branches", said, lasting=False)

    def recorded(
        self, record: Callable[[str], Captured], arguments: Any, work: str, about: Callable[[], Facts], steps: int
    ) -> Captured:
        """A work's program as the fastest way records it.

        Args:
            record: the program of a way.
            arguments: to try it with; a program changes nothing.
            work: its name.
            about: all that the choice depends on.
            steps: how many gradient steps all clients take together; 0 where they take none, and nothing is tried.
        """
        if not steps or not self._tries or work in self.refused:
            return record(self.of(work))
        facts = about()
        known = self._choices.known("way", facts, WAYS.__contains__)
        if known is not None and (kept := _recorded_again(record, known)) is not None:
            return kept
        graph, way, said = self._fastest(record, arguments, steps)
        clients = facts["clients"]
        self._choices.make("way", facts, way, f"The work {work!r} of {clients} clients goes {NAMED[way]}: {said}.")
        return graph

    def _fastest(self, record: Callable[[str], Captured], arguments: Any, steps: int) -> tuple[Captured, str, str]:
        """The program of the fastest way, its name, and how fast it is."""
        programs = {"stacked": record("stacked")}
        programs["stacked"](arguments)
        (one,) = compared(partial(programs["stacked"], arguments), clock=gpu_clock)
        if one <= WORTH * steps:
            return programs["stacked"], "stacked", f"{1e3 * one / steps:.2g} ms a client and step"
        refused = ""
        for way in self._others():
            try:
                program = record(way)
                program(arguments)
                programs[way] = program
            except Exception as error:  # also for lack of memory: a stack is there already
                refused += f"; not {NAMED[way]} ({cut(f'{type(error).__name__}: {error}', 100)})"
        calls = [partial(program, arguments) for program in programs.values()]
        times = {way: 1e3 * t / steps for way, t in zip(programs, compared(*calls, clock=gpu_clock), strict=True)}
        first, *others = sorted(programs, key=times.__getitem__)
        said = ", ".join([f"{times[first]:.3g} ms a client and step", *(f"{NAMED[w]} {times[w]:.3g}" for w in others)])
        return programs[first], first, said + refused

    def _others(self) -> list[str]:
        """What may be faster than a stack."""
        grouped = any(isinstance(module, nn.Conv2d) for module in self._problem.model.modules())
        return [*(["grouped"] if grouped else []), "branches"]


def _recorded_again(record: Callable[[str], Captured], way: str) -> Captured | None:
    """The program of a way that was chosen before; nothing where that way is not open any more, but for memory."""
    try:
        return record(way)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # a stack may still do, or says by itself why not
        if way == "stacked":
            raise
        return None
