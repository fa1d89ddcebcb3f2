"""The theorems' measures: in evaluation mode, with the method's own weights of clients, honest under attack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import (
    FMGDA,
    FSMGDA,
    BadInput,
    FedAvg,
    FedCMOO,
    Federation,
    Metric,
    Misreport,
    Network,
    Objective,
    Problem,
    Rows,
    train,
)  # fmt: skip
from polyfed.data.quadratic import quadratic_loss
from polyfed.layers.faults import Faults
from polyfed.metrics import delta_m
from polyfed.models.basic import Point
from polyfed.weights import min_norm
from small import small_federation, small_problem

NOTHING_MOVES: dict[str, Any] = {"lr": 1e-12, "local_steps": 1, "batch_size": 0}


def quadratics(sizes: tuple[int, ...], centres: Tensor) -> tuple[Problem, Federation]:
    """f_is(x) = |x - c_is|^2 / 2 at client i, whose rows are all alike; centres (clients, objectives, dim)."""
    _, objectives, dim = centres.shape
    length = np.array(sizes)
    rows = Rows(np.arange(length.sum()), np.cumsum(length) - length, length)
    targets = {f"f{s}": centres[:, s].repeat_interleave(torch.tensor(sizes), 0) for s in range(objectives)}

    def loss(x: Tensor, c: Tensor) -> Tensor:
        return (x - c).square().sum(1) / 2

    problem = Problem(Point(dim), [Objective(name, loss, {}) for name in targets], torch.float64)
    return problem, Federation(torch.zeros(int(length.sum()), dim, dtype=torch.float64), targets, rows)


CENTRES = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[-3.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)  # 2 clients


def at_zero(a: tuple[float, ...]) -> np.ndarray:
    """J at x = 0 of the objectives' means, the clients counting a."""
    weights = np.array(a) / sum(a)
    return np.asarray(np.einsum("i,isd->sd", weights, -CENTRES.numpy()))


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_stationarity_counts_clients_as_the_method_does(by: Any, engine: str) -> None:
    problem, federation = quadratics((1, 99), CENTRES)
    method = FMGDA(weighting_by=by, **NOTHING_MOVES)
    asked = {"stationarity": 1, "own_stationarity": 1, "client_stationarity": 1}
    line = train(problem, federation, method, rounds=1, evaluate=asked, engine=engine).history[0]
    J = at_zero((1, 99) if by == "size" else (1, 1))
    w = min_norm(J @ J.T)
    assert line["stationarity"] == pytest.approx(np.linalg.norm(w @ J), rel=1e-6)
    lam = np.array(list(line["weights"].values()))
    assert line["own_stationarity"] == pytest.approx(np.linalg.norm(lam @ J), rel=1e-6)
    g = np.einsum("s,isd->id", lam, -CENTRES.numpy())
    v = min_norm(g @ g.T)
    assert line["client_stationarity"] == pytest.approx(np.linalg.norm(v @ g), rel=1e-6)


def test_own_stationarity_is_at_the_model_that_the_round_began_with() -> None:
    problem, federation = quadratics((5, 5), CENTRES)
    method = FedAvg(lr=0.5, local_steps=1, batch_size=0)
    line = train(problem, federation, method, rounds=1, evaluate={"own_stationarity": 1}).history[0]
    assert line["own_stationarity"] == pytest.approx(np.linalg.norm(at_zero((1, 1)).mean(0)))


@pytest.mark.filterwarnings("ignore:.*runs client by client:RuntimeWarning")  # dropout of the input, compiled on a GPU
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_stationarity_is_measured_in_evaluation_mode(engine: str) -> None:
    """A least-squares solution under dropout: its gradient is 0, and was found to be 0.3 to 0.8 with units dropped."""
    torch.manual_seed(0)
    x = torch.randn(60, 4, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=torch.float64)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1, bias=False)).double()
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(torch.tensor([[1.0, 2.0, -1.0, 0.5]]))
    problem = Problem(model, [Objective("y", "squared")], torch.float64)
    federation = Federation.from_arrays(x, {"": y}, clients=3)
    method = FedAvg(**NOTHING_MOVES)
    line = train(problem, federation, method, rounds=1, evaluate={"stationarity": 1}, engine=engine).history[0]
    assert line["stationarity"] < 1e-9


def test_an_attacker_does_not_falsify_it() -> None:
    problem, federation = quadratics((5, 5), CENTRES)
    asked = {"stationarity": 1, "client_stationarity": 1}
    honest, attacked = (
        train(problem, federation, FMGDA(**NOTHING_MOVES), rounds=1, evaluate=asked, layers=layers).history[0]
        for layers in ([], [Misreport(clients=[1], factor=100.0, bias=7.0)])
    )
    assert attacked["stationarity"] == pytest.approx(honest["stationarity"], rel=1e-9)


# simulated seconds: counted gradients


def seconds(method: Any, sizes: tuple[int, ...] = (40, 40), holds: dict[str, list[bool]] | None = None) -> float:
    """Batch gradients that the slowest client is charged, batches of 8 rows."""
    problem = small_problem(objectives=3)
    federation = small_federation(clients=len(sizes), rows=sizes[0], holds=holds)
    network = Network(clock=1.0, latency=0.0, up=1e18, down=1e18)
    line = train(problem, federation, method, rounds=1, layers=[network]).history[0]
    return float(line["simulated_seconds"]) / (6 * problem.dim * 8)


def test_compute_is_charged_by_counted_batch_gradients() -> None:
    """FSMGDA M K, FedCMOO tau + M, with one exchange tau - 1 + M; M the objectives that the client holds."""
    how: dict[str, Any] = {"local_steps": 10, "batch_size": 8}
    assert seconds(FedAvg(**how)) == pytest.approx(10)
    assert seconds(FSMGDA(**how)) == pytest.approx(3 * 10)
    assert seconds(FedCMOO(width=16, **how)) == pytest.approx(10 + 3)
    assert seconds(FedCMOO(width=16, exchanges=1, **how)) == pytest.approx(10 - 1 + 3)
    two = {"left": [False, False]}
    assert seconds(FSMGDA(**how), holds=two) == pytest.approx(2 * 10)
    assert seconds(FedCMOO(width=16, **how), holds=two) == pytest.approx(10 + 2)


# what only measures costs nothing


def test_measuring_the_gram_matrix_is_no_upload_and_meets_no_faults() -> None:
    plain, measured = (
        train(
            small_problem(),
            small_federation(),
            FedCMOO(width=16, gram_error=error),
            rounds=3,
            layers=[Faults(drop=0.2)],
        ).history
        for error in (False, True)
    )
    for one, two in zip(plain, measured, strict=True):
        assert (one["bytes_up"], one["bytes_down"]) == (two["bytes_up"], two["bytes_down"])
        assert two["evaluation_bytes"] > one["evaluation_bytes"]
        assert two["gram_error"] >= 0


# metrics say whether more is better


def test_the_worst_client_of_a_metric_is_the_worst() -> None:
    def hits(output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) == target).to(output.dtype)

    def misses(output: Tensor, target: Tensor) -> Tensor:
        return 1 - hits(output, target)

    both = {"hits": Metric(hits, better="higher"), "misses": Metric(misses, better="lower")}
    problem = Problem(nn.Linear(5, 3), [Objective("left", "cross-entropy", both)])
    method = FedAvg(lr=0.1, local_steps=2)
    line = train(problem, small_federation(), method, rounds=1, evaluate={"clients": True}).history[0]
    found = line["clients"]["left"]
    assert found["hits"]["worst"] < found["hits"]["mean"]
    assert found["misses"]["worst"] > found["misses"]["mean"]
    assert found["hits"]["worst"] == pytest.approx(1 - found["misses"]["worst"])


def test_a_metric_that_does_not_say_is_a_sentence() -> None:
    silent: Any = {"hits": quadratic_loss}
    with pytest.raises(BadInput, match="say whether more of the metric 'hits' is better"):
        Objective("left", "squared", silent)
    wrong: Any = "more"
    with pytest.raises(BadInput, match="'higher' or 'lower'"):
        Metric(quadratic_loss, wrong)


def test_delta_m_has_the_right_sign_for_accuracies() -> None:
    """A tenth better than alone is -0.1, whichever way better is."""
    assert delta_m({"a": 0.9}, {"a": 1.0}) == pytest.approx(-0.1)
    assert delta_m({"a": 0.88}, {"a": 0.8}, better="higher") == pytest.approx(-0.1)
    mixed = delta_m({"a": 0.9, "b": 0.44}, {"a": 1.0, "b": 0.4}, better={"a": "lower", "b": "higher"})
    assert mixed == pytest.approx(-0.1)
