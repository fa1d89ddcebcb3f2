"""The seams under load: toy algorithms that no engine knows about, each on `local` and on `wire`.

If one of them needed a special case anywhere in the package, the seam would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed import FedAvg, Wrappers
from polyfed.algorithms import State
from polyfed.client.runner import Bench
from polyfed.core.client import Client, Perform
from polyfed.core.errors import NobodyAnswered
from polyfed.core.fleet import Around, Door, Fleet, Ids, Metered, Stack
from polyfed.core.keys import key, permutation
from polyfed.core.messages import Request
from polyfed.core.problem import Batch, Problem
from polyfed.core.work import Arrays, work, works
from polyfed.engines import engines
from small import small_federation, small_problem


def door(
    engine: str, *, around: Callable[[Fleet], Fleet] = lambda fleet: fleet, wrappers: Wrappers | None = None, **kw: Any
) -> Door:
    problem = small_problem()
    inner = engines[engine](problem, small_federation(**kw), wrappers or Wrappers())
    return Door(around(Metered(inner)), problem, seed=0, cohort=4)


# -- two exchanges a round: the second does not send x again, and the client draws the same batch


@work("toy-gradient", reply={"g": "d"})
def toy_gradient(client: Client, request: Request) -> Arrays:
    def step(g: Tensor, batch: Batch, i: int) -> Tensor:
        return client.grad(request["x"], request["buffers"], batch, torch.ones_like(client.holds))[0]

    return {"g": client.loop(step, torch.zeros_like(request["x"]), steps=1, batch_size=5)}


@work("toy-agreement", reply={"g": "d", "agreement": ""})
def toy_agreement(client: Client, request: Request) -> Arrays:
    g = toy_gradient(client, request)["g"]
    return {"g": g, "agreement": torch.dot(g, request["direction"])}


@dataclass
class TwoExchanges:
    """Steps along the mean gradient, as far as the clients agree with it."""

    def init(self, problem: Problem) -> State:
        return dict(problem.initial())

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Mapping[str, Any]]:
        cohort = fleet.cohort(t)
        first = torch.cat([s["g"] for s in fleet.ask(cohort, Request("toy-gradient", state))])
        mean = first.mean(0)
        second = list(fleet.ask(cohort, Request("toy-agreement", {"direction": mean})))
        assert torch.equal(torch.cat([s["g"] for s in second]), first)
        rate = torch.cat([s["agreement"] for s in second]).mean() / mean.square().sum()
        return {**state, "x": state["x"] - 0.1 * rate * mean}, {}


def test_two_exchanges(engine: str) -> None:
    fleet, problem = door(engine), small_problem()
    state = TwoExchanges().init(problem)
    for t in (1, 2):
        fleet.begin(t)
        state, _ = TwoExchanges().round(t, state, fleet)
    assert not torch.equal(state["x"], problem.initial()["x"])


def test_what_a_round_sent_is_forgotten_in_the_next(engine: str) -> None:
    fleet = door(engine)
    fleet.begin(1)
    list(fleet.ask([0, 1], Request("toy-gradient", small_problem().initial())))
    fleet.begin(2)
    with pytest.raises(NobodyAnswered, match="carries no array 'x'"):
        list(fleet.ask([0, 1], Request("toy-agreement", {"direction": torch.zeros(small_problem().dim)})))


def test_a_client_that_was_not_asked_first_has_no_model(engine: str) -> None:
    fleet = door(engine)
    fleet.begin(1)
    list(fleet.ask([0], Request("toy-gradient", small_problem().initial())))
    stacks = list(fleet.ask([0, 1], Request("toy-agreement", {"direction": torch.zeros(small_problem().dim)})))
    assert [c for s in stacks for c in s.clients] == [0]
    assert fleet.failures[0][0] == 1


# -- a row per client and durable state, with replies lost after the work was done


@work("toy-save", reply={"saved": ""}, state=lambda client: {"total": torch.zeros(())})
def toy_save(client: Client, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    total = state["total"] + request["amount"]
    return {"saved": request["amount"]}, {"total": total}


@work("toy-balance", reply={"total": ""}, state=lambda client: {"total": torch.zeros(())})
def toy_balance(client: Client, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"total": state["total"]}, state


class Lossy(Around):
    """Loses some replies after the work was done."""

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in self.inner.ask(clients, request):
            lost = [c for c in stack.clients if request.work == "toy-save" and key(9, request.round, c) % 3 == 0]
            yield stack.drop(dict.fromkeys(lost, "lost on the way"))


@pytest.mark.parametrize("interrupted", [False, True])
def test_lost_replies_never_leave_client_and_server_apart(engine: str, interrupted: bool) -> None:
    fleet = door(engine, around=Lossy)
    books = torch.zeros(6)
    lost = 0
    for t in range(1, 20):
        fleet.begin(t)
        cohort = fleet.cohort(t)
        amounts = torch.tensor([float(10 * t + c) for c in cohort])
        for stack in fleet.ask(cohort, Request("toy-save", each={"amount": amounts})):
            books[list(stack.clients)] += stack["saved"]
        lost += len(fleet.failures)
        if interrupted and t % 5 == 0:  # everything through a checkpoint into a fresh fleet
            saved, tree = dict(fleet.folded), fleet.inner.inner.inner.tree()  # type: ignore[attr-defined]
            fleet = door(engine, around=Lossy)
            fleet.folded = saved
            fleet.inner.inner.inner.load(tree)  # type: ignore[attr-defined]
    fleet.begin(20)
    everyone = list(range(6))
    totals = torch.cat([s["total"] for s in fleet.ask(everyone, Request("toy-balance"))])
    assert lost > 5
    assert torch.equal(totals, books)


# -- every client's vector; and only the sum


def test_an_algorithm_may_hold_every_vector(engine: str) -> None:
    fleet, start = door(engine), small_problem().initial()
    fleet.begin(1)
    stacks = list(fleet.ask(range(6), Request("toy-gradient", start)))
    vectors = torch.cat([s["g"] for s in stacks])
    assert vectors.shape == (6, small_problem().dim)
    assert [c for s in stacks for c in s.clients] == list(range(6))
    assert vectors.median(0).values.shape == start["x"].shape


def test_a_sum_is_the_sum_of_what_ask_gives(engine: str) -> None:
    fleet, start = door(engine), small_problem().initial()
    fleet.begin(1)
    vectors = torch.cat([s["g"] for s in fleet.ask(range(6), Request("toy-gradient", start))])
    total = fleet.sum(range(6), Request("toy-gradient", start))
    assert list(total.clients) == list(range(6))
    assert torch.allclose(total["g"], vectors.sum(0))


# -- around the work, where the data is


def scale_attack(client_id: int, factor: float) -> Callable[[Perform], Perform]:
    def around(inner: Perform) -> Perform:
        def attacked(client: Client, request: Request, state: Any) -> Any:
            arrays, state = inner(client, request, state)
            return {n: a * factor if client.id == client_id else a for n, a in arrays.items()}, state

        return attacked

    return around


def clip(limit: float) -> Callable[[Perform], Perform]:
    def around(inner: Perform) -> Perform:
        def clipped(client: Client, request: Request, state: Any) -> Any:
            arrays, state = inner(client, request, state)
            g = torch.as_tensor(arrays["g"])
            return {**arrays, "g": g * min(1.0, limit / float(g.norm()))}, state

        return clipped

    return around


def test_attack_and_clip_happen_at_the_client_in_this_order(engine: str) -> None:
    wrappers = Wrappers(attacks=(scale_attack(2, 1e6),), guards=(clip(0.5),))
    fleet, start = door(engine, wrappers=wrappers), small_problem().initial()
    fleet.begin(1)
    norms = torch.cat([s["g"].norm(dim=1) for s in fleet.ask(range(6), Request("toy-gradient", start))])
    assert norms[2] == pytest.approx(0.5)
    assert (norms <= 0.5 + 1e-6).all()


def test_an_attack_that_is_not_a_number_is_stopped_before_the_clip(engine: str) -> None:
    wrappers = Wrappers(attacks=(scale_attack(2, float("nan")),), guards=(clip(0.5),))
    fleet = door(engine, wrappers=wrappers)
    fleet.begin(1)
    list(fleet.ask(range(6), Request("toy-gradient", small_problem().initial())))
    assert fleet.failures == [(2, "FloatingPointError: 'g' holds NaN or infinity")]


# -- the same work function, vmapped


@dataclass
class VmapClient:
    """Many clients as one program: what a batched engine will do, in thirty lines."""

    problem: Problem
    key: int
    n: Tensor
    holds: Tensor
    x: Tensor
    targets: dict[str, Tensor]
    index: Tensor  # (steps, batch)

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def total(x: Tensor) -> tuple[Tensor, Tensor]:
            out = torch.func.functional_call(self.problem.model, self.problem.split(x), (batch.x,))
            losses = torch.stack(self.problem.losses(out, batch, [True] * len(self.problem.names))) * self.holds
            return losses @ omega, losses

        g, losses = torch.func.grad(total, has_aux=True)(x)
        return g, losses, buffers

    def loop(self, step: Callable[..., Any], carry: Any, *, steps: int, **_: Any) -> Any:
        for i in range(steps):
            rows = self.index[i]
            carry = step(carry, Batch(self.x[rows], {n: t[rows] for n, t in self.targets.items()}), i)
        return carry


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"mu": 0.5}])
def test_a_work_function_can_be_vmapped(options: dict[str, Any]) -> None:
    problem, federation = small_problem(), small_federation(holds={"left": [True, False, True, True, True, True]})
    request = Request(
        "sgd", {**problem.initial(), "omega": torch.tensor([0.4, 0.6])}, round=3,
        options={"lr": 0.1, "steps": 3, "batch_size": 5, "weight": "size", **options},
    )  # fmt: skip
    bench = Bench(problem, federation, Wrappers())
    alone = [bench(c, request, None)[0].arrays for c in range(6)]

    def index(c: int) -> np.ndarray:
        return federation.rows("train", c)[permutation(key(key(0, 3, c), "batch", 0), 20)][:15].reshape(3, 5)

    holds = torch.from_numpy(federation.matrix(problem.names)).float()
    n = torch.from_numpy(federation.examples).float()

    def one(n: Tensor, holds: Tensor, rows: Tensor) -> Mapping[str, Tensor]:
        client = VmapClient(problem, 0, n, holds, federation.x, dict(federation.targets), rows)
        return works["sgd"].do(client, request)  # type: ignore[no-any-return]

    together = torch.func.vmap(one)(n, holds, torch.from_numpy(np.stack([index(c) for c in range(6)])))
    for name in together:
        assert torch.allclose(together[name], torch.stack([a[name] for a in alone]), atol=1e-5), name


# -- who may be asked


def test_cohorts_are_uniform_and_keyed() -> None:
    fleet = door("local")
    assert fleet.cohort(5) == fleet.cohort(5)
    assert fleet.cohort(5, "other") != fleet.cohort(5) or fleet.cohort(6, "other") != fleet.cohort(6)
    counts = np.bincount([c for t in range(3000) for c in fleet.cohort(t)], minlength=6)
    assert abs(counts - 2000).max() < 150


def test_clients_without_examples_are_not_drawn() -> None:
    federation = small_federation()
    lengths = federation.train.length.copy()
    lengths[[1, 4]] = 0
    federation = replace(federation, train=replace(federation.train, length=lengths))
    fleet = Door(engines["local"](small_problem(), federation, Wrappers()), small_problem(), seed=0, cohort=6)
    assert fleet.cohort(1) == [0, 2, 3, 5]


def test_bytes_counted_are_bytes_sent(tmp_path: Path) -> None:
    from polyfed.engines.wire import Wire

    def broken(inner: Perform) -> Perform:
        def maybe(client: Client, request: Request, state: Any) -> Any:
            if client.id == 3:
                raise ValueError("a broken client")
            return inner(client, request, state)

        return maybe

    problem = small_problem()
    wire = Wire(problem, small_federation(), Wrappers(attacks=(broken,)))
    meter = Metered(wire)
    fleet = Door(meter, problem, seed=0, cohort=6)
    state: State = dict(problem.initial())
    for t in (1, 2):
        fleet.begin(t)
        state, _ = FedAvg(local_steps=1).round(t, state, fleet)
        list(fleet.ask([0, 1], Request("toy-save", each={"amount": torch.ones(2)})))
        list(fleet.ask(range(6), Request("evaluate", state, options={"split": "train"})))
    assert (meter.up, meter.down) == (wire.up, wire.down)
    assert meter.up > 0
