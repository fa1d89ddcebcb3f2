"""FMGDA, FSMGDA and their centralised forms against a replay of Algorithm 1 (Yang et al. 2023) in numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from oracles import PARTIAL, SETTINGS, SIZES, Array, Batches, By, Setting, World, run, shortest, world
from polyfed import FMGDA, FSMGDA, Centralised, Layer, Objective, Problem, train
from polyfed.core.fleet import Around, Ids, Stack
from polyfed.core.messages import Request


def accumulated(about: World, x: Array, i: int, s: int, lr: float, steps: Sequence[Any]) -> Array:
    """Step 3: the sum of the gradients of f_si at x^{t,0}, ..., x^{t,K-1}, each on its own rows."""
    w, total = x, np.zeros_like(x)
    for rows in steps:
        g = about.grad(i, s, w, rows)
        w, total = w - lr * g, total + g
    return total


class FSMGDARound:
    """Steps 1 to 7 for the clients heard. batches: every client's rows by step, the same for all its objectives."""

    def __init__(
        self, about: World, x: Array, heard: Sequence[int], *, lr: float, K: int, eta: float, by: By = "uniform",
        batches: Batches | None = None,
    ) -> None:  # fmt: skip
        self.x, self.eta = x, eta
        self.a = dict(zip(heard, about.shares(heard, by), strict=True))
        self.R = {s: [i for i in heard if about.holds[i, s]] for s in range(len(about.names))}
        steps = {i: [slice(None)] * K if batches is None else batches[i][0] for i in heard}
        self.each = {(s, i): accumulated(about, x, i, s, lr, steps[i]) for s, R in self.R.items() for i in R}
        self.W = {s: sum(self.a[i] for i in R) for s, R in self.R.items()}
        there = [s for s, R in self.R.items() if R]  # an objective without a voice has no weight
        means = {s: sum(self.a[i] * self.each[s, i] for i in self.R[s]) / self.W[s] for s in there}
        found = shortest(np.stack([means[s] for s in there]))
        self.lam = np.zeros(len(about.names))
        self.lam[there] = found
        self.d = sum((self.lam[s] * means[s] for s in there), np.zeros_like(x))

    @property
    def after(self) -> Array:
        return self.x - self.eta * self.d

    def without(self, lost: Sequence[int]) -> Array:
        """After a combined upload, some lost between the two exchanges: their part of the sum is missing."""
        parts = [self.lam[s] / self.W[s] * self.a[i] * delta for (s, i), delta in self.each.items() if i not in lost]
        return self.x - self.eta * sum(parts, np.zeros_like(self.x))


PLAIN = Setting()


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def check_replay(about: World, method: Any, setting: Setting = PLAIN, *, batch: bool = False) -> None:
    """Three rounds from the start: the iterates, and the weights."""
    K, lr, eta = method.local_steps, method.lr, method.server_lr * method.lr  # the paper's eta_t is eta_s eta_c
    record = run(about, method, setting)
    replayed, x = about.pooled() if method.pooled else about, about.start
    for t, line in enumerate(record.lines):
        batches = record.runs(t, K) if batch else None
        heard = record.heard(t, setting)
        expected = FSMGDARound(replayed, x, heard, lr=lr, K=K, eta=eta, by=method.weighting_by, batches=batches)
        x = expected.after
        close(record.x[t + 1], x)
        np.testing.assert_allclose(list(line["weights"].values()), expected.lam, atol=1e-7)
        assert np.linalg.norm(record.x[t + 1] - record.x[t]) > 1e-4  # the replay is of something


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("upload", ["full", "combined"])
def test_fmgda(upload: Any, setting: Setting) -> None:
    """Algorithm 1 with full gradients; a combined upload of whole updates is the same direction."""
    method = FMGDA(lr=0.05, local_steps=3, server_lr=0.7, weighting_by=setting.by, upload=upload, width=0)
    check_replay(world(holds=setting.holds), method, setting)


@pytest.mark.parametrize("upload", ["full", "combined"])
def test_objectives_that_nobody_asked_holds(upload: Any) -> None:
    """One client a round: the minimum is over the objectives that it holds."""
    about = world(holds=PARTIAL)
    method = FMGDA(lr=0.05, local_steps=2, upload=upload, width=0)
    setting = Setting(cohort=1, holds=PARTIAL)
    check_replay(about, method, setting)
    for line in run(about, method, setting).lines:
        held = PARTIAL[line["cohort"][0]]
        assert not any(np.array(list(line["weights"].values()))[~held])


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("holds", [None, PARTIAL], ids=["all", "partial"])
@pytest.mark.parametrize("upload", ["full", "combined"])
def test_fsmgda(upload: Any, holds: Any, batch_size: int) -> None:
    """Algorithm 1 with stochastic gradients: xi_i^{t,k} has no index s: all objectives step on the same rows."""
    method = FSMGDA(
        lr=0.03, local_steps=4, batch_size=batch_size, server_lr=0.8, weighting_by="size", upload=upload, width=0
    )
    check_replay(world(holds=holds), method, Setting(cohort=3), batch=True)


def test_a_step_of_all_objectives_has_the_same_rows() -> None:
    """And a pass over a client's rows meets each once."""
    about = world()
    record = run(about, FSMGDA(lr=0.03, local_steps=4, batch_size=3))
    orders = []
    for t in range(3):
        for client, runs in record.runs(t, 4).items():
            assert len(runs) == 3
            for other in runs[1:]:
                assert all(np.array_equal(a, b) for a, b in zip(runs[0], other, strict=True))
            steps = -(-SIZES[client] // 3)
            if steps <= 4:
                order = np.concatenate(runs[0][:steps])
                assert sorted(order) == list(range(SIZES[client]))
                orders.append((client, tuple(order)))
    assert len(set(orders)) > 0.8 * len(orders)  # drawn anew in every round


@pytest.mark.parametrize("batch_size", [0, 7])
def test_centralised(batch_size: int) -> None:
    """MGD and SMGD: one client with everybody's rows, one step a round."""
    method = Centralised(lr=0.1, batch_size=batch_size)
    check_replay(world(), method, batch=bool(batch_size))


def test_one_local_step_of_all_clients_by_size_is_mgd() -> None:
    """Section 3.2: with A all ones, the mean over clients by their sizes is the pooled objective."""
    about = world()
    federated = run(about, FMGDA(lr=0.1, local_steps=1, weighting_by="size"))
    close(federated.x[-1], run(about, Centralised(lr=0.1)).x[-1])


def test_one_distinct_objective_a_client_is_mgd_over_clients() -> None:
    """Section 3.2: A the identity, each objective is optimised by its own client alone."""
    about = world(holds=np.eye(3, dtype=bool), sizes=(4, 9, 6))
    record = run(about, FMGDA(lr=0.1, local_steps=1))
    for t in range(3):
        g = np.stack([about.grad(s, s, record.x[t]) for s in range(3)])
        close(record.x[t + 1], record.x[t] - 0.1 * shortest(g) @ g)


class Between(Layer):
    """Some clients are lost after their sketches have come."""

    stage: ClassVar[Any] = "transport"
    gone: ClassVar[tuple[int, ...]] = (2, 4)

    def fleet(self, inner: Any) -> Any:
        return Dropping(inner)


class Dropping(Around):
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        second = request.work == "sgd-each-combined"
        return self.inner.ask([c for c in clients if not (second and c in Between.gone)], request)


@pytest.mark.parametrize("holds", [None, PARTIAL], ids=["all", "partial"])
def test_clients_lost_between_the_exchanges_of_a_combined_upload(holds: Any) -> None:
    """omega_s = lambda_s / W_s had counted them: what they would have added is missing, and they are counted."""
    about = world(holds=holds)
    method = FMGDA(lr=0.05, local_steps=2, upload="combined", width=0, weighting_by="size")
    record = run(about, method, layers=[Between()])
    for t, line in enumerate(record.lines):
        expected = FSMGDARound(about, record.x[t], range(5), lr=0.05, K=2, eta=0.05, by="size")
        close(record.x[t + 1], expected.without(Between.gone))
        assert line["lost_between"] == len(Between.gone)


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_batch_norm_statistics_are_the_mean_over_clients(by: Any) -> None:
    """A client's statistics after K steps on all its rows, averaged by a_i; all objectives' runs alike."""
    about = world(objectives=2, holds=PARTIAL)
    problem = Problem(
        nn.Sequential(nn.BatchNorm1d(7, affine=False), nn.Linear(7, 1)),
        [Objective("f0", "squared"), Objective("f1", "binary")],
        torch.float64,
    )
    K, kept = 3, 0.9**3  # torch's momentum is 0.1
    found = train(problem, about.federation(), FMGDA(lr=0.05, local_steps=K, weighting_by=by), rounds=1)
    a = about.shares(range(5), by)
    mean = np.average([(1 - kept) * X.mean(0) for X in about.X], axis=0, weights=a)
    var = np.average([kept + (1 - kept) * X.var(0, ddof=1) for X in about.X], axis=0, weights=a)
    state = found.model.state_dict()
    close(state["0.running_mean"].numpy(), mean)
    close(state["0.running_var"].numpy(), var)


def test_a_client_that_holds_nothing_sends_the_buffers_it_got() -> None:
    holds = np.array([[1, 1], [1, 1], [0, 0]], dtype=bool)
    federation = world(objectives=2, holds=holds, sizes=(12, 15, 9), dim=6).federation()
    model = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 1))
    problem = Problem(model, [Objective("f0", "squared"), Objective("f1", "binary")], torch.float64)
    line = train(problem, federation, FMGDA(lr=0.05, local_steps=1), rounds=1).history[0]
    assert line["failures"] == []
