"""Replies are hostile until proven otherwise: weights, lengths, places; whoever is far from the rest is named."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import Says, SaysAlways, asked, named
from polyfed import FedAvg, Federation, Layer, Objective, Problem, Result, train
from polyfed.algorithms import algorithms
from polyfed.core.engine import Engine, engines, expected_replies
from polyfed.core.fleet import Population, Stack
from polyfed.core.guard import FACTOR, FIRST, MOST_ASIDE, MOST_WAIT, Guard, Lengths, medians
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.data.build import build_data
from polyfed.models import models
from polyfed.run.directory import read_checkpoint
from polyfed.testing import open_door
from small import small_federation, small_problem

# the rule itself, on lengths


def stacks(lengths: Lengths, cuts: Sequence[int]) -> Iterator[tuple[Stack, Lengths]]:
    """Clients 0, 1, ... whose array is their own number, cut into stacks of these sizes."""
    at = 0
    for size in [*cuts, len(lengths)]:
        some = range(at, min(at + size, len(lengths)))
        at = some.stop
        if len(some):
            rows = torch.tensor([[float(i)] for i in some])
            yield Stack(list(some), {"a": rows}), lengths[list(some)]


def passed(lengths: Lengths, cuts: Sequence[int] = (), on: bool = True) -> tuple[list[int], list[int]]:
    """Who goes on, in order, and who is dropped; what goes on is really theirs."""
    guard = Guard([f"its update {k}" for k in range(lengths.shape[1])], on)
    out = list(guard(stacks(lengths, cuts or [1] * len(lengths))))
    order = [c for stack in out for c in stack.clients]
    assert [float(v) for stack in out for v in stack.arrays.get("a", torch.zeros(0)).reshape(-1)] == order
    return order, sorted(c for stack in out for c in stack.failed)


def test_alike_all_go_on_in_their_order() -> None:
    lengths = np.random.default_rng(0).lognormal(size=(50, 2))
    assert passed(lengths) == (list(range(50)), [])


def test_infinite_lengths_are_the_farthest_whatever_the_median() -> None:
    """With the guard off, or where most have diverged."""
    guard = Guard(["its update"], False)
    lengths = np.array([[1.0], [np.inf], [np.inf], [0.0], [np.inf]])
    list(guard(stacks(lengths, [1] * len(lengths))))
    assert guard.farthest() == {0: 0.0, 1: np.inf, 2: np.inf, 3: 0.0, 4: np.inf}


@pytest.mark.parametrize("place", [0, 1, 7, 8, 30, 49])
@pytest.mark.parametrize("row", [0, 1])
def test_one_that_is_far_is_dropped_wherever_it_stands(place: int, row: int) -> None:
    lengths = np.random.default_rng(0).lognormal(size=(50, 2))
    lengths[place, row] = 1e4 * FACTOR
    order, dropped = passed(lengths)
    assert dropped == [place]
    assert order == [i for i in range(50) if i != place]
    assert passed(lengths, on=False) == (list(range(50)), [])


def test_who_is_far_only_from_those_before_comes_last() -> None:
    lengths = np.ones((22, 1))
    lengths[9:] = 2 * FACTOR  # the first nine turn out to be the few
    lengths[20] = 1
    assert passed(lengths) == ([*range(9), 20, *range(9, 20), 21], [])


def test_under_four_there_is_no_comparison_and_zeros_do_not_count() -> None:
    three = np.array([[1.0], [1.0], [1e9]])
    assert passed(three) == ([0, 1, 2], [])
    four = np.array([[1.0], [1.0], [1.0], [1e9]])
    assert passed(four) == ([0, 1, 2], [3])
    mostly_zero = np.zeros((40, 2))
    mostly_zero[:, 0] = 1
    mostly_zero[[3, 20, 39], 1] = [1e9, 1, 1]  # an objective that three hold
    assert passed(mostly_zero)[1] == []
    mostly_zero[30, 1] = 1  # and now four
    assert passed(mostly_zero)[1] == [] if MOST_WAIT <= 3 else [3]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, 150.0, 1e6]), min_size=2, max_size=2), min_size=1, max_size=90),
    st.lists(st.integers(1, 40), max_size=8),
)
@settings(deadline=None, max_examples=150)
def test_who_is_dropped_does_not_depend_on_how_replies_are_grouped(rows: list[list[float]], cuts: list[int]) -> None:
    lengths = np.array(rows)
    order, dropped = passed(lengths)
    assert sorted(order + dropped) == list(range(len(rows)))
    assert passed(lengths, cuts)[1] == dropped
    assert passed(lengths, [len(rows)])[1] == dropped


def test_few_replies_are_held_at_any_time() -> None:
    lengths = np.ones((3000, 2))
    lengths[:, 1] = 0
    lengths[::500, 1] = 1  # an objective that few hold
    lengths[10::2, 0] = 1e9  # and half of them hostile: the lower median is an honest one's
    guard, most = Guard(["a", "b"]), 0
    given_out = 0
    feed = (pair for pair in stacks(lengths, [1] * 3000))
    for stack in guard(feed):
        given_out += len(stack.clients) + len(stack.failed)
        most = max(most, len(guard.clients) - given_out - len(guard._dropped))
    assert most <= MOST_WAIT + MOST_ASIDE + 1
    assert len(guard._dropped) == len(range(10, 3000, 2))


# weights, values and places, in stacks as engines give them


def sgd(**options: Any) -> Request:
    start = small_problem().initial()
    how = {"lr": 0.1, "steps": 2, "batch_size": 4, **options}
    return Request("sgd", {**start, "omega": torch.ones(2)}, options=how)


@pytest.mark.parametrize("engine", ["local", "wire", "batched"])
@pytest.mark.parametrize(
    ("by", "change", "why"),
    [
        ("uniform", {"weight": lambda a: a * 0 - 19}, "its weight 'weight' is -19; it should be 1"),
        ("uniform", {"weight": lambda a: a * 0 + 20}, "its weight 'weight' is 20; it should be 1"),
        ("size", {"weight": lambda a: a * 0 + 21}, "its weight 'weight' is 21; it should be 20"),
        ("size", {"heard": lambda a: -a}, "its weight 'heard' is -20; it should be 20"),
        ("size", {"heard": lambda a: a * 1e30}, "'heard' is 2e+31"),
        ("size", {"weight": lambda a: a * float("nan")}, "NaN or infinity"),
        ("size", {"delta": lambda a: a * 0 + 1e30}, "'delta' has the length"),
        ("size", {"losses": lambda a: a * 0 + 1e30}, "'losses' has the length"),
        ("size", {"delta": lambda a: a * 1e4}, "its update 'delta' is 1e+04 times as long as the cohort's median"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_the_server_cannot_believe_is_dropped_by_name(engine: str, by: str, change: Any, why: str) -> None:
    total, failed = asked(Says([3], **change), sgd(weight=by), engine)
    assert list(failed) == [3]
    assert why in failed[3]
    assert list(total.clients) == [0, 1, 2, 4, 5]
    assert float(total["weight"]) == (5 if by == "uniform" else 100)
    assert float(total["delta"].norm()) < 1e3


def test_what_a_client_does_not_hold_does_not_count() -> None:
    holds = {"left": [True] * 6, "right": [True, True, True, False, True, True]}
    _, failed = asked(Says([3], heard=lambda a: a * 0 + 1), sgd(), holds=holds)
    assert "its weight 'heard' is 1; it should be 0" in failed[3]


def test_counts_of_an_evaluation_are_whole_and_at_most_what_was_declared() -> None:
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})

    for change, why in ((lambda n: n + 1, "20"), (lambda n: n - 0.5, "whole"), (lambda n: -n, "from 0")):
        total, failed = asked(SaysAlways([1], n=change), request)
        assert list(failed) == [1]
        assert why in failed[1]
        assert float(total["n"]) == 100
    engine: Engine = engines["local"]({"": Part(small_problem(), small_federation())}, Layers())
    aside = engine.expected(Request("evaluate", options={"split": "test"}))  # nobody has said how many: ten times
    for n, fine in ((200.0, True), (201.0, False), (3.5, False), (-1.0, False)):
        said = Stack([1], {"values": torch.zeros(1, 4), "heard": torch.zeros(1, 2), "n": torch.tensor([n])})
        assert bool(aside.validated(said)[0].clients) is fine
    some = small_federation(holds={"left": [True] * 6, "right": [False] * 6})
    one: Engine = engines["local"]({"": Part(small_problem(), some)}, Layers())
    said = Stack([1], {"values": torch.zeros(1, 4), "heard": torch.tensor([[3.0, 0.0]]), "n": torch.tensor([3.0])})
    assert one.expected(Request("evaluate", options={"split": "test"})).validated(said)[0].clients == [1]


def test_a_squared_weight_may_be_the_square() -> None:
    start, compress = small_problem().initial(), {"name": "exact"}
    how: Any = {
        "lr": 0.1,
        "steps": 1,
        "batch_size": 4,
        "weight": "size",
        "compress": compress,
        "rows": 2,
        "columns": 102,
    }
    down = {"h.H": torch.zeros(2, 102)}
    problem, federation = small_problem(), small_federation()
    door = open_door(problem, federation, engines["local"]({"": Part(problem, federation)}, Layers()))
    door.begin(1)
    list(door.ask(range(6), Request("jacobian", start, options=how)))
    assert len(list(door.ask(range(6), Request("residual", down, options=how)))) == 6
    assert door.failures == []


def test_a_place_that_is_not_there_is_dropped() -> None:
    """Where it was believed, the server ended in torch's own error."""
    method = algorithms["fedcmoo"](lr=0.1, compress="top-k", local_steps=2)
    far_away = Says([2], places=lambda a: a * 0 + 2_000_000_000)
    found = train(small_problem(), small_federation(), method, rounds=1, layers=[far_away])
    assert [f["client"] for f in found.history[0]["failures"]] == [2]
    assert "from 0 to below" in found.history[0]["failures"][0]["why"]


# whole runs


def two_digits() -> tuple[Problem, Federation]:
    dataset, federation, _ = build_data({"name": "two-digits", "clients": 20}, seed=0)
    torch.manual_seed(0)
    return Problem(models["mlp"](dataset), dataset.objectives), federation


def accuracies(result: Result) -> list[float]:
    return [row["accuracy"] for row in result.history[-1]["metrics"].values()]


def test_one_of_twenty_cannot_remove_an_objective_from_fedcmoo() -> None:
    """R4: its row for 'left' times 1e4 took that objective from 91 % to 9 %, and nobody was named."""
    problem, federation = two_digits()

    def longer(a: torch.Tensor) -> torch.Tensor:
        a[0] *= 1e4
        return a

    def run(*layers: Layer) -> Result:
        method = algorithms["fedcmoo"](lr=0.5, local_steps=6, batch_size=32)
        return train(problem, federation, method, rounds=8, layers=layers, evaluate={"every": 8})

    honest = run()
    assert not named(honest)
    assert min(accuracies(honest)) > 0.6
    for change in (longer, lambda a: a * 0 + 1e30):
        attacked = run(Says([7], S=change))
        assert named(attacked) == {7}
        assert accuracies(attacked) == pytest.approx(accuracies(honest), abs=0.01)


@pytest.mark.parametrize("method", ["fedavg", "fedmgda", "fmgda", "fsmgda", "fedcmoo", "q-fedavg", "afl"])
def test_1e30_is_dropped_and_the_run_goes_on(method: str) -> None:
    """R5: it ended these runs, or took them to chance."""
    how = {} if method == "afl" else {"local_steps": 3}
    hostile = dict.fromkeys(("delta", "deltas", "S", "g"), lambda a: a * 0 + 1e30)
    settings: dict[str, Any] = {"rounds": 3, "layers": [Says([4], **hostile)]}
    result = train(small_problem(), small_federation(), algorithms[method](lr=0.1, **how), **settings)
    assert named(result) == {4}
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


def test_honest_runs_have_the_same_bits_with_and_without() -> None:
    shas = {
        (guard, engine): train(
            small_problem(), small_federation(clients=12), FedAvg(lr=0.3, local_steps=3), rounds=3, guard=guard,
            engine=engine,
        ).summary["model_sha256"]
        for guard in ("on", "off") for engine in ("local", "wire")
    }  # fmt: skip
    assert len(set(shas.values())) == 1


def test_memory_does_not_grow_with_the_cohort() -> None:
    """Lengths are noted, replies are not: how many are alive at once."""
    most = {}
    for clients in (60, 240):
        problem, federation = small_problem(), small_federation(clients=clients, rows=4)
        engine: Engine = engines["local"]({"": Part(problem, federation)}, Layers())
        door, replies = open_door(problem, federation, engine), engine.replies
        made: list[weakref.ref[Any]] = []
        alive = []

        def watched(clients: Any, request: Request, replies: Any = replies) -> Iterator[Stack]:
            for stack in replies(clients, request):
                made.append(weakref.ref(stack["delta"]))  # noqa: B023
                alive.append(sum(ref() is not None for ref in made))  # noqa: B023
                yield stack

        engine.replies = watched  # type: ignore[method-assign]
        door.begin(1)
        assert len(door.sum(range(clients), sgd()).clients) == clients
        most[clients] = max(alive)
    assert most[240] == most[60] <= FIRST + 2


def test_who_has_no_stake_is_short_and_makes_nobody_long() -> None:
    """Four of six clients hold what weighs 1e-16: the other two send honestly, and one of the four does not."""
    population = Population(("a", "b"), np.full(6, 10), np.array([[True, False]] * 2 + [[False, True]] * 4))
    request = Request("sgd", {"omega": torch.tensor([1.0, 1e-16])}, options={"lr": 0.1})
    problem = small_problem(objectives=2)
    part = Part(problem, small_federation(), None)
    expected = expected_replies({"": part}, population, Layers(), request)
    lengths = np.zeros((6, len(expected.labels)))
    column = expected.labels.index("its update 'delta'")
    lengths[:, column] = [1.0, 2.0, 1e-16, 1e-16, 1e-16, 1e4]
    held = population.holds.astype(float)
    per = expected._with_stakes(lengths[:, : lengths.shape[1] - len(expected.twins)], held)
    guard = Guard(expected.labels, twins=expected.twins)
    guard._median = medians(per, known=2)
    assert guard._far(per).tolist() == [False] * 5 + [True]


def test_long_gradients_with_small_weights_are_honest() -> None:
    """Eight clients hold a, two hold b, whose gradients are 100 times as long and which MGDA weighs a hundredth."""
    population = Population(("a", "b"), np.full(10, 10), np.array([[True, False]] * 8 + [[False, True]] * 2))
    request = Request("sgd", {"omega": torch.tensor([1.0, 0.01])}, options={"lr": 0.1})
    part = Part(small_problem(objectives=2), small_federation(), None)
    expected = expected_replies({"": part}, population, Layers(), request)
    guard = Guard(expected.labels, twins=expected.twins)
    raw = np.ones((10, len(expected.labels) - len(expected.twins)))
    per = expected._with_stakes(raw, population.holds.astype(float))
    guard._median = medians(per)
    assert not guard._far(per).any()
    per[9] *= 1e4
    assert guard._far(per).tolist() == [False] * 9 + [True]


def test_whom_the_model_does_not_fit_is_not_far(tmp_path: Path) -> None:
    """Nineteen clinics without a case, one with all of them: the others' updates go to 0, and it is the one to hear."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 40, 6)).astype(np.float32)
    y = np.zeros((20, 40), dtype=np.int64)
    y[0] = 1
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    f = Federation.from_clients([(x[i], {"case": y[i]}) for i in range(20)])
    made = Problem(model, [Objective("case", "binary")])
    result = train(made, f, FedAvg(lr=0.5, local_steps=10), rounds=40, cohort=5, out=tmp_path / "run")
    assert sum(0 in line["cohort"] for line in result.history) > 3
    assert result.summary["failures"] == 0


def test_a_run_remembers_what_is_usual(tmp_path: Path) -> None:
    """A resumed run compares with the same medians as one that was never stopped."""
    guard = Guard(["length"], floor=np.array([1.0]))
    few = np.full((5, 1), 1e-6)
    few[0] = 1.0
    assert guard.compare(range(5), few) == {}
    assert list(Guard(["length"]).compare(range(5), few)) == [0]
    problem, f = small_problem(), small_federation()
    train(problem, f, FedAvg(lr=0.1), rounds=2, out=tmp_path / "run")
    path = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    tree = read_checkpoint(path)
    assert tree is not None
    assert "medians" in tree


def test_a_weight_below_what_the_server_knows_is_refused() -> None:
    """A tiny weight of the only holder of an objective would make its mean as large as one likes."""
    _, failed = asked(Says([3], heard=lambda a: a * 1e-30), sgd(weight="size"), "local")
    assert "its weight 'heard' is 2e-29; it should be 20" in failed[3]
