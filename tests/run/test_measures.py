"""The theorems' measures: in evaluation mode, with the method's own weights of clients, honest under attack."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from polyfed import (
    AFL,
    FMGDA,
    FSMGDA,
    BadInput,
    FedAvg,
    FedCMOO,
    Federation,
    FedMGDA,
    Metric,
    Misreport,
    Network,
    Objective,
    Problem,
    QFedAvg,
    Rows,
    train,
)  # fmt: skip
from polyfed.cli import app
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


# by the function that a client trains on: sum_s omega_s f_is

PARTIAL = {"f0": np.array([True, True]), "f1": np.array([True, False])}  # client 1 has nothing for f1


@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.parametrize("method", [FedMGDA(**NOTHING_MOVES), FedAvg(**NOTHING_MOVES)], ids=["fedmgda", "fedavg"])
def test_client_stationarity_is_of_the_functions_that_clients_descend(method: Any, engine: str) -> None:
    """lambda = (1/2, 1/2), and omega = lambda_s 2 / W_s = (1/2, 1), as one of two clients holds f1.

    At 0 the gradients are (-1/2, -2) and (3/2, 0); the shortest between them is 3/8 of the one, 5/8 of the other.
    """
    problem, federation = quadratics((5, 5), CENTRES)
    some, asked = replace(federation, holds=PARTIAL), {"client_stationarity": 1}
    line = train(problem, some, method, rounds=1, evaluate=asked, engine=engine).history[0]
    assert line["client_stationarity"] == pytest.approx(np.hypot(3 / 4, 3 / 4), rel=1e-6)


def test_client_stationarity_counts_holders_by_size_where_the_method_does() -> None:
    """W = 4 and W_s = (4, 1): omega = (1/2, 2), the gradients (-1/2, -4) and (3/2, 0), 3/20 and 17/20 of them."""
    problem, federation = quadratics((1, 3), CENTRES)
    some, method = replace(federation, holds=PARTIAL), FedMGDA(weighting_by="size", **NOTHING_MOVES)
    line = train(problem, some, method, rounds=1, evaluate={"client_stationarity": 1}).history[0]
    assert line["client_stationarity"] == pytest.approx(np.hypot(6 / 5, 3 / 5), rel=1e-6)


def test_a_client_without_a_stake_does_not_make_the_others_stationary() -> None:
    """All weight is on f1, which client 1 does not hold: client 0 is left, with 2 f1 and the gradient (0, -4)."""
    problem, federation = quadratics((5, 5), CENTRES)
    some, method = replace(federation, holds=PARTIAL), FedMGDA(weights={"f1": 1.0}, **NOTHING_MOVES)
    line = train(problem, some, method, rounds=1, evaluate={"client_stationarity": 1}).history[0]
    assert line["client_stationarity"] == pytest.approx(4, rel=1e-6)


def improved(centres: list[list[float]], weights: dict[str, float], holds: dict[str, np.ndarray]) -> float:
    """The share of two clients that one step of 1/2 from 0 improves; centres (clients, objectives) on a line."""
    problem, federation = quadratics((5, 5), torch.tensor(centres, dtype=torch.float64).unsqueeze(2))
    method = FedAvg(lr=0.5, local_steps=1, batch_size=0, weights=weights)
    some = replace(federation, holds=holds)
    line = train(problem, some, method, rounds=1, evaluate={"improved": True}).history[0]
    return float(line["improved"])


def test_improved_leaves_out_what_has_no_weight() -> None:
    """From 0 to 1/2: f0 falls by 3/8, f1 rises by 13/8."""
    assert improved([[1.0, -3.0], [1.0, -3.0]], {"f0": 1.0}, {}) == 1
    assert improved([[1.0, -3.0], [1.0, -3.0]], {"f1": 1.0}, {}) == 1
    assert improved([[1.0, 9.0], [-3.0, 9.0]], {"f0": 1.0}, {}) == 0.5  # to -1/2: away from 1


def test_improved_weighs_what_few_hold_as_training_does() -> None:
    """omega = (1/2, 1): from 0 to 1/4. Client 0's f0 rises by 17/32 and its f1 falls by 11/32: 17/64 - 22/64 < 0."""
    assert improved([[-2.0, 1.5], [1.0, 0.0]], {}, PARTIAL) == 1


# the way to a known optimum


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_delta_q_and_distance(by: Any, engine: str) -> None:
    """f_s(0) - f_s(p) = (|c|^2 - |p - c|^2) / 2 in the mean over clients, under the method's own weights."""
    problem, federation = quadratics((1, 99), CENTRES)
    p = torch.tensor([3.0, -4.0], dtype=torch.float64)
    method = FMGDA(weighting_by=by, **NOTHING_MOVES)
    line = train(problem, federation, method, rounds=1, evaluate={"optimum": p}, engine=engine).history[0]
    a = np.array([1, 99]) if by == "size" else np.ones(2)
    c = CENTRES.numpy()
    above = a / a.sum() @ ((c**2).sum(2) - ((p.numpy() - c) ** 2).sum(2)) / 2
    lam = np.array(list(line["weights"].values()))
    assert line["delta_q"] == pytest.approx(lam @ above)
    assert line["distance"] == pytest.approx(5)


def test_delta_q_is_at_the_model_that_the_round_began_with_and_the_distance_at_its_end() -> None:
    """One objective, f(x) = |x - c|^2 / 2 and lr = 1/2: x = 0, c/2, 3c/4."""
    c = torch.tensor([[[2.0, 0.0]]], dtype=torch.float64)
    problem, federation = quadratics((3,), c)
    method = FedAvg(lr=0.5, local_steps=1, batch_size=0)
    optimum = {"w": c.reshape(2)}
    assert set(problem.params) == set(optimum)
    lines = train(problem, federation, method, rounds=2, evaluate={"optimum": optimum}).history
    assert [line["delta_q"] for line in lines] == pytest.approx([2, 0.5])
    assert [line["distance"] for line in lines] == pytest.approx([1, 0.5])


QUADRATIC = """
rounds = 400
cohort = "all"
[data]
name = "quadratic"
objectives = 1
clients = 3
examples = 10
[model]
name = "point"
dtype = "float64"
[algorithm]
name = "fedavg"
lr = 0.5
local_steps = 1
batch_size = 0
[evaluate]
every = 400
"""


def run(text: str, *options: str, folder: Path) -> dict[str, Any]:
    """The last line of an experiment's run."""
    folder.mkdir(exist_ok=True)
    (folder / "e.toml").write_text(text)
    done = CliRunner().invoke(app, ["run", str(folder / "e.toml"), "--out", str(folder / "run"), *options])
    assert done.exit_code == 0, done.stderr
    line: dict[str, Any] = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    return line


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_data_that_know_their_minimiser_supply_it(by: str, tmp_path: Path) -> None:
    """Of 10 quadratics three clients have 4, 3 and 3: uniform and by size are two different points."""
    line = run(f"{QUADRATIC}optimum = 'known'", "--set", f"algorithm.weighting_by={by}", folder=tmp_path)
    assert line["distance"] < 1e-9
    assert abs(line["delta_q"]) < 1e-12


def test_delta_q_is_the_excess_of_the_chain(tmp_path: Path) -> None:
    text = QUADRATIC.replace(
        '"quadratic"\nobjectives = 1\nclients = 3\nexamples = 10', '"tridiagonal"\nusers = 5\np = 2'
    )
    more = ["--rounds", "6", "--set", "data.partition=natural", "--set", "evaluate.every=1"]
    run(f"{text}optimum = 'known'", *more, folder=tmp_path)
    lines = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for before, now in pairwise(lines):
        assert now["delta_q"] == pytest.approx(before["metrics"]["f"]["excess"])


def test_the_optimum_may_be_the_model_of_a_run_beside_the_experiment(tmp_path: Path) -> None:
    first = tmp_path / "first"
    run(QUADRATIC, folder=first)
    text = f"{QUADRATIC}optimum = 'first/run/model.safetensors'"
    assert run(text, folder=tmp_path)["distance"] == 0
    again = ["run", str(tmp_path / "run" / "experiment.toml"), "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, again).exit_code == 0  # its copy lies elsewhere


def test_an_optimum_that_does_not_fit_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    problem, federation = quadratics((5, 5), CENTRES)
    for optimum, why in (
        (torch.zeros(3), "as many numbers as the model, 2. Found 3"),
        ({"v": torch.zeros(2)}, "'w' should have the shape \\(2,\\). Found none"),
        ({"w": torch.zeros(3)}, "Found the shape \\(3,\\)"),
        ("known", "no minimiser that is known"),
        (str(tmp_path / "no.safetensors"), "cannot be read"),
    ):
        with pytest.raises(BadInput, match=f"evaluate.optimum.*{why}"):
            train(problem, federation, FedAvg(), rounds=1, evaluate={"optimum": optimum}, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


# what local training gains


def gained(w: np.ndarray) -> dict[str, float]:
    """From x = 0 to the clients' models w: (|c|^2 - |w - c|^2) / 2 in the mean over clients."""
    c = CENTRES.numpy()
    by_client = ((c**2).sum(2) - ((w[:, None] - c) ** 2).sum(2)) / 2
    return {f"f{s}": float(v) for s, v in enumerate(by_client.mean(0))}


STEPS: dict[str, Any] = {"lr": 0.1, "local_steps": 2, "batch_size": 0}


@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.parametrize(
    "method",
    [
        FedAvg(**STEPS),
        QFedAvg(**STEPS),
        FedCMOO(width=2, **STEPS),
        FedCMOO(width=2, exchanges=1, **STEPS),
        FSMGDA(**STEPS),
        FSMGDA(upload="combined", **STEPS),
    ],
    ids=lambda method: f"{method.title} {getattr(method, 'exchanges', '')}{getattr(method, 'upload', '')}",
)
def test_progress_is_what_local_training_gained(method: Any, engine: str) -> None:
    """Two steps of 1/10 from 0 on sum_s lambda_s f_s, or on every f_s apart, end at 0.19 sum_s lambda_s c_is."""
    problem, federation = quadratics((3, 40), CENTRES)
    line = train(problem, federation, method, rounds=1, evaluate={"progress": 1}, engine=engine).history[0]
    lam = np.array(list(line["weights"].values()))
    wanted = gained(0.19 * np.einsum("s,isd->id", lam, CENTRES.numpy()))
    assert {name: row["loss"] for name, row in line["progress"].items()} == pytest.approx(wanted)


def test_progress_in_a_metric_has_the_sign_of_better() -> None:
    problem, federation = quadratics((3, 3), CENTRES)
    loss = problem.objectives[0].values["loss"]
    up, down = Metric(lambda x, c: -loss(x, c), "higher"), Metric(loss, "lower")
    objectives = [Objective(name, loss, {"up": up, "down": down}) for name in problem.names]
    problem = Problem(Point(2), objectives, torch.float64)
    line = train(problem, federation, FedAvg(**STEPS), rounds=1, evaluate={"progress": 1}).history[0]
    for row in line["progress"].values():
        assert row["loss"] > 0
        assert row["up"] == row["down"] == pytest.approx(row["loss"])


@pytest.mark.filterwarnings("ignore:.*runs client by client:RuntimeWarning")
@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.parametrize("method", [FSMGDA(local_steps=3), FedCMOO(local_steps=3)])
def test_measuring_progress_leaves_the_training_as_it_is(method: Any, engine: str) -> None:
    runs = []
    for every in (0, 2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        problem = Problem(model, [Objective(name, "cross-entropy") for name in ("left", "right")])
        how: dict[str, Any] = {"rounds": 4, "cohort": 3, "evaluate": {"progress": every}, "engine": engine}
        runs.append(train(problem, small_federation(), method, layers=[Faults(drop=0.2)], **how))
    plain, measured = runs
    assert plain.summary["model_sha256"] == measured.summary["model_sha256"]
    assert ["progress" in line for line in measured.history] == [False, True, False, True]
    for one, two in zip(plain.history, measured.history, strict=True):
        assert (one["bytes_up"], one["bytes_down"]) == (two["bytes_up"], two["bytes_down"])
        assert (two["evaluation_bytes"] > one["evaluation_bytes"]) == ("progress" in two)


def test_a_method_without_local_training_logs_no_progress() -> None:
    line = train(small_problem(), small_federation(), AFL(), rounds=1, evaluate={"progress": 1}).history[0]
    assert "progress" not in line


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
