"""FedCMOO's theorems (Askin et al. 2025): the rate with the corollary's steps, unbiased Gram matrices, the cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from answered import Iterates, uneven
from polyfed import FSMGDA, FedAvg, FedCMOO, Federation, Objective, Problem, train
from polyfed.layers.network import Network
from polyfed.models.basic import Point
from polyfed.testing import open_door

Array = np.ndarray
CLIENTS, ROWS, DIM, M, L = 5, 6, 4, 2, 2.0


def bowl(w: Tensor, target: Tensor) -> Tensor:
    """sum_j z_j^2 / (1 + z_j^2), z = w - target: 2-smooth, not convex, with bounded gradients (Assumptions 1 and 4)."""
    z = (w - target) ** 2
    return (z / (1 + z)).sum(1)


def centres() -> Array:
    """Of each objective's rows (M, rows, DIM): they differ within clients (Assumption 2) and between (3)."""
    rng = np.random.default_rng(0)
    own = np.repeat(0.3 * rng.normal(size=(M, CLIENTS, DIM)), ROWS, 1)
    return np.asarray(own + 0.2 * rng.normal(size=own.shape) + np.array([0.3, -0.3])[:, None, None])


def world() -> tuple[Problem, Federation]:
    targets = {name: centres()[s] for s, name in enumerate("ab")}
    federation = Federation.from_arrays(np.zeros((CLIENTS * ROWS, DIM)), targets, clients=uneven((ROWS,) * CLIENTS))
    problem = Problem(Point(DIM), [Objective(name, bowl, {}) for name in "ab"], torch.float64)
    with torch.no_grad():
        problem.model.get_parameter("w").add_(0.8)
    return problem, federation


def per_row(x: Array) -> Array:
    """The gradient of every row's loss (M, rows, DIM)."""
    z = x - centres()
    return np.asarray(2 * z / (1 + z**2) ** 2)


def test_corollary_1_falls_like_one_over_root_t() -> None:
    """The mean of |J w|^2 over T rounds with eta_c = 1 / (L tau sqrt(tau T)), eta_s = sqrt tau, beta = 1 / (M sqrt T).

    Algorithm 10: two sets, an unbiased compressor, one step for the weights; minibatches, some of the clients.
    """
    tau, found = 3, []
    for T in (9, 36, 81):
        weighting = {"name": "pgd", "steps": 1, "step": 1 / (M * np.sqrt(T)), "normalise": False}
        method = FedCMOO(
            gram="two-sets", gram_clients=3, compress="random-mask", weighting=weighting, batch_size=2,
            lr=1 / (L * tau * np.sqrt(tau * T)), server_lr=np.sqrt(tau), local_steps=tau,
        )  # fmt: skip
        problem, federation = world()
        x, iterates = problem.initial()["x"].numpy().copy(), Iterates()
        result = train(problem, federation, method, rounds=T, cohort=3, callbacks=[iterates], evaluate={"every": T})
        xs = [x, *iterates.x[:-1]]
        ws = [np.full(M, 1 / M), *([line["weights"][name] for name in "ab"] for line in result.history[:-1])]
        found.append(np.mean([np.sum((w @ per_row(x).mean(1)) ** 2) for x, w in zip(xs, ws, strict=True)]))
    scaled = np.array(found) * np.sqrt([9, 36, 81])
    assert (np.diff(scaled) < 0.1 * scaled[:-1]).all()


def test_lemmas_4_and_5_weights_move_along_an_unbiased_gram_matrix() -> None:
    """Line 6 of Algorithm 10 inside the simplex: E[w' - w] = -beta (1 - 11^T / M) G w, |w' - w| <= beta sqrt(M) C_1.

    Sampled clients, minibatches and masks: from the cohort's own Gram matrix the mean is off, by the variance of all.
    """
    problem, federation = world()
    beta, n, budget, draws = 1e-3, 3, 1.0, 100
    J = per_row(problem.initial()["x"].numpy())
    own = J.reshape(M, CLIENTS, ROWS, DIM).mean(2)
    w = np.array([0.8, 0.2])
    Gw = own.mean(1) @ (w @ own.mean(1))
    expected = -beta * (Gw - Gw.mean())
    q = M / budget - 1  # of a mask that keeps one entry in M
    b = np.linalg.norm(own, axis=2).max()
    within = np.sum((J.reshape(M, CLIENTS, ROWS, DIM) - own[:, :, None]) ** 2, 3).mean(2).max()
    between = np.sum((own - own.mean(1, keepdims=True)) ** 2, 2).mean(1).max()
    spread = (1 + q) / n * within + q / n * b**2 + (CLIENTS - n) / (n * (CLIENTS - 1)) * between
    off = {}
    for gram in ("two-sets", "cohort"):
        moved = []
        method = FedCMOO(
            gram=gram, compress="random-mask", budget=budget, batch_size=1, local_steps=1,
            weighting={"name": "pgd", "steps": 1, "step": beta, "normalise": False},
        )  # fmt: skip
        fleet = open_door(problem, federation, cohort=n)
        start = {**method.init(problem), "weighting": {"weights": torch.from_numpy(w)}}
        for t in range(1, draws + 1):
            fleet.begin(t)
            moved.append(method.round(t, start, fleet)[0]["w"].numpy() - w)
        step = np.array(moved)
        error = step.std(0) / np.sqrt(draws)
        off[gram] = float(np.abs((step.mean(0) - expected) / error).max())
        if gram == "two-sets":
            assert np.linalg.norm(step, axis=1).mean() <= beta * np.sqrt(M) * (np.sqrt(spread) + b) ** 2
    assert off["two-sets"] < 3.5
    assert off["cohort"] > 4


def test_theorem_1_without_a_weight_step_is_fedavg() -> None:
    """beta = 0: FedAvg on the mean of the objectives, bit for bit but for the order of sums."""
    how: dict[str, Any] = {"lr": 0.2, "local_steps": 4, "batch_size": 2, "server_lr": 0.7}
    x = []
    for method in (FedCMOO(weighting="uniform", compress="exact", **how), FedAvg(**how)):
        iterates = Iterates()
        train(*world(), method, rounds=4, cohort=3, callbacks=[iterates], evaluate={"every": 4})
        x.append(iterates.x)
    np.testing.assert_allclose(x[0], x[1], rtol=0, atol=1e-13)


# -- what a round costs


def many(objectives: int, dim: int, holds: dict[str, list[bool]] | None = None) -> tuple[Problem, Federation]:
    """So many objectives of one point, three clients."""
    rng = np.random.default_rng(0)
    names, sizes = [f"f{s}" for s in range(objectives)], (4, 8, 8)
    targets = {name: rng.normal(size=(sum(sizes), dim)) for name in names}
    federation = Federation.from_arrays(np.zeros((sum(sizes), dim)), targets, clients=uneven(sizes), holds=holds)
    return Problem(Point(dim), [Objective(name, bowl, {}) for name in names], torch.float64), federation


def uploaded(method: Any, objectives: int, d: int = 1000) -> float:
    """Models that a client sends in a round."""
    line = train(*many(objectives, d), method, rounds=1).history[0]
    return float(line["bytes_up"]) / len(line["cohort"]) / (8 * d)


@pytest.mark.parametrize(
    ("compress", "exchanges"), [("rand-svd", 2), ("rand-svd", 1), ("top-k", 2), ("random-mask", 2)]
)
def test_proposition_1_uploads_do_not_grow_with_the_objectives(compress: str, exchanges: Any) -> None:
    """A client of FedCMOO sends 2 d numbers a round, d for G and d for the update, and some that do not grow with d."""
    method = FedCMOO(compress=compress, exchanges=exchanges)
    few, more = uploaded(method, 2), uploaded(method, 8)
    assert 1.5 < few < 2.15
    assert 1.5 < more < 2.15
    assert abs(more - few) < 0.2


def test_proposition_1_fsmgda_sends_a_model_for_every_objective() -> None:
    """M d, and a sketch d + M k."""
    for objectives in (2, 6):
        assert uploaded(FSMGDA(), objectives) == pytest.approx(objectives, abs=0.15)
        assert uploaded(FedCMOO(width=100), objectives) == pytest.approx(1 + 0.1 * objectives, abs=0.15)


K, BATCH, HELD = 5, 6, (3, 1, 2)  # clients' rows are 4, 8 and 8: batches of 4, 6 and 6


@pytest.mark.parametrize(
    ("method", "gradients"),
    [
        (FSMGDA, lambda held: [K * held]),
        (lambda **how: FSMGDA(upload="combined", width=4, **how), lambda held: [K * held, K * held]),
        (lambda **how: FedCMOO(width=4, **how), lambda held: [held, K]),
        (lambda **how: FedCMOO(width=4, exchanges=1, **how), lambda held: [K - 1 + held]),
        (lambda **how: FedCMOO(compress="top-k", ways=2, **how), lambda held: [held, held, K]),
    ],
    ids=["fsmgda", "fsmgda combined", "fedcmoo", "one exchange", "two ways"],
)
def test_batches_that_a_round_takes_gradients_on(method: Any, gradients: Any) -> None:
    """Client i with M_i objectives: FSMGDA M_i K, FedCMOO M_i and tau, with one exchange tau - 1 + M_i.

    Each exchange lasts as long as its slowest client: 6 operations a row and parameter at one a second.
    """
    dim = 10
    holds = {f"f{s}": [s < held for held in HELD] for s in range(3)}
    phones = Network(clock=1.0, down=1e18, up=1e18, latency=0.0)
    how = {"local_steps": K, "batch_size": BATCH}
    line = train(*many(3, dim, holds), method(**how), rounds=1, layers=[phones]).history[0]
    each = zip(*(gradients(held) for held in HELD), strict=True)
    rows = sum(max(took * batch for took, batch in zip(exchange, (4, 6, 6), strict=True)) for exchange in each)
    assert line["simulated_seconds"] == pytest.approx(6 * dim * rows, rel=1e-9)
