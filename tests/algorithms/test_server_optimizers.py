"""Server optimisers against steps by hand, over any method, resumed, and on every engine."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed import (
    FMGDA,
    BadInput,
    FedAvg,
    FedCMOO,
    Federation,
    MultiModel,
    Objective,
    Problem,
    ServerOptimizer,
    train,
    train_many,
)  # fmt: skip
from polyfed.algorithms import algorithms
from polyfed.algorithms.server_optimizers import FedAdam, server_optimizers
from polyfed.core.settings import settings
from polyfed.data.quadratic import quadratic, quadratic_loss
from polyfed.experiment.building import plan
from polyfed.experiment.reading import override
from polyfed.models.basic import Point
from polyfed.weights import min_norm
from small import small_federation, small_problem, vector

Array = NDArray[np.float64]
ROUNDS = 5


def quadratics(clients: int = 4) -> tuple[Problem, Federation, Callable[[Array], Array]]:
    """f_s(x) = x'A_s x / 2 - b_s'x of two objectives over some clients, and the Jacobian (2, 3) of their means."""
    data = quadratic(seed=1, examples=40, dim=3, objectives=2)
    problem = Problem(Point(3), [Objective(name, quadratic_loss, {}) for name in data.targets], torch.float64)
    means = [data.targets[name].mean(0) for name in data.targets]

    def jacobian(x: Array) -> Array:
        return np.stack([mean[:9].reshape(3, 3) @ x - mean[9:] for mean in means])

    return problem, Federation.from_arrays(data.x, data.targets, clients=clients), jacobian


def by_hand(name: str, x: Array, direction: Callable[[Array], Array], lr: float, beta1: float, tau: float) -> Array:
    """Algorithm 2 of "Adaptive Federated Optimization", with its own sign: Delta_t is the way that a round goes."""
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for _ in range(ROUNDS):
        delta = direction(x)
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "fedadagrad": v + delta**2,
            "fedyogi": v - 0.01 * delta**2 * np.sign(v - delta**2),
            "fedadam": 0.99 * v + 0.01 * delta**2,
        }[name]
        x = x + lr * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize("short", [True, False])
def test_over_fedavg_it_is_the_papers_algorithm(name: str, short: bool) -> None:
    """With one full step a client, a round of FedAvg goes -eta (0.75 g_1 + 0.25 g_2)."""
    problem, federation, jacobian = quadratics()
    own = {"lr": 0.01, "beta1": 0.0 if name == "fedadagrad" else 0.9, "tau": 1e-3}
    table: Any = name if short else {"name": name, **(own := {"lr": 0.05, "beta1": 0.5, "tau": 0.1})}
    method = FedAvg(lr=0.3, local_steps=1, batch_size=0, weights={"f1": 3, "f2": 1}, server_optimizer=table)
    found = vector(train(problem, federation, method, rounds=ROUNDS)).numpy()
    way = by_hand(name, np.zeros(3), lambda x: -0.3 * np.array([0.75, 0.25]) @ jacobian(x), **own)
    assert np.allclose(found, way, atol=1e-12)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_over_fedcmoo_it_is_too(name: str) -> None:
    """With exact Jacobians and one full step, a round of FedCMOO goes -eta_s eta_c lambda'J, lambda of J's Gram."""
    problem, federation, jacobian = quadratics()
    method = FedCMOO(
        lr=0.3, server_lr=0.5, local_steps=1, batch_size=0, compress="exact",
        server_optimizer={"name": name, "lr": 0.05, "beta1": 0.9, "tau": 0.01},
    )  # fmt: skip
    found = vector(train(problem, federation, method, rounds=ROUNDS)).numpy()

    def direction(x: Array) -> Array:
        J = jacobian(x)
        step: Array = -0.15 * min_norm(J @ J.T) @ J
        return step

    assert np.allclose(found, by_hand(name, np.zeros(3), direction, lr=0.05, beta1=0.9, tau=0.01), atol=1e-9)


def test_momentum_adds_to_the_last_step() -> None:
    problem, federation, jacobian = quadratics()
    method = FedAvg(lr=0.3, local_steps=1, batch_size=0, server_optimizer={"name": "momentum", "lr": 0.5, "beta": 0.8})
    x, m = np.zeros(3), np.zeros(3)
    for _ in range(ROUNDS):
        m = 0.8 * m + 0.3 * jacobian(x).mean(0)
        x = x - 0.5 * m
    assert np.allclose(vector(train(problem, federation, method, rounds=ROUNDS)).numpy(), x, atol=1e-12)


def test_momentum_without_any_is_the_method_itself() -> None:
    plain, with_none = (
        vector(train(small_problem(), small_federation(), FedCMOO(width=8, server_optimizer=how), rounds=3))
        for how in (None, {"name": "momentum", "beta": 0.0})
    )
    assert torch.allclose(plain, with_none, atol=1e-6)


NEURAL = [
    "afl", "centralised", "fedavg", "fedavg-n", "fedcmoo", "fedcmoo-pref", "fedmgda", "fedmgda+", "fedprox", "fmgda",
    "fsmgda", "mgda-prox", "q-fedavg",
]  # fmt: skip


def test_every_method_with_a_network_has_it_and_those_of_many_tasks_say_that_they_do_not() -> None:
    for name in algorithms:
        if not algorithms[name].__module__.startswith("polyfed."):
            continue
        if name in NEURAL:
            algorithms[name](server_optimizer="fedadam")
        else:
            with pytest.raises(BadInput, match=r"Unknown key 'server_optimizer'"):
                algorithms[name](server_optimizer="fedadam")


@pytest.mark.parametrize("name", NEURAL)
def test_a_round_changes_the_step_and_nothing_else(name: str) -> None:
    """After one round m = (1 - beta1) g and v = beta2 tau^2 + (1 - beta2) g^2, g the method's own step."""
    more = {"width": 8} if name.startswith("fedcmoo") else {}
    start = small_problem().initial()["x"]
    plain, stepped = (
        train(small_problem(), small_federation(), algorithms[name](server_optimizer=how, **more), rounds=1)
        for how in (None, "fedadam")
    )
    g = start - vector(plain)
    expected = start - 0.01 * 0.1 * g / ((0.99e-6 + 0.01 * g * g).sqrt() + 1e-3)
    assert torch.allclose(vector(stepped), expected, atol=1e-6)
    assert stepped.history[0].get("weights") == plain.history[0].get("weights")
    assert stepped.history[0]["bytes_up"] == plain.history[0]["bytes_up"]


def test_buffers_stay_as_the_method_gives_them() -> None:
    def problem() -> Problem:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        return Problem(model, [Objective("left", "cross-entropy")])

    plain, stepped = (
        train(problem(), small_federation(), FedAvg(server_optimizer=how), rounds=1).model.state_dict()
        for how in (None, "fedyogi")
    )
    assert torch.equal(plain["1.running_mean"], stepped["1.running_mean"])
    assert not torch.equal(plain["0.weight"], stepped["0.weight"])


@pytest.mark.parametrize("name", list(server_optimizers))
def test_a_resumed_run_is_bit_identical(name: str, tmp_path: Path) -> None:
    def run(out: str, rounds: int, resume: bool = False) -> str:
        method = algorithms["fedcmoo"](width=8, server_optimizer=name, lr={"rule": "plateau", "start": 0.1})
        more: Any = {"rounds": rounds, "cohort": 3, "out": tmp_path / out, "resume": resume}
        return str(train(small_problem(), small_federation(), method, **more).summary["model_sha256"])

    assert run("half", 2) != run("whole", 5)
    assert run("half", 5, resume=True) == run("whole", 5, resume=True)


def test_a_run_is_not_resumed_with_another_one(tmp_path: Path) -> None:
    def run(how: Any, **more: Any) -> None:
        method = FedAvg(server_optimizer=how)
        train(small_problem(), small_federation(), method, out=tmp_path / "run", **more)

    run(FedAdam(lr=0.02), rounds=1)
    kept = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())["algorithm"]["server_optimizer"]
    assert kept == {"name": "fedadam", "lr": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    with pytest.raises(BadInput, match=r"begun with algorithm.server_optimizer.lr = 0.02; found 0.5"):
        run(FedAdam(lr=0.5), rounds=2, resume=True)
    run(kept, rounds=2, resume=True)


def test_each_of_several_models_has_its_own(tmp_path: Path) -> None:
    def run(how: Any, rounds: int, out: str, resume: bool = False) -> dict[str, Tensor]:
        models = {"a": (small_problem(), FedAvg(server_optimizer=how)), "b": (small_problem(1), FedAvg())}
        more: Any = {"rounds": rounds, "out": tmp_path / out, "resume": resume}
        return dict(train_many(MultiModel(models), small_federation(), **more).model.state_dict())

    plain, stepped = run(None, 4, "plain"), run("fedadam", 4, "stepped")
    assert {name[0] for name in plain if not torch.equal(plain[name], stepped[name])} == {"a"}
    run("fedadam", 2, "half")
    resumed = run("fedadam", 4, "half", resume=True)
    assert all(torch.equal(stepped[name], resumed[name]) for name in stepped)


@pytest.mark.parametrize("name", ["fedavg", "fedcmoo", "fsmgda"])
def test_it_is_the_same_on_every_engine(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    targets = {side: (x @ rng.normal(size=(5, 3))).argmax(1) for side in ("left", "right")}
    uneven = Federation.from_arrays(x, targets, clients=np.split(np.arange(60), [1, 6, 15, 35]))
    method = algorithms[name](server_optimizer="fedyogi", batch_size=4, local_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        one, wire, many = (
            vector(train(small_problem(), uneven, method, rounds=3, cohort=4, engine=engine))
            for engine in ("local", "wire", {"name": "batched", "device": "cpu"})
        )
    assert torch.equal(one, wire)
    assert torch.allclose(one, many, atol=1e-4)


def test_measures_of_a_round_are_of_where_the_server_went() -> None:
    problem, federation, jacobian = quadratics()
    method = FedAvg(lr=0.3, local_steps=1, batch_size=0, server_optimizer="fedadam")
    optimum = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    asked = {"stationarity": 1, "own_stationarity": 1, "improved": True, "optimum": optimum}
    result = train(problem, federation, method, rounds=2, evaluate=asked)
    x, line = vector(result), result.history[-1]
    assert line["distance"] == pytest.approx(float((x - optimum).norm()))
    J = jacobian(x.numpy())
    w = min_norm(J @ J.T)
    assert line["stationarity"] == pytest.approx(float(np.linalg.norm(w @ J)), rel=1e-6)
    assert result.history[0]["own_stationarity"] == pytest.approx(np.linalg.norm(jacobian(np.zeros(3)).mean(0)))
    assert line["improved"] == 1.0


# what is refused, and what is said


def test_what_makes_no_sense_is_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"output = 'random' ends with the model of an earlier round"):
        FMGDA(output="random", server_optimizer="fedadam")
    with pytest.raises(BadInput, match=r"Unknown server_optimizer 'fedadm'. Did you mean 'fedadam'"):
        FedAvg(server_optimizer="fedadm")
    with pytest.raises(BadInput, match=r"Unknown key 'algorithm.server_optimizer.beta2'"):
        FedAvg(server_optimizer={"name": "fedadagrad", "beta2": 0.9})
    with pytest.raises(BadInput, match=r"algorithm.server_optimizer.tau should be greater than 0. Found 0"):
        FedAvg(server_optimizer={"name": "fedadam", "tau": 0})


def test_a_method_that_learns_a_model_a_client_is_refused() -> None:
    @settings
    class Own(FedAvg):
        """FedAvg that says it learns models of the clients' own."""

        def personal(self, state: Any, clients: Any) -> Tensor:
            own: Tensor = state["x"].expand(len(clients), -1)
            return own

    with pytest.raises(BadInput, match=r"server_optimizer is for methods with one model"):
        Own(server_optimizer="momentum")


def test_experiments_name_it() -> None:
    digits = {"name": "two-digits", "clients": 4, "examples": 80}
    table: Any = {"name": "fedcmoo", "server_optimizer": {"name": "fedadam", "lr": 0.02}}
    made, resolved = plan("x", {"cohort": 2, "data": digits, "algorithm": table})
    assert resolved["algorithm"]["server_optimizer"] == {"name": "fedadam", "lr": 0.02}
    assert made.methods()[""] == FedCMOO(server_optimizer=table["server_optimizer"])


def changed(settings: dict[str, Any], *assignments: str) -> tuple[Any, list[str]]:
    said: list[str] = []
    return override(settings, assignments, {}, told=said.append)["algorithm"], said


def test_the_command_line_names_another() -> None:
    table = {"name": "fedavg", "server_optimizer": {"name": "fedadam", "lr": 0.5, "beta2": 0.9}}
    algorithm, said = changed({"algorithm": table}, "algorithm.server_optimizer.name=fedadagrad")
    assert algorithm["server_optimizer"] == {"name": "fedadagrad", "lr": 0.5}
    assert said == ["Left out, because fedadagrad does not have it: algorithm.server_optimizer.beta2."]
    algorithm, said = changed({"algorithm": table}, "algorithm.name=mocha")
    assert algorithm == {"name": "mocha"}
    assert said == ["Left out, because mocha does not have it: algorithm.server_optimizer."]
    short = {"algorithm": {"name": "fedavg", "server_optimizer": "fedadam"}}
    algorithm, _ = changed(short, "algorithm.server_optimizer.lr=0.5")
    assert algorithm["server_optimizer"] == {"name": "fedadam", "lr": 0.5}


def test_one_of_ones_own() -> None:
    @settings
    class Sign(ServerOptimizer):
        """Every parameter moves by lr."""

        lr: float = 0.25

        def step(self, x: Tensor, g: Tensor, kept: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return x - self.lr * g.sign(), {}

    problem = small_problem()
    result = train(problem, small_federation(), FedAvg(server_optimizer=Sign()), rounds=1)
    moved = (vector(result) - problem.initial()["x"]).abs()
    assert torch.allclose(moved[moved > 0.01], torch.tensor(0.25))
