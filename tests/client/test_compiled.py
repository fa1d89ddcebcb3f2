"""Programs for the compiler: code of their own, and a loop's gradients that are those of compiled programs."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from polyfed import Objective, Problem
from polyfed.client.autograd import Autograd, Programs
from polyfed.client.compiled import CompiledAutograd, own_code
from polyfed.client.device import no_memory
from polyfed.core.problem import Batch
from polyfed.engines.batched.stacked import Stacked, compiling
from polyfed.models import Headed
from small import Held, small_problem

HOST = torch.device("cpu")
original = torch.compile


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[Any, ...]]]:
    """The sizes of all inputs of each compiled graph, which then runs as it was taken down."""
    from torch._dynamo.backends.debugging import aot_eager

    found: list[list[tuple[Any, ...]]] = []

    def backend(graph: Any, inputs: Any, **settings: Any) -> Any:
        found.append([tuple(t.shape) if isinstance(t, Tensor) else (t,) for t in inputs])
        return aot_eager(graph, inputs, **settings)

    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=backend))
    torch._dynamo.reset()
    return found


class Looking(nn.Module):
    """A model that looks at its numbers, with batch statistics, two heads and a buffer that does not travel."""

    seen: Tensor

    def __init__(self, drops: bool = False) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), *([nn.Dropout(0.5)] if drops else []))
        self.layers = Headed(body, {name: nn.Linear(5, 3) for name in ("a", "b")})
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        self.seen += 1
        x = x / 2 if float(x.detach().max()) > 2 else x
        return self.layers(x)


def looking(autocast: bool = False, drops: bool = False) -> Problem:
    torch.manual_seed(0)
    return Problem(Looking(drops), [Objective(name, "cross-entropy") for name in ("a", "b")], autocast=autocast)


def batch(rows: int, size: float = 1.0) -> Batch:
    torch.manual_seed(rows)
    targets = {name: torch.randint(0, 3, (rows,)) for name in ("a", "b")}
    return Batch(size * torch.randn(rows, 6), targets, None, {}, {})


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("holds", [[True, True], [False, True]])
def test_gradients_of_compiled_programs_are_the_same(holds: list[bool], autocast: bool, compiled: list[Any]) -> None:
    problem = looking(autocast)
    plain, fast = Autograd(problem), CompiledAutograd(problem)
    x, buffers = problem.initial()["x"].clone(), problem.initial()["buffers"].clone()
    with compiling():
        for some in (batch(8), batch(8, 10.0), batch(5)):  # a model that looks goes both ways
            for omega in (torch.tensor([0.3, 0.7]), torch.tensor([0.0, 1.0]), torch.zeros(2)):
                one, other = (of.grad(x, buffers, some, omega, holds) for of in (plain, fast))
                torch.testing.assert_close(one, other)
            one, other = (of.jacobian(x, buffers, some, holds, train=True) for of in (plain, fast))
            torch.testing.assert_close(one, other)
    assert fast._compiles
    assert len(compiled) > 2


def test_a_client_begins_with_buffers_as_they_were(compiled: list[Any]) -> None:
    """In the same memory, as compiled programs know it."""
    problem = looking()
    fast = CompiledAutograd(problem)
    x, buffers = problem.initial()["x"].clone(), problem.initial()["buffers"].clone()
    seen: Any = fast.model.get_buffer("seen")
    with compiling():
        fast.grad(x, buffers, batch(4), torch.ones(2), [True, True])
    assert float(fast.model.get_buffer("seen")) == 1
    fast.reset()
    assert float(fast.model.get_buffer("seen")) == 0
    assert fast.model.get_buffer("seen") is seen


@pytest.mark.parametrize("works", [0, 1, 2])
def test_what_the_compiler_cannot_take_goes_without_it(works: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails with the first graph, or after some: what came before them has changed nothing, dropout neither."""
    from torch._dynamo.backends.debugging import aot_eager

    made: list[Any] = []

    def failing(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        if len(made) > works:
            raise NotImplementedError("no such instruction")
        return aot_eager(graph, inputs)

    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=failing))
    torch._dynamo.reset()
    problem = looking(drops=True)
    fast, plain = CompiledAutograd(problem), Autograd(problem)
    first = weakref.ref(fast.model)
    x, buffers = problem.initial()["x"].clone(), problem.initial()["buffers"].clone()
    some = x, buffers, batch(4), torch.ones(2), [True, True]
    with compiling():
        torch.manual_seed(1)
        expected = plain.grad(*some)
        torch.manual_seed(1)
        with pytest.warns(RuntimeWarning, match="is not compiled any more: BackendCompilerFailed") as caught:
            found = fast.grad(*some)
        torch.testing.assert_close(found, expected)
        for by in (1.0, 2.0):  # another model
            other = x + by, *some[1:]
            torch.manual_seed(2)
            expected = plain.grad(*other)
            torch.manual_seed(2)
            torch.testing.assert_close(fast.grad(*other), expected)
    assert len(caught) == 1
    assert len(made) == works + 1
    torch._dynamo.reset()  # the compiler's caches know the module, too
    gc.collect()
    assert first() is None
    assert fast.model.get_buffer("seen") == plain.model.get_buffer("seen") == 3  # no step was counted twice


def test_a_module_that_gives_its_parameters_other_data_is_not_compiled(compiled: list[Any]) -> None:
    """A program would take them for new tensors, and leave their gradients at 0."""
    torch.manual_seed(0)
    layers = nn.Sequential(Held(6, 5), nn.Tanh(), nn.Linear(5, 3))
    problem = Problem(layers, [Objective("a", "cross-entropy")])
    some = problem.initial()["x"], torch.zeros(0), batch(6)._replace(targets={"a": torch.arange(6) % 3})
    fast, plain = CompiledAutograd(problem), Autograd(problem)
    for _ in range(2):
        found, expected = (of.grad(*some, torch.ones(1), [True]) for of in (fast, plain))
        assert all(map(torch.equal, found, expected))
    assert problem.split(found[0])["0.weight"].norm() > 0.01
    assert not compiled


def test_a_compiler_that_fails_is_left_also_where_warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such instruction")

    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=failing))
    torch._dynamo.reset()
    problem = looking()
    fast, plain = CompiledAutograd(problem), Autograd(problem)
    some = problem.initial()["x"].clone(), problem.initial()["buffers"].clone(), batch(4), torch.ones(2), [True, True]
    with compiling(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="is not compiled any more"):
            fast.grad(*some)
        torch.testing.assert_close(fast.grad(*some), plain.grad(*some))


def test_memory_that_runs_out_is_no_failure_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(graph: Any, inputs: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=crowded))
    torch._dynamo.reset()
    problem = looking()
    fast = CompiledAutograd(problem)
    some = problem.initial()["x"].clone(), problem.initial()["buffers"].clone(), batch(4), torch.ones(2), [True, True]
    with compiling(), pytest.raises(Exception, match="CUDA out of memory") as caught:
        fast.grad(*some)
    assert no_memory(caught.value)
    assert fast._compiles


def test_all_gradients_are_of_compiled_programs_the_first_one_too(compiled: list[Any]) -> None:
    """A compiler may draw dropout in its own way: work that is done again, or in a run that goes on, draws the same."""
    problem = looking(drops=True)
    fast, some = CompiledAutograd(problem), batch(8)
    start = problem.initial()["x"].clone(), problem.initial()["buffers"].clone()
    found = []
    with compiling():
        for _ in range(2):
            torch.manual_seed(3)
            fast.reset()
            before = len(compiled)
            found.append(fast.grad(*start, some, torch.ones(2), [True, True]))
            assert (len(compiled) > before) is (len(found) == 1)
        for _ in range(2):
            fast.forget()  # memory that can be made again: so are programs
            before = len(compiled)
            torch.manual_seed(3)
            fast.reset()
            found.append(fast.grad(*start, some, torch.ones(2), [True, True]))
            assert len(compiled) > before
    assert fast._compiles
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)
    assert float(fast.model.get_buffer("seen")) == 1


def test_an_error_of_one_client_is_its_own_and_ends_no_compiling(compiled: list[Any]) -> None:
    problem = looking()
    fast = CompiledAutograd(problem)
    start = problem.initial()["x"].clone(), problem.initial()["buffers"].clone()
    more = torch.ones(2), [True, True]
    with compiling():
        fast.grad(*start, batch(4), *more)
        fast.grad(*start, batch(4), *more)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            fast.grad(*start, batch(4)._replace(x=torch.randn(4, 7)), *more)
        before = len(compiled)
        fast.grad(*start, batch(4), *more)
    assert fast._compiles
    assert len(compiled) == before > 2


class Drawing(nn.Module):
    """Draws on the host, in all ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found * random.random() * np.random.rand() * torch.rand(())


def test_a_look_at_what_a_module_keeps_draws_nothing() -> None:
    def drawn() -> tuple[Any, ...]:
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    problem = Problem(Drawing(), [Objective("a", "cross-entropy")])
    fast, some = CompiledAutograd(problem), batch(4)
    before = drawn()
    assert fast._replayable(problem.initial()["x"].clone(), torch.zeros(0), some)
    assert drawn() == before
    problem.model(torch.ones(1, 6))
    assert drawn() != before


def test_a_model_that_two_rows_are_too_few_for_is_not_replayed() -> None:
    model = nn.Sequential(nn.Unflatten(0, (2, 2)), nn.Flatten(0, 1), nn.Linear(6, 3))
    problem = Problem(model, [Objective("a", "cross-entropy")])
    assert not CompiledAutograd(problem)._replayable(problem.initial()["x"].clone(), torch.zeros(0), batch(4))


def test_gradients_go_with_whoever_takes_them() -> None:
    gc.collect()
    gc.disable()
    try:
        of = CompiledAutograd(looking())
        gone = weakref.ref(of)
        del of
        assert gone() is None
    finally:
        gc.enable()


class Keeping(nn.Module):
    """Keeps a tensor of its last step, in a buffer or as an attribute."""

    seen: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "buffer":
            self.seen = self.seen + 1
        found: Tensor = self.layer(x)
        if self.how == "attribute":
            self.last = found.detach()
        return found


def keeping(how: str) -> Problem:
    model: nn.Module = Keeping(how)
    if how == "statistics":
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    return Problem(model, [Objective("a", "cross-entropy")])


@pytest.mark.parametrize("how", ["buffer", "attribute", "statistics", "nothing"])
def test_only_modules_that_keep_nothing_are_replayed(
    how: str, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a replayed program gives is written over by the next step."""
    replayed: list[bool] = []
    made = CompiledAutograd._made

    def noted(self: CompiledAutograd, replays: bool) -> Programs:
        replayed.append(replays)
        return made(self, replays)

    monkeypatch.setattr(CompiledAutograd, "_made", noted)
    problem = keeping(how)
    fast, start = CompiledAutograd(problem), problem.initial()
    with compiling():
        for _ in range(2):
            fast.grad(start["x"].clone(), start["buffers"].clone(), batch(4), torch.ones(1), [True])
    assert replayed == [how in ("statistics", "nothing")]  # a layer's own statistics stay in their place


def test_a_buffer_that_is_a_view_is_put_back() -> None:
    model = nn.Linear(4, 2)
    model.register_buffer("places", torch.arange(4).expand(3, -1))
    of = Autograd(Problem(model, [Objective("a", "cross-entropy")]))
    of.reset()
    assert of.model.get_buffer("places").tolist() == [[0, 1, 2, 3]] * 3


def stacked_grad(problem: Problem, clients: int, rows: int) -> Tensor:
    start = problem.initial()
    x, buffers = (start[name].clone().expand(clients, -1).contiguous() for name in ("x", "buffers"))
    images, ones = torch.randn(clients, rows, 4), torch.ones(clients, len(problem.names))
    left, right = torch.randint(0, 2, (2, clients, rows))
    operators = Stacked(problem, HOST, True, {})

    def one(x: Tensor, buffers: Tensor, omega: Tensor, images: Tensor, left: Tensor, right: Tensor) -> Tensor:
        some = Batch(images, {"left": left, "right": right}, torch.ones(rows), {}, {})
        return operators.grad(x, buffers, omega, omega, some)[0]

    with compiling():
        found: Tensor = vmap(one)(x, buffers, ones, images, left, right)
    return found


def of_width(width: int) -> Problem:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, width), nn.Tanh())
    heads = {name: nn.Linear(width, 2) for name in ("left", "right")}
    problem = Problem(Headed(body, heads), [Objective(name, "cross-entropy") for name in heads])
    assert problem.dims  # as an engine has asked: the compiler of Python 3.11 cannot follow the first look
    return problem


def test_another_models_sizes_do_not_vary(compiled: list[list[tuple[Any, ...]]]) -> None:
    """torch takes sizes for variables that differ between two calls of one code; kernels of ours know theirs."""
    for width, rows in ((3, 5), (4, 5), (5, 6), (5, 7)):
        assert stacked_grad(of_width(width), 2, rows).abs().sum() > 0
    assert len(compiled) == 4
    assert all(isinstance(size, int) for graph in compiled for shape in graph for size in shape)


def test_code_is_its_own_and_says_what_it_is_for() -> None:
    f, g, h = (own_code(small_problem, *about) for about in ((1, "a"), (1, "a"), (2, "a")))
    codes = [one.__code__ for one in (f, g, h)]
    assert codes[0] is not codes[1]
    assert codes[0].co_name == codes[1].co_name != codes[2].co_name
    assert f().names == small_problem().names
