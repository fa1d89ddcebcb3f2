"""Programs for torch's compiler, each with code of its own, and a loop's gradients that are those of such programs."""

from __future__ import annotations

import hashlib
import random
import threading
import warnings
from collections.abc import Callable
from itertools import count
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from polyfed.client.autograd import Autograd, Programs
from polyfed.client.device import HOST, no_memory
from polyfed.core.errors import reason
from polyfed.core.problem import Batch, Problem
from polyfed.core.structure import leaves

Program = Callable[..., Any]
Draws = tuple[list[Tensor], Any, Any]
State = tuple[Draws, list[Tensor]]
NUMBERS = count()  # of models whose programs are compiled


def own_code(f: Program, *about: Any) -> Program:
    """The same function, as code that no other program has.

    The compiler keeps what it has compiled with the code that it was made of, and from sizes that differ between two
    calls of one code concludes that they vary. So the code of one model should not be that of another.

    Args:
        f: what is called.
        about: what the code is for: with the same, what was learnt of it before holds.
    """

    def program(*arguments: Any, **named: Any) -> Any:
        return f(*arguments, **named)

    code: CodeType = program.__code__
    program.__code__ = code.replace(co_name=f"program_{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}")
    return program


def replayed(f: Program, device: torch.device) -> Program:
    """A program that is compiled; on a GPU, what lies between two looks at numbers is one launch.

    What it gives lies in memory that the next call after `next_step` writes over.
    """
    if device.type != "cuda" or threading.current_thread() is not threading.main_thread():
        return torch.compile(f)  # torch's graphs belong to one thread
    return torch.compile(f, mode="reduce-overhead")


def next_step() -> None:
    """What replayed programs gave before is not needed any more."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch has no types here


class CompiledAutograd(Autograd):
    """Gradients of compiled programs, on a GPU replayed; where the compiler fails, of those that are not.

    Args:
        problem: the model and its objectives.
        device: where its copy is.
    """

    def __init__(self, problem: Problem, device: torch.device = HOST) -> None:
        super().__init__(problem, device)
        self._fast: Programs | None = None
        self._compiles = True
        self._replays: bool | None = None
        self._worked: set[Any] = set()  # what programs have been compiled for

    def forget(self) -> None:
        if self._fast is not None:
            self._fast = None
            self._worked.clear()
            torch.compiler.reset()  # which keeps what it has compiled with the code, and the memory of replays

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, holds: list[bool], *, losses: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._tried("_grad", x, buffers, batch, omega, holds)

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, holds: list[bool], *, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._tried("_jacobian", x, buffers, batch, holds, train)

    def _tried(self, name: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What a function of programs gives: of compiled ones, or, where the compiler fails, of those that are not."""
        f: Callable[..., tuple[Tensor, Tensor, Tensor]] = getattr(self, name)
        if not self._compiles:
            return f(self._plain, *arguments)
        x, buffers, batch = arguments[:3]
        if self._fast is None:
            replays = self._replayable(x, buffers, batch)
            if not self._compiles:
                return f(self._plain, *arguments)
            self._fast = self._made(replays)
        kind = name, *(t.shape for t in leaves(batch.x)), *(str(a) for a in arguments if isinstance(a, list | bool))
        before = None if kind in self._worked else self._state()
        try:
            next_step()
            found = f(self._fast, *arguments)
        except Exception as error:
            if no_memory(error):
                raise
            return self._without(error, before or self._state(), name, *arguments)
        self._worked.add(kind)
        return found

    def _replayable(self, x: Tensor, buffers: Tensor, batch: Batch) -> bool:
        """Whether the module keeps no tensor of a step, tried on two rows with a copy that is not compiled.

        One whose forward gives parameters other data is not compiled at all: a program takes them for new tensors,
        which have no gradient.
        """
        if self._replays is None:
            before = _drawn(self._x.device)
            try:
                twin = Autograd(self.problem, self._x.device)
                twin._place(x, buffers, True)
                kept = _tensors(twin.model)
                twin._forward(twin._plain, tree_map_only(Tensor, lambda t: t[:2], batch))
                self._replays = _tensors(twin.model) == kept
                if twin._given_others():
                    self._compiles = False
            except Exception:  # two rows may be too few for it
                self._replays = False
            _draw_again(before, self._x.device)
        return self._replays

    def _made(self, replays: bool) -> Programs:
        """Compiled programs; replayed ones only of a module that keeps no tensor of a step, as they write over it."""
        number = next(NUMBERS)
        every = (own_code(f, number, i) for i, f in enumerate(self._plain))
        return Programs(*(replayed(f, self._x.device) if replays else torch.compile(f) for f in every))

    def _state(self) -> State:
        """What a step changes beside its arguments: generators, and buffers that do not travel."""
        return _drawn(self._x.device), [module.get_buffer(leaf).clone() for module, leaf, _, _ in self._others]

    def _without(self, error: Exception, before: State, name: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The same by programs that are not compiled, of a module that the failure has not touched.

        An error of the model's or of a client comes again, and says nothing of the compiler.
        """
        twin = Autograd(self.problem, self._x.device)
        draws, buffers = before
        _draw_again(draws, self._x.device)
        for (_, _, own, _), value in zip(twin._others, buffers, strict=True):
            own.copy_(value)
        twin._set()
        found: tuple[Tensor, Tensor, Tensor] = getattr(twin, name)(twin._plain, *arguments)
        vars(self).update(vars(twin))
        self._fast, self._compiles = None, False  # old programs would keep the old model
        warnings.warn(f"Work of one client after another is not compiled any more: {reason(error)}", RuntimeWarning,
                      stacklevel=2)  # fmt: skip
        return found


def _tensors(model: nn.Module) -> dict[tuple[str, str], int]:
    """Which tensors a module keeps, by their places, in buffers or as attributes."""
    kept = ((at, {**module._buffers, **vars(module)}) for at, module in model.named_modules())
    return {(at, name): id(t) for at, table in kept for name, t in table.items() if isinstance(t, Tensor)}


def _drawn(device: torch.device) -> Draws:
    """How far the generators of the host and the device are."""
    of_torch = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return of_torch, random.getstate(), np.random.get_state()


def _draw_again(draws: Draws, device: torch.device) -> None:
    (host, *others), of_python, of_numpy = draws
    torch.set_rng_state(host)
    for state in others:
        torch.cuda.set_rng_state(state, device)
    random.setstate(of_python)
    np.random.set_state(of_numpy)
