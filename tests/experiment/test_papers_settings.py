"""Settings that the papers' experiments need: a loss per objective, clients always or never drawn, relative costs."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from polyfed import FedAvg, Federation, Misreport, Mocha, MultiModel, Network, Objective, Problem, train, train_many
from polyfed.algorithms.tasks.regularisers import Independent
from polyfed.cli import app
from polyfed.core.door import Door, draw_cohort
from polyfed.core.errors import BadInput
from polyfed.core.problem import Metric
from polyfed.data import Dataset, datasets
from polyfed.experiment.building import plan
from polyfed.experiment.gain import measure
from polyfed.experiment.objectives import with_losses
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import Result, execute
from polyfed.testing import open_door
from small import small_federation, small_problem

MIXED: dict[str, Any] = {
    "rounds": 3, "cohort": 4, "data": {"clients": 6, "examples": 300, "partition": "dirichlet"},
    "model": {"hidden": [8]}, "algorithm": {"local_steps": 3, "batch_size": 16, "lr": 0.1, "width": 16},
    "objectives": {"left": {"loss": "squared"}},
}  # fmt: skip


def run(settings: dict[str, Any], out: str = "run") -> Result:
    made, resolved = plan("mixed", settings)
    return execute(made, RunDirectory.create(Path(out), "mixed", {"name": "mixed", **resolved}))


# -- a loss per objective: FedCMOO's Table 2, l2 beside cross-entropy


def by_hand(outputs: torch.Tensor, label: torch.Tensor) -> float:
    """The mean over examples of the mean over classes of (output - [it is the class])^2, written out."""
    total = 0.0
    for row, its in zip(outputs.tolist(), label.tolist(), strict=True):
        total += sum((o - (c == its)) ** 2 for c, o in enumerate(row)) / len(row)
    return total / len(label)


@pytest.mark.parametrize("engine", ["local", "batched", "wire"])
def test_squared_loss_of_one_objective_is_the_hand_computation(engine: str) -> None:
    result = run({**MIXED, "engine": {"name": engine}})
    data = datasets["two-digits"](seed=0, examples=300)
    x = torch.from_numpy(data.x[300:])
    left, right = (torch.from_numpy(data.targets[name][300:]) for name in ("left", "right"))
    with torch.no_grad():
        out = result.model(x)
    assert out["left"].shape == (60, 10), "as many outputs as classes"
    found = result.summary["objectives"]
    assert found["left"]["loss"] == pytest.approx(by_hand(out["left"], left), rel=1e-5)
    assert found["right"]["loss"] == pytest.approx(float(nn.functional.cross_entropy(out["right"], right)), rel=1e-5)
    assert found["left"]["accuracy"] == pytest.approx(float((out["left"].argmax(1) == left).float().mean()))
    assert set(found["left"]) == {"loss", "accuracy"}


def test_the_losses_start_at_their_known_values() -> None:
    """A network of zeros: 1/10 for one-hot targets, log 10 for cross-entropy, of sigmoids (all 1/2) as well."""
    made, _ = plan("zeros", {**MIXED, "objectives": {"left": {"loss": "squared"}}})
    other, _ = plan("zeros", {**MIXED, "objectives": {"left": {"loss": "cross-entropy-of-sigmoid"}}})
    for p, expected in ((made, 0.1), (other, math.log(10))):
        problem, batch = p.parts[""].problem, p.parts[""].federation.take(torch.arange(20))
        outputs = {name: torch.zeros(20, 10) for name in problem.names}
        left, right = problem.losses(outputs, batch, [True, True])
        assert float(left) == pytest.approx(expected)
        assert float(right) == pytest.approx(math.log(10))


def test_cross_entropy_of_sigmoid_by_hand() -> None:
    """The multi-model paper's authors: inputs to the softmax lie in (0, 1), and so the loss has a floor."""
    objective = Objective("y", "cross-entropy-of-sigmoid")
    output, target = torch.tensor([[2.0, -1.0, 0.5], [90.0, -90.0, -90.0]]), torch.tensor([2, 0])
    s = [1 / (1 + math.exp(-z)) for z in (2.0, -1.0, 0.5)]
    first = -s[2] + math.log(sum(math.exp(v) for v in s))
    floor = math.log(1 + 2 / math.e)
    assert objective.values["loss"](output, target).tolist() == pytest.approx([first, floor])
    assert objective.values["accuracy"](output, target).tolist() == [0, 1]


def test_the_multi_model_papers_logistic_regression_learns_under_it() -> None:
    data = {"name": "synthetic", "users": 10, "partition": "natural"}
    settings = {
        "rounds": 10, "cohort": "all", "data": data, "model": {"name": "linear"},
        "algorithm": {"name": "fedavg", "lr": 1.0, "local_steps": 5},
        "objectives": {"class": {"loss": "cross-entropy-of-sigmoid"}},
    }  # fmt: skip
    losses = [line["losses"]["class"] for line in run(settings).history]
    assert losses[-1] < losses[0] - 0.05
    assert min(losses) > math.log(1 + 4 / math.e), "its floor with five classes"


def test_the_losses_are_kept_for_those_who_resume() -> None:
    whole = run(MIXED, "whole")
    made, resolved = plan("mixed", MIXED)
    part = RunDirectory.create(Path("part"), "mixed", {"name": "mixed", **resolved})
    execute(replace(made, rounds=1), part)
    Path("part/result.json").unlink()
    assert tomllib.loads(Path("part/experiment.toml").read_text())["objectives"] == {"left": {"loss": "squared"}}
    done = CliRunner().invoke(app, ["resume", "part", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["model_sha256"] == whole.summary["model_sha256"]


def test_the_losses_reach_a_deployments_clients() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
    import tomli_w

    from polyfed.deploy.app import client_app
    from polyfed.deploy.client import Sites
    from polyfed.deploy.grid import InProcess
    from polyfed.deploy.server import federate

    Path("experiment.toml").write_text(tomli_w.dumps(MIXED))
    config = {"out": str(Path("flower").absolute()), "timeout": 60.0, "wait": 20.0}
    nodes = [{"partition-id": i, "state": str(Path(f"state-{i}").absolute())} for i in range(6)]
    sites = [Sites(Path.cwd()) for _ in nodes]
    clients = client_app(
        lambda c, to, m: sites[int(str(c.node_config["partition-id"]))].answer(config, c.node_config, to, m)
    )
    summary = federate(Path.cwd(), InProcess(clients, nodes), config)
    assert summary["model_sha256"] == run(MIXED, "local").summary["model_sha256"]


def test_all_models_have_the_losses_of_the_experiment() -> None:
    settings = {
        **MIXED, "cohort": "all", "algorithm": {"name": "fedavg", "local_steps": 2},
        "models": {"one": {"objectives": ["left"]}, "two": {}},
    }  # fmt: skip
    made, resolved = plan("several", settings)
    assert [o.loss for o in made.parts["one"].problem.objectives] == ["squared"]
    assert [o.loss for o in made.parts["two"].problem.objectives] == ["squared", "cross-entropy"]
    again, _ = plan("several", resolved)
    assert [o.loss for o in again.parts["two"].problem.objectives] == ["squared", "cross-entropy"]
    assert set(run(settings).summary["objectives"]["one/left"]) == {"loss", "accuracy"}


def test_gain_trains_one_model_whose_objectives_are_only_some() -> None:
    settings = {
        **MIXED, "cohort": "all", "algorithm": {"name": "fedavg", "local_steps": 2},
        "models": {"one": {"objectives": ["right"]}, "two": {"objectives": ["left"]}},
    }  # fmt: skip
    found = measure(settings, [1], schedules=["mfa-rr"])
    assert found["rows"][0]["gain"] == [1.0]
    with pytest.raises(BadInput, match=r"names 'lift', which is no objective here. Did you mean 'left'"):
        measure({**settings, "objectives": {"lift": {"loss": "squared"}}}, [2], schedules=["mfa-rr"])


@pytest.mark.parametrize(
    ("objectives", "sentence"),
    [
        ({"lft": {"loss": "squared"}}, "[objectives] names 'lft', which is no objective here. Did you mean 'left'?"),
        ({"left": {"loss": "squard"}}, "Unknown objectives.left.loss 'squard'. Did you mean 'squared'?"),
        ({"left": {"loss": "squared", "lr": 1}}, "Unknown key 'objectives.left.lr'."),
        ({"left": {}}, "The key 'objectives.left.loss' is needed and was not given."),
        ({"left": "squared"}, "objectives.left should be a table. Found 'squared'."),
        ({"left": {"loss": "binary"}}, "objectives.left.loss = 'binary' needs labels 0 and 1 as targets. Found int64"),
    ],
)
def test_a_bad_loss_is_a_sentence(objectives: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan("bad", {**MIXED, "objectives": objectives})
    assert sentence in str(caught.value)


def table(**losses: str) -> Dataset:
    """Yes or no, a class, a number, and several yes or no, under other losses."""
    targets = {
        "yes": np.array([0, 1, 1]), "kind": np.array([2, 0, 1]), "size": np.array([0.5, -2.0, 3.0]),
        "many": np.array([[0, 1], [1, 1], [0, 0]]), "count": np.array([1.0, 0.0, 4.0]),
    }  # fmt: skip
    own = {"yes": "binary", "kind": "cross-entropy", "size": "squared", "many": "binary", "count": "squared"}
    made = Dataset(np.zeros((3, 2), np.float32), targets, tuple(Objective(n, loss) for n, loss in own.items()))
    return with_losses(made, losses)


def test_labels_stay_labels_under_any_loss() -> None:
    from polyfed.models import widths

    data = table(yes="squared", kind="squared", many="squared", count="cross-entropy")
    assert widths(data) == {"yes": 1, "kind": 3, "size": 1, "many": 2, "count": 5}
    objectives = {o.name: o for o in data.objectives}
    yes = objectives["yes"]
    output, target = torch.tensor([[0.2], [0.4], [0.9]]), torch.tensor([0, 1, 1])
    assert yes.values["loss"](output, target).tolist() == pytest.approx([0.04, 0.36, 0.01])
    assert yes.values["accuracy"](output, target).tolist() == [1, 0, 1], "nearer to 1 than to 0, and not: above 0"
    assert widths(table(yes="cross-entropy"))["yes"] == 2
    for losses, sentence in (
        ({"size": "cross-entropy"}, "needs class numbers 0, 1, ... as targets. Found float64 of shape"),
        ({"count": "binary"}, "needs labels 0 and 1"),
        ({"many": "cross-entropy"}, "Found int64 of shape (3, 2) up to 1."),
    ):
        with pytest.raises(BadInput) as caught:
            table(**losses)
        assert sentence in str(caught.value)


def test_metrics_of_ones_own_stay_and_classes_go_with_squared_only() -> None:
    mine = {"mine": Metric(lambda output, target: output[:, 0], "higher")}
    data = Dataset(np.zeros((3, 2)), {"kind": np.array([2, 0, 1])}, (Objective("kind", "cross-entropy", mine),))
    assert list(with_losses(data, {"kind": "squared"}).objectives[0].values) == ["loss", "mine"]
    for loss, classes in (("cross-entropy", 3), ("squared", 1)):
        with pytest.raises(BadInput, match=r"classes should be 2 or more, beside the loss 'squared'"):
            Objective("kind", loss, classes=classes)


# -- clients that are always, and clients that are never drawn


def test_without_the_keys_draws_are_as_ever() -> None:
    examples = np.ones(40, dtype=np.int64)
    assert draw_cohort(examples, 5, 0, "cohort", 1) == draw_cohort(examples, 5, 0, "cohort", 1, (), ())


def test_always_are_there_never_are_not_and_the_rest_is_uniform() -> None:
    """Two of ten take part always, three never: the other five share three places, 3/5 of the rounds each."""
    examples = np.ones(10, dtype=np.int64)
    rounds = [draw_cohort(examples, 5, 0, "cohort", t, (3, 8), (0, 1, 9)) for t in range(1, 2001)]
    assert all(cohort == sorted(set(cohort)) and len(cohort) == 5 for cohort in rounds)
    often = np.bincount(np.concatenate(rounds), minlength=10) / 2000
    assert often[[3, 8]].tolist() == [1, 1]
    assert often[[0, 1, 9]].tolist() == [0, 0, 0]
    assert np.allclose(often[[2, 4, 5, 6, 7]], 0.6, atol=0.05)
    examples[3] = 0
    cohort = draw_cohort(examples, 5, 0, "cohort", 1, (3, 8), (0, 1, 9))
    assert len(cohort) == 5, "who has no examples leaves its place to the others"
    assert 8 in cohort


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_an_attacker_who_is_there_in_every_round(engine: str) -> None:
    """FedMGDA's experiment (section VI): one user inflates its loss in each round; normalised updates bear it."""
    problem, federation = small_problem(), small_federation()
    attack: dict[str, Any] = {
        "rounds": 5, "cohort": 3, "cohort_always": [3], "engine": engine,
        "layers": [Misreport(clients=[3], factor=50.0)],
    }  # fmt: skip
    history = train(problem, federation, {"name": "fedavg", "lr": 0.05, "local_steps": 1}, **attack).history
    assert all(3 in line["cohort"] and len(line["cohort"]) == 3 for line in history)
    assert len({tuple(line["cohort"]) for line in history}) > 1
    honest = train(
        problem, federation, {"name": "fedavg", "lr": 0.05, "local_steps": 1}, **{**attack, "layers": []}
    ).history
    assert [line["cohort"] for line in honest] == [line["cohort"] for line in history]
    assert honest[-1]["losses"] != history[-1]["losses"]
    same = [
        train(problem, federation, {"name": "fedmgda+", "lr": 0.05, "local_steps": 1}, **{**attack, "layers": some})
        for some in (list[Misreport](), attack["layers"])
    ]
    assert same[0].history[-1]["losses"] == pytest.approx(same[1].history[-1]["losses"], rel=1e-4)


def test_who_never_takes_part_is_evaluated() -> None:
    """A client of nothing but a label of its own: nobody learns it, and it is the worst; trained on, it is not."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(30, 2)).astype(np.float32) + 5 * (i == 2), np.full(30, i)) for i in range(3)]
    problem = Problem(nn.Linear(2, 3), [Objective("kind", "cross-entropy")])
    method = FedAvg(lr=0.1, local_steps=5)
    options: dict[str, Any] = {"rounds": 30, "evaluate": {"clients": True, "every": 30}}
    without = train(problem, Federation.from_clients(clients), method, cohort_never=[2], **options).history
    everyone = train(problem, Federation.from_clients(clients), method, **options).history
    assert all(line["cohort"] == [0, 1] for line in without)
    assert without[-1]["clients"]["kind"]["accuracy"]["worst"] == 0
    assert everyone[-1]["clients"]["kind"]["accuracy"]["mean"] > without[-1]["clients"]["kind"]["accuracy"]["mean"]


def test_a_methods_own_sets_leave_them_out_and_measurements_do_not() -> None:
    """FedCMOO's two sets of Algorithm 10 are drawn for training; what is asked in round 0 is not."""
    inner = open_door(small_problem(), small_federation())
    door = Door(inner.inner, inner.problem, cohort=3, always=(1,), never=(0, 2))
    sets = [door.cohort(t, "gram-0", 3) for t in range(1, 60)]
    assert not {0, 2} & {client for some in sets for client in some}
    assert any(1 not in some for some in sets), "independent of the cohort, and so without those always in it"
    assert all(1 in door.cohort(t) for t in range(1, 60))
    assert door.cohort(0, "evaluate", len(door)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("schedule", ["mfa-rr", "mfa-rand"])
def test_many_models_share_those_who_are_drawn(schedule: str) -> None:
    problem, federation = small_problem(), small_federation()
    method = FedAvg(lr=0.1, local_steps=1)
    several = MultiModel({"a": (problem, method), "b": (problem, method)}, schedule)
    history = train_many(several, federation, rounds=6, cohort=4, cohort_always=[1], cohort_never=[0, 2]).history
    groups = [line["groups"] for line in history]
    assert all(sum(1 in group for group in g.values()) == 1 for g in groups), "one model each round"
    assert not any({0, 2} & set(group) for g in groups for group in g.values())
    assert {len(group) for g in groups for group in g.values()} == {2}
    if schedule == "mfa-rr":
        assert [next(m for m, group in g.items() if 1 in group) for g in groups[:2]] in (["a", "b"], ["b", "a"])


def test_the_keys_are_kept_and_a_run_goes_on_with_them_only() -> None:
    settings = {**MIXED, "cohort_always": [3], "cohort_never": [0, 5], "cohort": 2}
    result = run(settings)
    assert all(3 in line["cohort"] and not {0, 5} & set(line["cohort"]) for line in result.history)
    kept = tomllib.loads(Path("run/experiment.toml").read_text())
    assert (kept["cohort_always"], kept["cohort_never"]) == ([3], [0, 5])
    run(MIXED, "plain")
    assert "cohort_always" not in Path("plain/experiment.toml").read_text()
    problem, federation = small_problem(), small_federation()
    train(problem, federation, "fedavg", rounds=1, cohort_never=list(np.array([1])), out="mine")
    with pytest.raises(BadInput, match=r"was begun with cohort_never = \[1\]; found None"):
        train(problem, federation, "fedavg", rounds=2, out="mine", resume=True)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"cohort_always": [6]}, "cohort_always should be numbers below the number of clients, 6. Found [6]."),
        ({"cohort_never": [1, 9]}, "cohort_never should be numbers below the number of clients, 6. Found [1, 9]."),
        ({"cohort_never": [-1]}, "cohort_never.0 should be greater than or equal to 0. Found -1."),
        ({"cohort_always": [1, 2], "cohort_never": [2]}, "in cohort_always or in cohort_never. Found [2] in both."),
        ({"cohort_always": [0, 1, 2, 3, 4]}, "name no more clients than a cohort has, 4. Found [0, 1, 2, 3, 4]."),
        ({"cohort_never": [0, 1, 2, 3, 4, 5]}, "should leave somebody to train. Found all 6 clients."),
        (
            {"cohort_never": [0, 1, 2]},
            "cohort should be at most the number of clients not in cohort_never, 3. Found 4.",
        ),
    ],
)
def test_contradictions_are_sentences(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan("bad", {**MIXED, **keys})
    assert sentence in str(caught.value)


# -- communication relative to computation (MOCHA, section 5.3)


def linear(clients: int, rows: int, features: int) -> tuple[Problem, Federation]:
    torch.manual_seed(0)
    x = torch.randn(clients * rows, features)
    arrays = [(x[i::clients], {"y": (x[i::clients, 0] > 0).long()}) for i in range(clients)]
    return Problem(nn.Linear(features, 1, bias=False), [Objective("y", "binary")]), Federation.from_clients(arrays)


@pytest.mark.parametrize("communication", [10.0, 100.0, 1000.0])
def test_a_number_on_its_way_costs_so_many_operations(communication: float) -> None:
    """d = 7, M = 1. FedAvg: x and omega down, 8; change, loss, who was heard and weight up, 10. MOCHA: w, s, c and
    the budget down, 10; dv and the steps made up, 8. Computation as ever: 6 d a gradient and row, 4 d a step."""
    d = 7
    problem, federation = linear(3, 12, d)
    for method, operations in ((FedAvg(local_steps=4, batch_size=5), 6 * d * 20), (mocha(5), 4 * d * 5)):
        network = Network(clock=2.0, communication=communication)
        history = train(problem, federation, method, rounds=2, layers=[network]).history
        seconds = (operations + 18 * communication) / 2
        assert [line["simulated_seconds"] for line in history] == pytest.approx([seconds, seconds])


def mocha(steps: int) -> Mocha:
    return Mocha(steps=steps, regulariser=Independent())


def test_relative_cost_has_latency_only_where_it_is_given_and_no_bandwidth() -> None:
    problem, federation = linear(3, 12, 7)
    slow = Network(kind="3g", clock=1.0, communication=10.0, latency=3.0)
    line = train(problem, federation, mocha(5), rounds=1, layers=[slow]).history[0]
    assert line["simulated_seconds"] == pytest.approx(4 * 7 * 5 + 180 + 3)
    with pytest.raises(BadInput, match=r"communication takes the place of network.down and network.up. Found"):
        train(problem, federation, mocha(5), rounds=1, layers=[Network(communication=10.0, up=1e6)])
    with pytest.raises(BadInput, match=r"communication should be greater than 0"):
        Network(communication=0.0)
