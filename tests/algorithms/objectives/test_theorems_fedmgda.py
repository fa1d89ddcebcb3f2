"""What Hu et al. 2022 ("Federated Learning Meets Multi-Objective Optimization") prove and claim, on small problems."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from oracles import (
    Array,
    Record,
    Setting,
    World,
    column,
    dent,
    points,
    run,
    shortest,
    world,
)  # fmt: skip
from polyfed import (
    AFL,
    Algorithm,
    FedAvg,
    FedAvgN,
    FedMGDA,
    FedMGDAPlus,
    FedProx,
    MGDAProx,
    Misreport,
    QFedAvg,
    train,
)  # fmt: skip
from polyfed.algorithms.base import InverseDecay, StepDecay

VANISHING = InverseDecay(beta=4.0, gamma=5.0)
ONE_STEP: dict[str, Any] = {"lr": 0.1, "local_steps": 1, "batch_size": 0}


def users(seed: int = 0) -> World:
    """Four users' least squares in R^6, each strongly convex."""
    return world(objectives=1, sizes=(9, 12, 8, 15), dim=6, seed=seed)


def gradients(about: World, x: Array) -> Array:
    return np.stack([about.grad(i, 0, x) for i in range(len(about.X))])


def losses(about: World, x: Array) -> Array:
    return np.array([about.loss(i, 0, x) for i in range(len(about.X))])


def smoothness(about: World) -> float:
    """L, the largest curvature of any user's loss."""
    return max(float(np.linalg.eigvalsh(2 * X.T @ X / len(X)).max()) for X in about.X)


# Theorem 1: Pareto stationarity


def dents(method: Algorithm, rounds: int, **how: Any) -> Array:
    """|J_f(w_t) lambda_t| of three users with smooth losses that are not convex."""
    centres = np.random.default_rng(0).normal(size=(3, 1, 1, 5)) / 2
    problem, federation = points([dent], centres, np.array([1.5, -1.0, 1.0, 2.0, -1.2]))
    asked = {"client_stationarity": how.pop("every", 1), "every": rounds}
    result = train(problem, federation, method, rounds=rounds, evaluate=asked, **how)
    return np.array([line["client_stationarity"] for line in result.history if "client_stationarity" in line])


@pytest.mark.parametrize("kind", [FedMGDA, FedMGDAPlus])
def test_theorem_1a_users_become_stationary_with_one_local_step(kind: Any) -> None:
    """Theorem 1a, k = r = 1: eta_t -> 0 with a diverging sum gives min_t |J_f lambda_t|^2 -> 0."""
    method = kind(lr=1.0, local_steps=1, batch_size=0, eps=1.0, server_lr=VANISHING)
    found = np.minimum.accumulate(dents(method, 60))
    assert found[0] > 0.05
    assert found[30] < 0.5 * found[0]
    assert found[-1] < 0.05 * found[0]


def test_theorem_1b_several_local_steps_need_a_vanishing_local_rate() -> None:
    """Theorem 1b, k > 1: users become stationary if eta_t -> 0 and eta_t^l -> 0, and do not with a constant eta^l."""
    rates: tuple[float | InverseDecay, ...] = (InverseDecay(beta=4.0, gamma=9.0), 0.4)
    methods = (FedMGDAPlus(lr=rate, local_steps=4, batch_size=0, eps=1.0, server_lr=VANISHING) for rate in rates)
    vanishing, constant = (dents(method, 60, every=60)[-1] for method in methods)
    assert vanishing < 0.3 * constant


# (24): nobody is hurt


@pytest.mark.parametrize("cohort", ["all", 2])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_direction_is_a_descent_direction_of_all_participants(normalise: bool, cohort: Any) -> None:
    """After (24): <g_i, d> >= |d|^2 for eps = 1, and >= |g_i| |d|^2 for normalised updates, in every round."""
    about = users()
    record = run(about, FedMGDA(normalise=normalise, server_lr=0.5, **ONE_STEP), Setting(cohort=cohort), rounds=8)
    for t, line in enumerate(record.lines):
        d = (record.x[t] - record.x[t + 1]) / 0.5
        g = 0.1 * gradients(about, record.x[t])[line["cohort"]]
        least = np.linalg.norm(g, axis=1) if normalise else 1.0
        assert (g @ d >= least * (d @ d) - 1e-12).all()
        assert d @ d > 1e-10


def improved(method: Algorithm, cohort: Any) -> tuple[Array, Record, World]:
    about = users()
    record = Record(about)
    result = train(
        about.problem(), about.federation(), method, rounds=25, cohort=cohort, callbacks=[record],
        evaluate={"improved": True, "every": 25},
    )  # fmt: skip
    return column(result.history, "improved"), record, about


@pytest.mark.parametrize("cohort", ["all", 3])
def test_no_participants_loss_rises(cohort: Any) -> None:
    """(24): with eta <= 1 / L and one full-batch step no participant's loss ever rises; FedAvg hurts some."""
    share, record, about = improved(FedMGDA(lr=1 / smoothness(users()), local_steps=1, batch_size=0), cohort)
    assert (share == 1.0).all()
    for t, line in enumerate(record.lines):
        rise = (losses(about, record.x[t + 1]) - losses(about, record.x[t]))[line["cohort"]]
        assert (rise <= 1e-12).all()
    hurt, _, _ = improved(FedAvg(lr=1 / smoothness(users()), local_steps=1, batch_size=0), cohort)
    assert hurt.min() < 1


def test_decaying_steps_make_everybody_improve_although_normalised() -> None:
    """Section VI, Figure 4 (right): full batches, decaying steps: FedMGDA+'s share of improved users tends to 100 %."""
    decay = StepDecay(start=0.5, decay=0.8)
    share, _, _ = improved(FedMGDAPlus(eps=1.0, server_lr=decay, **ONE_STEP), "all")
    assert (share[10:] == 1.0).all()


# Theorem 2: a rate for convex users


@pytest.mark.parametrize("cohort", ["all", 1])
def test_theorem_2_the_nearest_pareto_point_comes_nearer_at_one_over_t(cohort: Any) -> None:
    """Theorem 2, (30): eta_t = 2 / (c (t + 2)) and k = r = 1 give |w_t - w_t*|^2 <= 4 M^2 / (c^2 (t + 3)).

    w_t* is the nearest Pareto point. All users are strongly convex, so that c is their modulus whatever the weights; M
    bounds the gradients met.
    """
    about = world(objectives=1, sizes=(40, 50), dim=3)
    A = [2 * X.T @ X / len(X) for X in about.X]
    b = [2 * X.T @ Y[:, 0] / len(X) for X, Y in zip(about.X, about.Y, strict=True)]
    c = min(float(np.linalg.eigvalsh(a).min()) for a in A)
    front = [np.linalg.solve(s * A[0] + (1 - s) * A[1], s * b[0] + (1 - s) * b[1]) for s in np.linspace(0, 1, 1001)]
    # their first round is 0, ours 1
    method = FedMGDA(lr=1.0, local_steps=1, batch_size=0, server_lr=InverseDecay(beta=2 / c, gamma=1.0))
    x = run(about, method, Setting(cohort=cohort), rounds=80).x
    M = max(np.linalg.norm(gradients(about, w), axis=1).max() for w in x)
    t = np.arange(len(x))
    found = np.array([((np.array(front) - w) ** 2).sum(1).min() for w in x])
    assert (found <= 4 * M**2 / (c**2 * (t + 3))).all()
    assert found[-10:].mean() < 1e-2 * found[0]
    assert found[-10:].mean() < 0.5 * found[10:20].mean() + 1e-9


# robustness


def moved(method: Algorithm, layers: Any = ()) -> Array:
    """x_0 - x_5."""
    x = run(users(), method, rounds=5, layers=layers).x
    return x[0] - x[-1]


@pytest.mark.parametrize("eps", [0.1, 1.0])
@pytest.mark.parametrize("attack", [{"factor": 10.0}, {"bias": 1e3}], ids=str)
def test_inflated_losses_leave_fedmgda_plus_alone(attack: dict[str, float], eps: float) -> None:
    """Section V: normalising undoes multiplicative inflation (exactly for one local step), (19) the additive."""
    attackers = [Misreport(clients=[2], **attack)]
    method = FedMGDAPlus(eps=eps, server_lr=0.1, **ONE_STEP)
    np.testing.assert_allclose(moved(method, attackers), moved(method), atol=1e-9)


def test_inflated_losses_move_the_others() -> None:
    """Sections III and V: FedAvg by a factor; AFL and q-FedAvg by either."""
    fair: list[Algorithm] = [AFL(lr=0.05, lambda_lr=0.01), QFedAvg(q=1.0, **ONE_STEP)]
    for attack, methods in (({"factor": 10.0}, [FedAvg(**{**ONE_STEP, "lr": 0.01}), *fair]), ({"bias": 1e3}, fair)):
        for method in methods:
            honest, attacked = moved(method), moved(method, [Misreport(clients=[2], **attack)])
            assert np.linalg.norm(attacked - honest) > 0.1 * np.linalg.norm(honest), (method, attack)


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize("eps", [0.05, 0.2])
def test_a_users_pull_is_bounded(eps: float, by: Any) -> None:
    """(25): |lambda - lambda_0|_inf <= eps, whatever the users send."""
    about = users()
    lam0 = about.shares(range(4), by) / about.shares(range(4), by).sum()
    layers = [Misreport(clients=[1], factor=-3.0)]
    found = [
        list(line["client_weights"].values())
        for line in run(about, FedMGDAPlus(eps=eps, weighting_by=by, **ONE_STEP), rounds=5, layers=layers).lines
    ]
    assert (np.abs(np.array(found) - lam0) <= eps + 1e-9).all()
    assert np.abs(np.array(found) - lam0).max() > 0.9 * eps  # it is used
    np.testing.assert_allclose(np.sum(found, 1), 1)


def test_a_wider_box_has_a_shorter_direction() -> None:
    """(25): eps goes from FedAvg's direction to MGDA's, the shortest of all."""
    about = users()
    length = [
        np.linalg.norm(np.diff(run(about, FedMGDA(eps=eps, **ONE_STEP), rounds=1).x, axis=0))
        for eps in (0.0, 0.05, 0.2, 1.0)
    ]
    assert all(shorter < longer for longer, shorter in pairwise(length))
    g = 0.1 * gradients(about, about.start)
    assert length[0] == pytest.approx(np.linalg.norm(g.mean(0)))
    assert length[-1] == pytest.approx(np.linalg.norm(shortest(g) @ g))


# what the switches come to


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_without_its_switches_it_is_fedavg_bit_for_bit(by: Any) -> None:
    """After (25): eps = 0 recovers FedAvg with lambda_0; so do FedProx and MGDA-Prox without a proximal term."""
    about = users()
    how: dict[str, Any] = {"lr": 0.05, "local_steps": 3, "batch_size": 4, "weighting_by": by}
    off: dict[str, Any] = {"eps": 0.0, "normalise": False, "mu": 0.0, **how}
    plain = run(about, FedAvg(**how), Setting(cohort=3)).x[-1]
    for kind in (FedMGDA, FedMGDAPlus, FedProx, FedAvgN, MGDAProx):
        assert np.array_equal(run(about, kind(**off), Setting(cohort=3)).x[-1], plain), kind


def test_fedprox_averages_proximal_maps() -> None:
    """(9): its local problems solved, w <- sum_i lambda_i P_{f_i}^eta(w), eta = 1 / mu; FedAvg with k = oo, (8)."""
    about = world(objectives=1, sizes=(9, 12), dim=2)
    mu = 2.0
    many: dict[str, Any] = {"lr": 0.15, "local_steps": 200, "batch_size": 0}
    A = [2 * X.T @ X / len(X) for X in about.X]
    b = [2 * X.T @ Y[:, 0] / len(X) for X, Y in zip(about.X, about.Y, strict=True)]
    for method, term in ((FedProx(mu=mu, **many), mu), (FedAvg(**many), 0.0)):
        each = [np.linalg.solve(A[i] + term * np.eye(2), b[i] + term * about.start) for i in range(2)]
        np.testing.assert_allclose(run(about, method, rounds=1).x[1], np.mean(each, 0), atol=1e-6)


# fairness among users


def test_q_makes_losses_more_uniform() -> None:
    """Section III: q-FedAvg lies between FedAvg (q = 0) and the worst case: spread and worst loss fall with q."""
    about = users()
    found = [losses(about, run(about, QFedAvg(q=q, **ONE_STEP), rounds=60).x[-1]) for q in (0.0, 1.0, 5.0)]
    spread, worst, mean = np.std(found, 1), np.max(found, 1), np.mean(found, 1)
    assert spread[0] > spread[1] > spread[2]
    assert worst[0] > worst[1] > worst[2]
    assert mean[0] < mean[1] < mean[2]  # what it costs


def test_afl_reaches_the_minimax_point() -> None:
    """(10), (18): the mean iterate of descent and ascent has the worst loss of min_w max_i f_i(w), from a solver."""
    about = world(objectives=1, sizes=(9, 12, 8), dim=2)
    epigraph = {"type": "ineq", "fun": lambda v: v[-1] - losses(about, v[:-1])}
    start = np.append(about.start, losses(about, about.start).max())
    best = minimize(lambda v: v[-1], start, constraints=[epigraph], method="SLSQP")
    assert best.success
    x = run(about, AFL(lr=0.1, lambda_lr=0.1), rounds=160).x
    assert losses(about, np.mean(x[80:], 0)).max() == pytest.approx(best.fun, rel=0.02)
    average = run(about, FedAvg(**ONE_STEP), rounds=80).x[-1]
    assert losses(about, average).max() > 1.05 * best.fun
