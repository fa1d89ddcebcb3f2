"""What every engine must hold: each work gives what the local engine gives, in order, weighed, remembered, or failed.

from polyfed.testing import check_engine

def test_my_engine():
    check_engine(lambda parts, layers: MyEngine(parts, layers), exact=True)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Metered, Stack, Sum
from polyfed.core.layer import Layer, Layers, Outgoing
from polyfed.core.messages import Request
from polyfed.core.part import Part, Parts
from polyfed.core.work import works
from polyfed.layers.attacks import Misreport
from polyfed.testing.doors import small_federation, small_problem, small_task_part

Factory = Callable[[Parts, Layers], Engine]
MODEL, TASKS = "model", "tasks"  # the two parts that an engine is tried on
CLIENTS = [0, 2, 3, 5]


@dataclass(frozen=True)
class Case:
    """One request: of which part, with which arrays, after which other request of the same round."""

    work: str
    part: str = MODEL
    options: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    each: Mapping[str, Tensor] = field(default_factory=dict)
    after: str = ""

    def request(self) -> Request:
        return Request(self.work, dict(self.shared), dict(self.each), dict(self.options))


def _cases() -> dict[str, Case]:
    problem = small_problem()
    model = problem.initial()
    trained = {**model, "omega": torch.tensor([0.4, 0.6], dtype=torch.float64)}
    local = {"lr": 0.1, "steps": 3, "batch_size": 5, "weight": "size"}
    adamw = {"optimizer": "adamw", "weight_decay": 0.3, "clip": 0.2}
    size = {"rows": 2, "columns": problem.dim, "over": "all"}
    sketch = {**local, "compress": {"name": "sketch", "width": 8}, **size}
    exact = {**local, "compress": {"name": "exact"}, **size}
    each = {**local, "k": 8, "over": "all"}
    task = {"loss": "hinge", "smoothing": 0.5}
    node: dict[str, Tensor] = {
        "w": torch.zeros(len(CLIENTS), 5, dtype=torch.float64),
        "c": torch.ones(len(CLIENTS), dtype=torch.float64),
    }
    budget = {"budget": torch.full((len(CLIENTS),), 6)}
    sdca = {**node, **budget, "s": torch.ones(len(CLIENTS), dtype=torch.float64)}
    zeros = torch.zeros(2, problem.dim, dtype=torch.float64)
    omega, of_task = {"omega": trained["omega"]}, small_task_part().problem.initial()
    return {
        "sgd": Case("sgd", options=local, shared=trained),
        "sgd in epochs": Case("sgd", options={**local, "steps": 0, "epochs": 2}, shared=trained),
        "sgd with momentum": Case("sgd", options={**local, "momentum": 0.9, "mu": 0.1}, shared=trained),
        "adamw, clipped": Case("sgd", options={**local, **adamw}, shared=trained),
        "jacobian": Case("jacobian", options=sketch, shared=model),
        "residual": Case("residual", options=exact, shared={**model, "h.H": zeros}),
        "sgd-jacobian": Case("sgd-jacobian", options=sketch, shared=trained),
        "full-jacobian": Case("full-jacobian", shared=model),
        "exact-jacobian": Case("exact-jacobian", options=sketch, shared=model),
        "sgd-each": Case("sgd-each", options=local, shared=model),
        "sgd-each-sketch": Case("sgd-each-sketch", options=each, shared=model),
        "sgd-each-combined": Case("sgd-each-combined", options=each, shared=omega, after="sgd-each-sketch"),
        "q-sgd": Case("q-sgd", options={**local, "q": 1.0, "L": 2.0}, shared=trained),
        "gradient": Case("gradient", options={"batch_size": 5}, shared=trained),
        "evaluate": Case("evaluate", options={"split": "train"}, shared=model),
        "whole split": Case("evaluate", TASKS, {"split": "train", "statistics": True}, of_task),
        "progress": Case("progress", options={"work": "sgd", "options": local}, shared=trained),
        "personalise": Case("personalise", options={**local, **adamw, "split": "train"}, shared=trained),
        "moments": Case("moments", TASKS),
        "task-gradient": Case("task-gradient", TASKS, task, each={**node, **budget}),
        "sdca": Case("sdca", TASKS, {**task, "gamma": 1.0}, each=sdca),
        "task-values": Case("task-values", TASKS, task, each=node, after="sdca"),
    }


CASES = _cases()


class _Halved(Layer):
    """A client's half for the check: updates and gradients halved, selected as under vmap."""

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        about = out.named("update", "gradient")
        return {name: 0.5 * a if name in about else a for name, a in out.arrays.items()}


class _Counted(Layer):
    """A client's half that remembers: updates grow with the number of times a client was asked."""

    remembers = True

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        calls = out.state.get("counted.calls", torch.zeros((), dtype=torch.float64)) + 1
        out.state = {**out.state, "counted.calls": calls}
        about = out.named("update", "gradient")
        return {name: calls * a if name in about else a for name, a in out.arrays.items()}


LAYERS = (
    Layers(), Layers((_Halved(),)), Layers((Misreport(clients=[3], factor=2.0), _Halved())), Layers((_Counted(),)),
)  # fmt: skip


def check_engine(factory: Factory, *, exact: bool = False, rtol: float = 1e-8) -> None:
    """Run every work on an engine and compare with the local engine; an AssertionError says what differs.

    Every work is asked in two rounds under no layer, a client's half, an attack by one client, and a half that
    remembers; then sums, memory over lost replies and checkpoints, and failures are looked at.

    Args:
        factory: from parts and layers to an engine.
        exact: whether replies must be equal to the last bit.
        rtol: else, how far they may be apart, relative to their size.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an engine may say that it goes client by client
        for layers in LAYERS:
            with _opened(factory, layers) as (ours, _), _opened(engines["local"], layers) as (reference, _):
                for t, name in product((1, 2), CASES):
                    _compare(name, ours, reference, exact, rtol, t)
        _check_sums(factory, rtol)
        _check_memory(factory)
        _check_failures(factory)


@contextmanager
def _opened(factory: Factory, layers: Layers | None = None) -> Iterator[tuple[dict[str, Door], Engine]]:
    """A door for each part of a fresh engine."""
    layers = layers or Layers()
    parts = {MODEL: Part(small_problem(), small_federation()), TASKS: small_task_part()}
    engine = factory(parts, layers)
    meter = Metered(engine)
    try:
        views = {name: PartView(meter, name, engine.population[name], Clock(7, layers)) for name in parts}
        yield {n: Door(layers.fleet(v), parts[n].problem, cohort=6) for n, v in views.items()}, engine
    finally:
        engine.close()


def _ask(doors: Mapping[str, Door], case: Case, t: int = 1) -> list[Stack]:
    door = doors[case.part]
    door.begin(t)
    if case.after:
        list(door.ask(CLIENTS, CASES[case.after].request()))
    return list(door.ask(CLIENTS, case.request()))


def _joined(stacks: list[Stack]) -> dict[str, Tensor]:
    return {name: torch.cat([s[name] for s in stacks]) for name in stacks[0].arrays}


def _compare(
    name: str, ours: Mapping[str, Door], reference: Mapping[str, Door], exact: bool, rtol: float, t: int
) -> None:
    found, wanted = _ask(ours, CASES[name], t), _ask(reference, CASES[name], t)
    order = [client for stack in found for client in stack.clients]
    assert order == CLIENTS, f"{name}: replies should come in the order {CLIENTS}; found {order}"
    for array, value in _joined(wanted).items():
        got = _joined(found)[array]
        same = torch.equal(got, value) if exact else torch.allclose(got, value, rtol=rtol, atol=rtol)
        assert same, f"{name}: {array!r} is off by {(got - value).abs().max():.1e}"


def _check_sums(factory: Factory, rtol: float) -> None:
    """A sum is the sum of what `ask` gives, times the weights."""
    with _opened(factory) as (doors, _):
        for name in ("sgd", "jacobian", "residual", "moments", "whole split"):
            case = CASES[name]
            wanted = Sum.of(stack.weighed(case.request()) for stack in _ask(doors, case))
            total = doors[case.part].sum(CLIENTS, case.request())
            assert list(total.clients) == CLIENTS, f"{name}: the sum should be over {CLIENTS}; found {total.clients}"
            for array, value in total.arrays.items():
                close = torch.allclose(value, wanted[array], rtol=rtol, atol=rtol)
                assert close, f"{name}: the sum of {array!r} is not the sum of the replies times their weights"


def _check_memory(factory: Factory) -> None:
    """State counts when its reply was used, a lost reply is as if never made, and a checkpoint brings it all back."""
    with _opened(factory) as (doors, engine):
        before = _duals(doors, 1)
        _ask(doors, CASES["sdca"], 2)
        after = _duals(doors, 2)
        assert not torch.equal(before, after), "work that keeps state should go on from it"
        doors[TASKS].begin(3)
        list(doors[TASKS].inner.ask(CLIENTS, CASES["sdca"].request()))  # nobody uses these replies
        assert torch.equal(_duals(doors, 4), after), "a reply that was not used should leave no state behind"
        saved, clock = engine.tree(), doors[TASKS].clock.tree()
    if engine.durable:
        return
    with _opened(factory) as (doors, engine):
        engine.load(saved)
        doors[TASKS].clock.load(clock)
        assert torch.equal(_duals(doors, 5), after), "an engine loaded from its tree should go on as if never stopped"


def _duals(doors: Mapping[str, Door], t: int) -> Tensor:
    """What the clients' dual variables come to."""
    return _joined(_ask(doors, replace(CASES["task-values"], after=""), t))["conjugate"]


def _check_failures(factory: Factory) -> None:
    """A client that fails is an answer: the others' replies are there, and it is named."""
    with _opened(factory) as (doors, _):
        door = doors[MODEL]
        door.begin(1)
        bad = replace(CASES["gradient"], each={"omega": torch.tensor([[1.0, 1.0], [float("nan"), 1.0]]).double()})
        answered = [c for stack in door.ask([0, 3], bad.request()) for c in stack.clients]
        assert answered == [0], f"client 3 should have failed and client 0 answered; found {answered}"
        assert [client for client, _ in door.failures] == [3], "a failing client should be named"


def uncovered() -> set[str]:
    """Work of the package that no case tries."""
    ours = {name for name in works if works[name].do.__module__.startswith("polyfed.")}
    return ours - {case.work for case in CASES.values()}
