"""Who trains what: the paper's tables, and the laws of its two schedules."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from polyfed import FedAvg, MultiModel
from polyfed.algorithms.models.multimodel import ClientPool
from polyfed.algorithms.models.schedules import Groups, mfa_rand, mfa_rr
from polyfed.core.engine import engines
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layers
from polyfed.core.part import Part
from polyfed.run.loop import open_doors
from polyfed.run.plan import Plan
from small import small_federation, small_problem


def drawn(schedule: str, models: int, clients: int = 6, cohort: int | None = None, seed: int = 0) -> ClientPool:
    """The pool of clients of a run, as the loop makes it."""
    many = MultiModel({f"m{j}": (small_problem(objectives=1), FedAvg()) for j in range(models)}, schedule)
    federation = small_federation(clients=clients, rows=2)
    parts = {m: Part(problem, federation, method) for m, (problem, method) in many.models.items()}
    engine = engines["local"](parts, Layers())
    plan = Plan(
        name="", title="", engine_name="local", parts=parts, engine=engines["local"], rounds=1, seed=seed,
        cohort=clients if cohort is None else cohort, schedule=many,
    )  # fmt: skip
    _, pool = open_doors(plan, engine, Metered(engine))
    assert pool is not None
    return pool


def test_round_robin_is_table_3() -> None:
    def named(t: int) -> Groups:
        return [[t * 10 + j] for j in (1, 2, 3)]  # S_j of the frame that starts in round t

    table = [[group[0] for group in mfa_rr(t, 3, named)] for t in range(1, 7)]
    assert table == [[11, 12, 13], [13, 11, 12], [12, 13, 11], [41, 42, 43], [43, 41, 42], [42, 43, 41]]


def test_random_is_table_2() -> None:
    assert [mfa_rand(t, 3, lambda t: [[t * 10 + j] for j in (1, 2, 3)])[2] for t in (1, 2, 3)] == [[13], [23], [33]]


@pytest.mark.parametrize(("clients", "cohort", "models"), [(6, 6, 3), (7, 7, 3), (11, 8, 4), (5, 5, 5), (9, 4, 1)])
def test_every_client_meets_every_model_once_a_frame(clients: int, cohort: int, models: int) -> None:
    pool = drawn("mfa-rr", models, clients, cohort)
    for frame in range(5):
        met = Counter(
            (c, m)
            for t in range(frame * models + 1, (frame + 1) * models + 1)
            for m, group in enumerate(pool.groups(t))
            for c in group
        )
        assert set(met.values()) == {1}
        assert len(met) == cohort * models  # the cohort is drawn once a frame


@pytest.mark.parametrize("schedule", ["mfa-rand", "mfa-rr"])
@pytest.mark.parametrize(("clients", "models"), [(7, 3), (10, 4), (6, 6)])
def test_groups_are_disjoint_and_nearly_equal(schedule: str, clients: int, models: int) -> None:
    pool = drawn(schedule, models, clients)
    first = Counter[int]()
    for t in range(1, 61):
        groups = pool.groups(t)
        assert sorted(c for group in groups for c in group) == list(range(clients))
        sizes = [len(group) for group in groups]
        assert max(sizes) - min(sizes) <= 1
        first[sizes[0]] += 1
    if clients % models:
        assert len(first) == 2  # no model always has the larger group


def test_random_assignment_is_uniform_and_independent() -> None:
    """Chi-square at 0.1 %: each client's model is uniform, and tells nothing of its next or of another client's."""
    pool, T, N, M = drawn("mfa-rand", 3), 3000, 6, 3
    model = np.empty((T, N), dtype=int)
    for t in range(T):
        for m, group in enumerate(pool.groups(t + 1)):
            model[t, group] = m
    for c in range(N):
        assert statistic(np.bincount(model[:, c], minlength=M), np.full(M, T / M)) < chi2.ppf(0.999, M - 1)
        joint = np.bincount(M * model[:-1, c] + model[1:, c], minlength=M * M)
        assert statistic(joint, np.full(M * M, (T - 1) / M**2)) < chi2.ppf(0.999, M * M - 1)
    same = np.array([(model[:, a] == model[:, b]).sum() for a in range(N) for b in range(a)])
    together = (N / M - 1) / (N - 1)
    assert np.abs(same - T * together).max() < 4 * np.sqrt(T * together * (1 - together))


def statistic(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_rand_samples_every_round_and_robin_once_a_frame() -> None:
    rand, robin = (
        [tuple(sorted(c for g in drawn(name, 3, 12, 6).groups(t) for c in g)) for t in range(1, 10)]
        for name in ("mfa-rand", "mfa-rr")
    )
    assert len(set(rand)) > 6
    assert [robin[3 * k] for k in range(3) for _ in range(3)] == robin
    assert len(set(robin)) == 3


def test_same_seed_same_groups() -> None:
    assert drawn("mfa-rand", 3).groups(5) == drawn("mfa-rand", 3).groups(5)
    assert any(drawn("mfa-rand", 3).groups(t) != drawn("mfa-rand", 3, seed=1).groups(t) for t in range(1, 5))
