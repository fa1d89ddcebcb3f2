"""MOCHA's theorems (Smith et al. 2017) on small problems, with the paper's own constants where it gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from mocha_cases import LossName, optimum, solve, tasks

from polyfed import CoCoA, GlobalModel, Mocha
from polyfed.algorithms.tasks.regularisers import Clustered, Fixed, Independent, Mean, Regulariser
from polyfed.core.fleet import Around, Ids, PartFleet, Stack
from polyfed.core.layer import Layer, Stage
from polyfed.core.messages import Request
from polyfed.layers.faults import Faults
from polyfed.tasks import MochaEstimator
from polyfed.tasks.engine import open_door
from polyfed.work.linear.examples import Examples

SMOOTH: dict[LossName, float] = {"smoothed-hinge": 0.5, "squared": 1.0, "logistic": 4.0}  # mu: losses are 1/mu-smooth
RULE = Mean(lam1=0.5, lam2=0.2)
RELATED = np.array([[2.0, -0.5, 0, 0.3], [-0.5, 1.5, 0.2, 0], [0, 0.2, 1, -0.4], [0.3, 0, -0.4, 1.2]])


def mbar(rule: Regulariser, m: int) -> np.ndarray:
    return rule.mbar(rule.start(m))


def safe(Mbar: np.ndarray, gamma: float) -> float:
    """(29)."""
    return gamma * float((np.abs(Mbar).sum(1) / Mbar.diagonal()).max())


def widest(examples: list[Examples], Mbar: np.ndarray) -> float:
    """sigma_max of (16)."""
    return max(float(s * np.linalg.norm(e.X, 2) ** 2) for e, s in zip(examples, Mbar.diagonal(), strict=True))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("loss", SMOOTH)
def test_lemma_6_every_round_gains_a_share_of_the_gap(loss: LossName, gamma: float) -> None:
    """(23): D falls by at least s gamma (1 - Theta) G(alpha), s = mu / (mu + sigma_max sigma'), Theta as measured."""
    examples = tasks(loss)
    method = Mocha(loss=loss, regulariser=RULE, gamma=gamma, epochs=0.6, measure_theta=True)
    Mbar = mbar(RULE, 4)
    s = SMOOTH[loss] / (SMOOTH[loss] + widest(examples, Mbar) * safe(Mbar, gamma))
    _, fleet = open_door(examples)
    state: dict[str, Any] = method.begun(dict(fleet.problem.initial()), fleet)
    for t in range(1, 16):
        fleet.begin(t)
        before = method.measure(state, fleet)
        state, found = method.round(t, state, fleet)
        assert isinstance(found["theta"], dict)
        theta = max(found["theta"].values())
        gained = method.measure(state, fleet)["dual"] - before["dual"]
        assert 0 < theta < 1
        assert gained >= s * gamma * (1 - theta) * before["gap"] - 1e-12
    assert before["gap"] > 1e-6  # there was something to gain until the end


def distances(method: Mocha, examples: list[Examples], best: float, rounds: int, drop: float = 0.0) -> np.ndarray:
    """D(alpha^h) - D(alpha*) after each round: what the paper minimises is minus our dual."""
    duals: list[float] = []
    layer = Faults(drop=drop) if drop else None
    solve(examples, method, rounds=rounds, gap=-1, layer=layer,
          each=lambda t, state, engine, fleet: duals.append(method.measure(state, fleet)["dual"]))  # fmt: skip
    return best - np.array(duals)


@pytest.mark.parametrize("loss", SMOOTH)
def test_theorem_1_is_linear_for_smooth_losses_with_and_without_dropped_nodes(loss: LossName) -> None:
    """(26) for nodes that reach theta = 0.5 when they answer, Theta = p + (1 - p) theta; dropping costs about 1 - p."""
    examples, Mbar, rounds = tasks(loss), mbar(RULE, 4), 60
    best = optimum(examples, loss, np.linalg.inv(Mbar) / 2)[0]
    method = CoCoA(loss=loss, regulariser=RULE, theta=0.5)
    s = SMOOTH[loss] / (SMOOTH[loss] + widest(examples, Mbar) * safe(Mbar, 1.0))
    rate = {}
    for p in (0.0, 0.5):
        found = distances(method, examples, best, rounds, p)
        bound = (1 - s * (1 - p) * 0.5) ** np.arange(1, rounds + 1) * sum(len(e.y) for e in examples)
        assert (found <= bound + 1e-9).all()
        seen = np.flatnonzero(found > 1e-7)
        rate[p] = float(np.polyfit(seen, np.log(found[seen]), 1)[0])
        halves = [np.polyfit(part, np.log(found[part]), 1)[0] for part in np.array_split(seen, 2)]
        assert halves[1] < 0.5 * halves[0] < 0  # as fast in the end as in the beginning
    assert 0.3 < rate[0.5] / rate[0.0] < 0.8


def test_theorem_2_is_one_over_h_for_the_hinge() -> None:
    """The mean of the iterates H/2 + 1 ... H: H times its duality gap does not grow, with half of the nodes dropped."""
    gaps = []
    for H in (16, 64, 256):
        method = Mocha(loss="hinge", regulariser=RULE, epochs=1, average_from=H // 2)
        gaps.append(H * solve(tasks(), method, rounds=H, gap=-1, layer=Faults(drop=0.5))[1]["gap"])
    assert gaps[2] < 1.2 * gaps[1] < 1.5 * gaps[0]


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared"])
def test_assumption_2_a_node_that_never_answers_leaves_its_loss_out(loss: LossName) -> None:
    """p_t^h = 1 for one node: the limit is the optimum with its task's loss deleted, not that of all tasks."""
    examples = tasks(loss)
    method = Mocha(loss=loss, regulariser=RULE, epochs=10)
    state, _ = solve(examples, method, rounds=400, layer=Faults(silent=[1]))
    A = np.linalg.inv(mbar(RULE, 4)) / 2
    without, W = optimum(examples, loss, A, c=[1.0, 0.0, 1.0, 1.0])
    assert np.allclose(state["W"], W, atol=1e-3)
    full, everybody = optimum(examples, loss, A)
    assert np.abs(W - everybody).max() > 0.05
    assert without < full - 0.1


def test_assumption_2_any_chance_below_one_is_enough() -> None:
    """A node that answers one round in twenty: the optimum of all tasks."""
    examples = tasks("squared")
    method = Mocha(loss="squared", regulariser=RULE, epochs=10, gamma=0.7)
    state, found = solve(examples, method, rounds=1500, layer=Faults(drop=[0.95, 0.0, 0.3, 0.0]))
    assert found["gap"] < 1e-8
    assert np.allclose(state["W"], optimum(examples, "squared", np.linalg.inv(mbar(RULE, 4)) / 2)[1], atol=1e-4)


# -- sigma' (Lemma 9, Remarks 4 and 5)


class Noted(Layer):
    """Keeps s = sigma' Mbar_tt of every node that is asked."""

    stage: ClassVar[Stage] = "transport"

    def __init__(self) -> None:
        self.s: list[np.ndarray] = []

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Noting(inner, self)


class _Noting(Around):
    def __init__(self, inner: PartFleet, noted: Noted) -> None:
        super().__init__(inner)
        self._noted = noted

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if request.work == "sdca":
            self._noted.s.append(request.each["s"].numpy().copy())
        return self.inner.ask(clients, request)


@pytest.mark.parametrize("gamma", [1.0, 0.4])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        (Fixed(omega=RELATED.tolist(), lam1=0.4), [0, 1, 2, 3]),
        (Fixed(omega=RELATED[:2, :2].tolist(), lam1=0.4), [0, 1, 1, 1]),
        (Clustered(lam=0.5, clusters=2), [0, 1, 2, 3]),
    ],
)
def test_lemma_9_sigma_is_safe(rule: Any, nodes: list[int], own: bool, gamma: float) -> None:
    """(28): sigma' sum_t |X_t a_t|^2_Mt >= gamma |X a|^2_M, nodes of one task counted each (Remark 4)."""
    noted = Noted()
    method = Mocha(loss="squared", regulariser=rule, gamma=gamma, per_task_sigma=own, tasks=nodes, omega_every=2)
    omegas: list[np.ndarray] = [rule.start(max(nodes) + 1)]
    solve(tasks("squared"), method, rounds=5, gap=-1, layer=noted,
          each=lambda t, state, engine, fleet: omegas.append(state["omega"].numpy()))  # fmt: skip
    for s, omega in zip(noted.s, omegas, strict=False):
        M = rule.mbar(omega)[np.ix_(nodes, nodes)]
        assert np.linalg.eigvalsh(np.diag(s) - gamma * M).min() >= -1e-12
        assert own or np.ptp(s / M.diagonal()) < 1e-12  # one sigma' for all, unless each has its own


def test_remark_4_one_task_of_many_nodes_has_the_least_sigma_that_is_safe() -> None:
    noted = Noted()
    solve(tasks("squared"), GlobalModel(loss="squared", regulariser=Independent(lam=0.5)), rounds=1, layer=noted)
    assert np.allclose(noted.s[0], 4.0)  # four nodes, Mbar = 1: the ones matrix has the eigenvalue 4


# -- what it is for


def related(seed: int, m: int = 8, d: int = 12, n: int = 18) -> tuple[list[Any], ...]:
    """Tasks in two opposed groups, each task a little off its group's centre; many rows to judge by."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d)
    parts: list[list[np.ndarray]] = [[], [], [], []]
    for t in range(m):
        w = (1 if t % 3 else -1) * centre + 0.3 * rng.normal(size=d)
        for k, rows in ((0, n), (2, 400)):
            X = rng.normal(size=(rows, d))
            parts[k].append(X)
            parts[k + 1].append(np.where(X @ w + 0.3 * rng.normal(size=rows) > 0, 1.0, -1.0))
    return tuple(parts)


def test_related_tasks_gain_from_one_another() -> None:
    """Table 1's order, error of MTL below local below global, each at its best lambda; tasks in two groups (12)."""
    errors = {"global": 0.0, "local": 0.0, "mtl": 0.0}
    for seed in range(3):
        X, y, Xt, yt = related(seed)
        every: dict[str, list[float]] = {name: [] for name in errors}
        for lam in (0.1, 1.0, 10.0):
            how: dict[str, Any] = {"lam": lam, "intercept": False, "tol": 1e-2}
            one = MochaEstimator(regulariser="independent", **how).fit([np.vstack(X)], [np.concatenate(y)])
            every["global"].append(1 - one.score([np.vstack(Xt)], [np.concatenate(yt)]))
            for name, rule in (("local", "independent"), ("mtl", "clustered")):
                every[name].append(1 - MochaEstimator(regulariser=rule, **how).fit(X, y).score(Xt, yt))
        for name in errors:
            errors[name] += min(every[name]) / 3
    assert errors["mtl"] < 0.9 * errors["local"]
    assert errors["local"] < 0.9 * errors["global"]
