"""Every loss with every regulariser ends where a generic convex solver does, whatever nodes do on the way."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest
import torch
from mocha_cases import LOSSES, LossName, alpha, optimum, solve, tasks
from torch import nn
from typer.testing import CliRunner

from polyfed import Federation, Objective, Problem, Rows, train
from polyfed.algorithms.tasks.mocha import CoCoA, GlobalModel, LocalModels, MbSDCA, Mocha
from polyfed.algorithms.tasks.regularisers import (
    AnyRegulariser,
    Clustered,
    Fixed,
    Graphical,
    Independent,
    Mean,
    Probabilistic,
    Regulariser,
)
from polyfed.core.door import Door
from polyfed.layers.faults import Faults
from polyfed.tasks.engine import ArrayEngine, open_door
from polyfed.work.linear.examples import as_examples
from polyfed.work.linear.losses import find
from small import golden

B = np.array([[2.0, -0.5, 0, 0.3], [-0.5, 1.5, 0.2, 0], [0, 0.2, 1, -0.4], [0.3, 0, -0.4, 1.2]])
RULES: dict[str, AnyRegulariser] = {
    "independent": Independent(lam=0.3),
    "mean": Mean(lam1=0.5, lam2=0.2),
    "fixed": Fixed(omega=B.tolist(), lam1=0.4),
    "clustered": Clustered(lam=0.5, eta=0.3, clusters=2),
    "probabilistic": Probabilistic(lam=0.2, sigma=3.0),
    "graphical": Graphical(lam=0.3, sigma=3.0, lam2=1.0),
    "graphical-lasso": Graphical(lam=0.3, sigma=3.0, lam1=0.4, lam2=1.0),
}


def precision(rule: Regulariser, omega: np.ndarray) -> np.ndarray:
    return np.linalg.inv(rule.mbar(omega)) / 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_and_regulariser_reaches_the_optimum(loss: LossName, rule: str) -> None:
    """Three Omega steps, then the gap to 1e-8; the primal value is a generic solver's; dual <= primal all along."""
    examples, chosen = tasks(loss), RULES[rule]
    method = Mocha(loss=loss, regulariser=chosen, epochs=10, omega_every=5)

    def sound(t: int, state: dict[str, Any], engine: ArrayEngine, fleet: Door) -> None:
        found = method.measure(state, fleet)
        assert found["gap"] >= -1e-9 * abs(found["primal"])
        V = np.stack([e.combine(alpha(fleet, i)) for i, e in enumerate(examples)])
        assert np.allclose(state["V"], V, atol=1e-10)  # v = X alpha
        assert np.allclose(state["W"], chosen.weights(V, chosen.mbar(state["omega"].numpy())), atol=1e-9)  # w(alpha)

    state, _ = solve(examples, method, rounds=15, gap=0, each=sound)
    omega = state["omega"].numpy()
    learned = _Frozen(chosen, omega)
    rest = Mocha(loss=loss, epochs=10, omega_every=0, per_task_sigma=True)
    object.__setattr__(rest, "regulariser", learned)
    state, found = solve(examples, rest, gap=1e-8)
    assert found["gap"] <= 1e-8
    value, W = optimum(
        examples, loss, precision(chosen, omega), getattr(chosen, "lam1", 0.0) if "lasso" in rule else 0.0
    )
    assert found["primal"] - chosen.alone(omega, 5) == pytest.approx(value, rel=1e-6)
    assert np.allclose(state["W"], W, atol=1e-3)


class _Frozen(Regulariser):
    """A regulariser that starts at the Omega another has learned, and stays there."""

    def __init__(self, rule: Regulariser, omega: np.ndarray) -> None:
        self.rule, self.omega = rule, omega
        for name in ("mbar", "weights", "value", "alone", "slope"):
            setattr(self, name, getattr(rule, name))

    def start(self, m: int) -> np.ndarray:
        return self.omega


@pytest.mark.parametrize("scale", ["sum", "mean"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_mean_of_losses_is_its_own_problem(loss: LossName, scale: Literal["sum", "mean"]) -> None:
    examples = tasks(loss)
    _, found = solve(examples, Mocha(loss=loss, loss_scale=scale, regulariser=Mean(lam1=0.05, lam2=0.02), epochs=10))
    A = precision(Mean(lam1=0.05, lam2=0.02), Mean().start(4))
    c = [1.0 if scale == "sum" else 1 / len(e.y) for e in examples]
    assert found["primal"] == pytest.approx(optimum(examples, loss, A, c=c)[0], rel=1e-6)


def test_golden_svm_weights_and_values() -> None:
    known = golden("mocha_small.json")
    for case in known["svm"]:
        one = [as_examples(np.array(case["X"], float), np.array(case["y"], float), find("hinge"))]
        method = LocalModels(loss_scale="mean", regulariser=Independent(lam=case["lambda"] / 2), epochs=100)
        state, _ = solve(one, method, gap=1e-13)
        assert np.allclose(state["W"][0], case["w"], atol=1e-5)
    beta = [[0.2, 0.1, -0.3, -0.4], [1, 0, -0.5, 0.2, 0], [0.3, -0.1, 0.9]]
    all_tasks = [as_examples(np.array(X, float), y, find("hinge")) for X, y in zip(known["X"], known["Y"], strict=True)]
    for case in known["primal_dual"]:
        rule = Fixed(omega=case["Omega"], lam1=case["lambda"] / 2)
        mbar, W = rule.mbar(rule.start(3)), np.array(case["W"]).T
        l = find("hinge")
        V = np.stack([e.combine(np.array(b) / len(b)) for e, b in zip(all_tasks, beta, strict=True)])
        losses = sum(l.value(e.margins(w), e.y, 0).mean() for e, w in zip(all_tasks, W, strict=True))
        conjugates = sum(l.conjugate(np.array(b), e.y, 0).mean() for e, b in zip(all_tasks, beta, strict=True))
        assert losses + rule.value(W, mbar) == pytest.approx(case["primal"], abs=1e-9)
        # the recorded dual takes R*(V) from the W at hand, where it equals R(W) if W = w(alpha)
        assert -conjugates - rule.value(W, mbar) == pytest.approx(case["dual"], abs=1e-9)
        own = rule.weights(V, mbar)
        assert np.vdot(V, own) - rule.value(own, mbar) == pytest.approx(rule.value(own, mbar), abs=1e-12)


# -- any part of the work, or none


RULE = Mean(lam1=0.5, lam2=0.2)
BEST = optimum(tasks("smoothed-hinge"), "smoothed-hinge", precision(RULE, RULE.start(4)))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0.1}, {"epochs": 40}, {"steps": 3}, {"gamma": 0.5, "epochs": 5}, {"per_task_sigma": True},
    ],
)  # fmt: skip
def test_any_split_of_the_work_ends_at_the_same_optimum(settings: dict[str, Any]) -> None:
    state, found = solve(
        tasks("smoothed-hinge"), Mocha(loss="smoothed-hinge", regulariser=RULE, **settings), rounds=5000
    )
    assert found["primal"] == pytest.approx(BEST[0], rel=1e-6)
    assert np.allclose(state["W"], BEST[1], atol=1e-4)


@pytest.mark.parametrize(
    "faults",
    [Faults(drop=0.5), Faults(drop=[0.0, 0.9, 0.5, 0.2]), Faults(variability="high"), Faults(variability="low")],
)
def test_it_converges_with_nodes_that_drop_out_or_do_less(faults: Faults) -> None:
    method = Mocha(loss="smoothed-hinge", regulariser=RULE, epochs=3)
    state, found = solve(tasks("smoothed-hinge"), method, rounds=3000, layer=faults)
    assert found["gap"] <= 1e-8
    assert np.allclose(state["W"], BEST[1], atol=1e-4)


def test_a_node_that_never_answers_ends_elsewhere() -> None:
    """At the optimum of the problem without its loss."""
    examples = tasks("smoothed-hinge")
    method = Mocha(loss="smoothed-hinge", regulariser=RULE, epochs=5)
    state, found = solve(examples, method, rounds=400, layer=Faults(silent=[2]))
    assert found["primal"] > BEST[0] + 1e-2
    _, W = optimum(examples, "smoothed-hinge", precision(RULE, RULE.start(4)), c=[1.0, 1.0, 0.0, 1.0])
    assert np.allclose(state["W"], W, atol=1e-5)


@pytest.mark.parametrize("per_task", [False, True])
def test_nodes_may_share_a_task(per_task: bool) -> None:
    """Six nodes, three tasks: the same models as three nodes with the rows together."""
    six = tasks("logistic", m=6)
    three = [
        as_examples(np.vstack([a.X, b.X]), np.concatenate([a.y, b.y]), find("logistic"))
        for a, b in zip(six[:3], six[3:], strict=True)
    ]
    rule = Mean(lam1=0.5, lam2=0.2)
    shared = Mocha(loss="logistic", regulariser=rule, tasks=[0, 1, 2, 0, 1, 2], per_task_sigma=per_task, epochs=3)
    one, found = solve(six, shared)
    other, _ = solve(three, Mocha(loss="logistic", regulariser=rule, epochs=3))
    assert found["gap"] <= 1e-8
    assert np.allclose(one["W"], other["W"], atol=1e-5)


def test_local_is_every_task_alone_and_global_is_one_task() -> None:
    examples = tasks("squared")
    local, _ = solve(examples, LocalModels(loss="squared", regulariser=Independent(lam=0.5), epochs=5))
    ridge = [np.linalg.solve(e.X.T @ e.X + np.eye(5), e.X.T @ e.y) for e in examples]
    assert np.allclose(local["W"], ridge, atol=1e-5)
    common, _ = solve(examples, GlobalModel(loss="squared", regulariser=Independent(lam=0.5), epochs=5), rounds=5000)
    X, y = np.vstack([e.X for e in examples]), np.concatenate([e.y for e in examples])
    assert common["W"].shape == (1, 5)
    assert np.allclose(common["W"][0], np.linalg.solve(X.T @ X + np.eye(5), X.T @ y), atol=1e-5)


def test_cocoa_and_minibatch_sdca_end_at_the_same_optimum() -> None:
    for method in (
        CoCoA(loss="smoothed-hinge", regulariser=RULE, theta=0.3),
        MbSDCA(loss="smoothed-hinge", regulariser=RULE, batch_size=4, beta=2.0),
    ):
        _, found = solve(tasks("smoothed-hinge"), method, rounds=8000, gap=1e-7)
        assert found["primal"] == pytest.approx(BEST[0], rel=1e-6)


def test_the_dual_grows_in_every_round() -> None:
    values: list[float] = []
    method = Mocha(regulariser=RULE, epochs=0.5)
    solve(tasks(), method, rounds=60, each=lambda t, s, e, f: values.append(method.measure(s, f)["dual"]))
    assert (np.diff(values) >= -1e-10).all()


def test_the_averaged_iterate_has_a_sound_gap() -> None:
    """V bar = X alpha bar: primal and dual at the average still enclose the optimum, and the gap shrinks."""
    gaps = {}
    best = optimum(tasks(), "hinge", precision(RULE, RULE.start(4)))[0]
    for rounds in (20, 400):
        _, found = solve(
            tasks(), Mocha(regulariser=RULE, average_from=10, epochs=1), rounds=rounds, gap=-1, layer=Faults(drop=0.3)
        )
        assert found["dual"] <= best + 1e-7 <= found["primal"] + 2e-7
        gaps[rounds] = found["gap"]
    assert gaps[400] < gaps[20] / 5


def test_theta_is_one_without_work_and_falls_with_it() -> None:
    thetas: dict[float, np.ndarray] = {}
    for epochs in (0.0, 1.0, 50.0):
        method = Mocha(loss="smoothed-hinge", regulariser=RULE, epochs=epochs, measure_theta=True)
        _, fleet = open_door(tasks("smoothed-hinge"))
        fleet.begin(1)
        _, found = method.round(1, dict(fleet.problem.initial()), fleet)
        assert isinstance(found["theta"], dict)
        thetas[epochs] = np.array(list(found["theta"].values()))
    assert (thetas[0.0] == 1).all()
    assert ((thetas[1.0] > 1e-6) & (thetas[1.0] < 1)).all()
    assert (thetas[50.0] < 1e-3).all()


def test_cocoa_reaches_its_theta() -> None:
    method = CoCoA(loss="hinge", regulariser=RULE, theta=0.2, measure_theta=True)
    _, fleet = open_door(tasks())
    state: dict[str, Any] = dict(fleet.problem.initial())
    for t in range(1, 6):
        fleet.begin(t)
        state, found = method.round(t, state, fleet)
        assert isinstance(found["theta"], dict)
        assert max(found["theta"].values()) <= 0.2 + 1e-9


def test_the_gap_ends_a_run_only_when_omega_has_settled() -> None:
    """For the first Omega, W is soon solved; a new Omega would then still lower the primal value by a tenth."""
    from polyfed.cli import app

    found = {}
    for stop in ("0", "0.01"):
        words = ["run", "many-tasks", "--json", "--set", f"algorithm.stop_gap={stop}", "--set", "algorithm.epochs=20.0"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
        found[stop] = json.loads(done.stdout.splitlines()[-1])
    assert 10 < found["0.01"]["rounds"] < found["0"]["rounds"]
    accuracy = {stop: summary["objectives"]["label"]["accuracy"] for stop, summary in found.items()}
    assert accuracy["0.01"] > accuracy["0"] - 0.02


def test_a_minibatch_larger_than_a_nodes_rows_leaves_its_duals_where_they_may_be() -> None:
    """Nodes of 40, 40 and 5 rows, b = beta = 32: scaled by 32/5 the duals had left for 1e44."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=4)
    Xs = [rng.normal(size=(n, 4)) for n in (40, 40, 5)]
    ys = [np.sign(X @ w) for X in Xs]
    length = np.array([40, 40, 5])
    rows = Rows(np.arange(85), np.cumsum(length) - length, length)
    y = torch.from_numpy((np.concatenate(ys) > 0).astype(np.int64))
    federation = Federation(torch.from_numpy(np.concatenate(Xs)), {"y": y}, rows)
    problem = Problem(nn.Linear(4, 1), [Objective("y", "binary")], torch.float64)
    result = train(problem, federation, MbSDCA(batch_size=32, beta=32.0), rounds=30)
    primal, dual = (np.array([line[name] for line in result.history]) for name in ("primal", "dual"))
    assert (dual <= primal + 1e-9).all()
    assert np.abs(dual).max() < 1e4  # beta = b is bold: the primal value may rise, but nothing runs away
