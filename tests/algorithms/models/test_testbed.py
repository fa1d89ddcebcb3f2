"""The paper's strongly convex testbed: known values, rates, spread and gain, in small; `polyfed reproduce` in full."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.algorithms.base import GrowingBatch, InverseDecay, value_in_round
from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.algorithms.models.schedules import Groups, Partition, frame_start
from polyfed.algorithms.objectives.fedavg import FedAvg
from polyfed.core.door import Door
from polyfed.core.engine import engines
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.fleet import Metered
from polyfed.core.keys import generator
from polyfed.core.layer import Layers
from polyfed.core.part import Part
from polyfed.core.problem import Problem
from polyfed.data import Dataset, datasets
from polyfed.data.build import federate
from polyfed.data.partition import natural
from polyfed.data.quadratic import minimiser
from polyfed.data.tridiagonal import chain, value
from polyfed.experiment.api import train_many
from polyfed.experiment.gain import measure
from polyfed.models.basic import Point
from polyfed.reproduce.papers.many_models.testbed import Rate, excess
from polyfed.run.loop import Result, open_doors
from polyfed.run.plan import Plan
from small import golden as golden_file
from testbeds import CONSTANT, DECAYING, rounds_to, sized


@pytest.fixture
def golden() -> dict[str, Any]:
    return dict(golden_file("mfa_quadratic.json"))


def quadratics(**settings: Any) -> tuple[Dataset, Federation]:
    dataset: Dataset = datasets["tridiagonal"](**settings)
    return dataset, federate(dataset, natural(dataset, rng=generator(0)))


def run(models: int, schedule: Any, rounds: int, method: FedAvg, seed: int = 0, **settings: Any) -> Result:
    dataset, federation = quadratics(**settings)
    problems = [Problem(Point(dataset.x.shape[1]), dataset.objectives, torch.float64) for _ in range(models)]
    many = MultiModel({f"m{j}": (problem, method) for j, problem in enumerate(problems)}, schedule)
    return train_many(many, federation, rounds=rounds, seed=seed, guard="off")


def gaps(result: Result, t: int) -> list[float]:
    return [math.log10(row["excess"]) for row in result.history[t - 1]["metrics"].values()]


def test_the_minimum_is_the_known_one(golden: dict[str, Any]) -> None:
    rows = chain(24, 4, 2e-4)
    w = minimiser({"f": rows}, {"f": 1.0})
    assert value(rows.mean(0), w) == pytest.approx(golden["F_star"], abs=1e-12)
    assert w[:5] == pytest.approx(golden["w_star_first5"], abs=1e-9)
    assert np.linalg.norm(w) == pytest.approx(golden["w_star_norm"], abs=1e-9)


def test_gaps_with_full_participation_are_the_known_ones(golden: dict[str, Any]) -> None:
    result = run(1, "mfa-rr", 10, FedAvg(lr=0.1, local_steps=5, batch_size=0))
    for t, gap in golden["gap_log10_full_participation"].items():
        if int(t) <= 10:
            assert gaps(result, int(t))[0] == pytest.approx(gap, abs=1e-9)


def fixed_halves(t: int, M: int, partition: Partition) -> Groups:
    """MFA-RR over the same two halves in every frame."""
    halves = [list(range(12)), list(range(12, 24))]
    return [halves[(m - t + 1) % M] for m in range(M)]


def test_gaps_of_round_robin_over_fixed_halves_are_the_known_ones(golden: dict[str, Any]) -> None:
    result = run(2, fixed_halves, 10, FedAvg(lr=0.1, local_steps=5, batch_size=0))
    assert result.summary["algorithm"] == "fixed_halves"
    for t, gap in golden["gap_log10_rr_M2_fixed_halves_model1"].items():
        if int(t) <= 10:
            assert gaps(result, int(t))[0] == pytest.approx(gap, abs=1e-9)


def test_gaps_to_the_thousandth_round_are_the_known_ones(golden: dict[str, Any]) -> None:
    found = excess("mfa-rr", 1, 1000, CONSTANT, 5, seed=0)[:, 0]
    for t, gap in golden["gap_log10_full_participation"].items():
        assert math.log10(found[int(t) - 1]) == pytest.approx(gap, abs=1e-9)


def slope(schedule: str, rate: Rate, M: int = 2, gamma: float = 20.0, frames: int = 400) -> float:
    """Of log |w - w*| over log(frame + gamma); the excess is quadratic in the distance, hence the half."""
    with sized(6, 1, 0.5):
        found = excess(schedule, M, M * frames, rate, 5, seed=0)[M - 1 :: M].mean(1)
    late = np.arange(frames // 4, frames)
    return float(np.polyfit(np.log(late + 1 + gamma), np.log(found[late]) / 2, 1)[0])


def test_round_robin_with_a_decaying_step_is_one_over_t() -> None:
    """Theorem 2, Corollary 1: beta > 1 / mu, gamma > beta L - 1, full gradients, one rate a frame."""
    decaying = partial(InverseDecay(beta=4.0, gamma=20.0, every=2).value, frame=1)
    assert slope("mfa-rr", decaying) == pytest.approx(-1, abs=0.1)
    assert slope("mfa-rand", decaying) > -0.7
    assert abs(slope("mfa-rr", CONSTANT)) < 0.1


@pytest.mark.parametrize("rate", [CONSTANT, DECAYING], ids=["constant", "decaying"])
def test_round_robins_spread_over_seeds_is_below_randoms(rate: Rate) -> None:
    spread = {
        name: np.std([np.log10(excess(name, 12, 150, rate, 5, seed)[-1]) for seed in range(3)])
        for name in ("mfa-rand", "mfa-rr")
    }
    assert 3 * spread["mfa-rr"] < spread["mfa-rand"]


@pytest.mark.parametrize("E", [1, 5, 10])
def test_gain_is_above_one_and_grows(E: int) -> None:
    alone = rounds_to("mfa-rr", 1, E, 0, -2.5)
    for name in ("mfa-rand", "mfa-rr"):
        gains = [M * alone / rounds_to(name, M, E, 0, -2.5) for M in (2, 4, 12)]
        assert 1 < gains[0] < gains[1] < gains[2]


def test_the_library_measures_the_same_gain() -> None:
    settings = {
        "rounds": 100, "cohort": "all",
        "guard": "off",  # one client has the linear term: its gradient is 1e5 times as long as the others'
        "data": {"name": "tridiagonal", "partition": "natural", "users": 8, "p": 1, "mu": 2e-3},
        "model": {"name": "point", "dtype": "float64"},
        "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 5, "batch_size": 0},
    }  # fmt: skip
    found = measure(settings, [1, 4], schedules=["mfa-rand", "mfa-rr"], metric="gap", target=-1.6, seeds=1)
    with sized(8, 1, 2e-3):
        alone = rounds_to("mfa-rr", 1, 5, 0, -1.6)
        gains = [row["M"] * alone / rounds_to(row["schedule"], row["M"], 5, 0, -1.6) for row in found["rows"]]
    assert [row["gain"] for row in found["rows"]] == [[gain] for gain in gains]


# -- the theorems' steps and batches


def doors(*names: str) -> dict[str, Door]:
    """Of a run with these models, or with one alone."""
    dataset, federation = quadratics()
    problem = Problem(Point(dataset.x.shape[1]), dataset.objectives, torch.float64)
    parts = {name: Part(problem, federation, FedAvg()) for name in names or ("",)}
    many = MultiModel({name: (problem, FedAvg()) for name in names}) if names else None
    plan = Plan(
        name="", title="", engine_name="local", parts=parts, engine=engines["local"], rounds=1, seed=0, cohort=24,
        schedule=many,
    )  # fmt: skip
    engine = engines["local"](parts, Layers())
    return open_doors(plan, engine, Metered(engine))[0]


def test_step_sizes_are_the_theorems() -> None:
    alone = doors()[""]
    rand = InverseDecay(beta=30, gamma=100)
    assert [value_in_round(rand, t, alone) for t in (1, 2, 50)] == [30 / 101, 30 / 102, 30 / 150]
    robin = InverseDecay(beta=3, gamma=2, every=4)
    assert [value_in_round(robin, t, alone) for t in range(1, 10)] == [1.0] * 4 + [0.75] * 4 + [0.6]


def test_a_frame_is_as_many_rounds_as_models() -> None:
    method = FedAvg(lr=InverseDecay(beta=1, every="frame"), batch_size=GrowingBatch(start=2, full=8, every="frame"))
    assert method.local_options(3, doors()[""])["lr"] == 1 / 3  # one model alone
    framed = doors(*"abc")["b"]
    assert [method.local_options(t, framed)["lr"] for t in range(1, 8)] == [1, 1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 3]
    assert frame_start(6, 3) == 4


@pytest.mark.parametrize(("start", "full", "gamma", "every"), [(1, 100, 0.0, 1), (7, 50, 10.0, 3), (5, 5, 0.0, 1)])
def test_a_growing_batch_leaves_out_no_more_than_theorem_2_allows(
    start: int, full: int, gamma: float, every: int
) -> None:
    batch, step = (
        GrowingBatch(start=start, full=full, gamma=gamma, every=every),
        InverseDecay(beta=1, gamma=gamma, every=every),
    )
    sizes = [batch.value(t, 1, np.array([full, full])) or full for t in range(1, 40 * full)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == full
    most = (1 - start / full) / step.value(1, 1)
    for t, size in enumerate(sizes, 1):
        smallest = full - (-(-full // size) - 1) * size  # the last of a pass
        assert (full - smallest) / full <= most * step.value(t, 1) + 1e-9


def test_a_growing_batch_leaves_out_no_more_of_smaller_clients() -> None:
    """With batches of 100, a client of 101 rows had steps on one row: 99 % left out where 60 % are allowed."""
    n = np.array([200, 101, 90, 7])
    batch = GrowingBatch(start=20, full=200)
    for t in range(1, 60):
        size = batch.value(t, 1, n) or 200
        for rows in n:
            smallest = rows if size >= rows else rows % size or size
            assert 1 - smallest / rows <= (1 - 20 / 200) / t + 1e-9


def test_a_growing_batch_trains() -> None:
    from polyfed.core.settings import build

    table = {"batch_size": {"start": 2, "full": 20, "gamma": 1.0, "every": "frame"}, "local_steps": 2}
    method, resolved = build(FedAvg, table, "algorithm")
    assert resolved["batch_size"] == table["batch_size"]
    from small import small_federation, small_problem

    many = MultiModel({name: (small_problem(), method) for name in "ab"})
    assert train_many(many, small_federation(), rounds=6).summary["failures"] == 0
    with pytest.raises(BadInput, match=r"algorithm.batch_size.start should be greater than or equal to 1. Found 0."):
        build(FedAvg, {"batch_size": {"start": 0, "full": 20}}, "algorithm")
