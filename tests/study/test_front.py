"""A front: known ones are found, what is missing is trained and nothing else, a preference picks its point."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from scipy.optimize import brentq
from torch import nn

import polyfed
from polyfed import FedAvg, FedCMOOPref, Federation, Objective, Problem
from polyfed.core.errors import BadInput, Interrupted, PolyfedError
from polyfed.metrics import hypervolume
from polyfed.run.callbacks import Callback, RunView
from polyfed.study import training
from polyfed.study.front import Front
from polyfed.study.runner import run_cell

Curve = Callable[[float], tuple[float, float]]
PLACES = 31  # that a point is tried at between its neighbours, for the best places


def experiment(name: str, start: Path | None = None, **data: Any) -> dict[str, Any]:
    return {
        "name": name,
        "rounds": 20,
        "cohort": "all",
        "evaluate": {"every": 1000},
        "data": {"name": name, "examples": 1, "clients": 1, **data},
        "model": {"name": "point"} | ({} if start is None else {"weights": str(start)}),
        "algorithm": {"name": "fedcmoo", "lr": 0.2, "local_steps": 5, "batch_size": 0},
    }


def away(folder: Path, dim: int) -> Path:
    """A start that is nowhere near the front."""
    far = torch.from_numpy(np.random.default_rng(1).normal(size=dim)).float() * 0.6
    save_file({"w": far}, folder / "start.safetensors")
    return folder / "start.safetensors"


def losses(front: Front, kind: str = "preference") -> NDArray[np.float64]:
    return np.array([list(point.losses.values()) for point in front.points if point.kind == kind])


# fronts that are known


def bells(s: float) -> tuple[float, float]:
    """VLMOP1's front, from -1 to 1."""
    return 1 - np.exp(-((1 - s) ** 2)), 1 - np.exp(-((1 + s) ** 2))


def parabolas(s: float) -> tuple[float, float]:
    """That of |w - e_1|^2 / 2 and |w - e_2|^2 / 2, from 0 to 1."""
    return (1 - s) ** 2, s**2


def preferred(curve: Curve, low: float, r: tuple[float, float]) -> tuple[float, float]:
    """The point of a front, which ends at 1, where r_1 F_1 = r_2 F_2."""
    if 0.0 in r:
        return curve(1.0 if r[1] == 0.0 else low)
    return curve(brentq(lambda s: r[0] * curve(s)[0] - r[1] * curve(s)[1], low, 1.0))


def best_placed(curve: Curve, low: float, count: int, reference: list[float]) -> float:
    """The hypervolume of so many points of a front, put where it is largest, one after the other until none moves."""
    places = np.linspace(low, 1.0, count)

    def volume(some: NDArray[np.float64]) -> float:
        return hypervolume([curve(s) for s in some], reference)

    for _ in range(8):
        for k in range(count):
            between = places[k - 1] if k else low, places[k + 1] if k < count - 1 else 1.0
            tried = [np.r_[places[:k], s, places[k + 1 :]] for s in np.linspace(*between, PLACES)]
            places = max([places, *tried], key=volume)
    return volume(places)


@pytest.mark.parametrize(
    ("name", "curve", "low", "dim"), [("vlmop1", bells, -1.0, 4), ("paraboloids", parabolas, 0.0, 2)]
)
def test_eleven_points_are_worth_as_many_ideal_ones(
    tmp_path: Path, name: str, curve: Curve, low: float, dim: int
) -> None:
    """Ideal points: those of the same preferences, of equally spaced ones, and the best that there are, all exact."""
    pytest.importorskip("moocore")
    more = {"dim": dim} if name == "vlmop1" else {}
    front = polyfed.front(experiment(name, away(tmp_path, dim), **more), out=tmp_path / "front")
    ends = np.array([curve(low), curve(1.0)])
    reference = (ends.max(0) + 0.1 * np.ptp(ends, axis=0)).tolist()
    found = hypervolume(losses(front).tolist(), reference)
    same = [preferred(curve, low, (r["f1"], r["f2"])) for r in (point.preference for point in front.points)]
    even = [preferred(curve, low, (r, 1 - r)) for r in np.linspace(0, 1, 11).tolist()]
    assert len(front.points) == 11
    assert found == pytest.approx(hypervolume(same, reference), rel=0.01)
    assert found > 0.99 * hypervolume(even, reference)
    assert found > 0.99 * best_placed(curve, low, 11, reference)
    assert front.spacing is not None
    assert front.spacing < 0.1


def test_weighted_sums_miss_what_preferences_find_where_a_front_bends_inwards(tmp_path: Path) -> None:
    pytest.importorskip("moocore")
    keys = experiment("vlmop1", away(tmp_path, 4))
    front = polyfed.front(keys, method="both", points=7, out=tmp_path / "front")
    by_kind = front.about["by_kind"]
    assert by_kind["scalarisation"]["hypervolume"] < 0.8 * by_kind["preference"]["hypervolume"]
    assert ((losses(front) > 0.1).all(1)).sum() >= 5  # between the ends
    assert ((losses(front, "scalarisation") > 0.1).all(1)).sum() <= 1


def test_three_objectives_fill_the_triangle(tmp_path: Path) -> None:
    front = polyfed.front(experiment("paraboloids", objectives=3), points=10, out=tmp_path / "front")
    models = np.array([load_file(point.run / "model.safetensors")["w"].numpy() for point in front.points])
    assert np.allclose(models.sum(1), 1, atol=0.05)  # on the front: not negative, and adding up to 1
    assert models.min() > -0.05
    apart = np.linalg.norm(models[:, None] - models[None], axis=2) + 9 * np.eye(len(models))
    assert apart.min() > 0.1
    assert all(point.non_dominated for point in front.points)


# each from its neighbour, and only once


def small(folder: Path, **more: Any) -> Front:
    return polyfed.front({**experiment("paraboloids"), "rounds": 6}, **{"points": 5, "out": folder, **more})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Front:
    return small(tmp_path_factory.mktemp("fronts") / "front")


def test_each_point_begins_with_a_neighbours_model(made: Front) -> None:
    by_run = {point.run.name: point for point in made.points}
    first = [point for point in made.points if point.start is None]
    assert [dict(point.preference) for point in first] == [{"f1": 0.5, "f2": 0.5}]
    for point in made.points:
        settings = (point.run / "experiment.toml").read_text()
        assert ("weights" in settings) == (point.start is not None)
        if point.start is not None:
            assert str(point.start.resolve() / "model.safetensors") in settings
            assert by_run[point.start.name].state == "done"
    assert [point.round for point in made.points].count(3) == 4  # half of the first's


class Stop(Callback):
    """Ends a run in round 2, as Ctrl-C does."""

    def on_round(self, run: RunView, line: Any) -> None:
        if run.round == 2:
            raise KeyboardInterrupt


def test_called_again_it_trains_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def counted(*arguments: Any, callbacks: Any = (), **more: Any) -> Any:
        trained.append(arguments[2].name)
        return run_cell(*arguments, callbacks=[*callbacks, *([Stop()] if len(trained) == 3 else [])], **more)

    monkeypatch.setattr(training, "run_cell", counted)
    with pytest.raises(Interrupted, match="the same command goes on"):
        small(tmp_path / "front")
    half = json.loads((tmp_path / "front" / "front.json").read_text())
    assert (half["state"], len(half["points"])) == ("running", 2)
    front = small(tmp_path / "front")
    assert len(trained) == 3 + 3  # the third again, and two more
    whole = small(tmp_path / "other")
    assert front.about == whole.about
    for one, other in zip(front.points, whole.points, strict=True):
        assert (one.run / "model.safetensors").read_bytes() == (other.run / "model.safetensors").read_bytes()


def test_other_settings_are_other_points_in_the_same_folder(tmp_path: Path) -> None:
    before = {point.run.name for point in small(tmp_path / "front").points}
    after = {point.run.name for point in small(tmp_path / "front", settings={"algorithm.lr": 0.1}).points}
    assert not before & after
    assert {path.parent.name for path in (tmp_path / "front").glob("*/result.json")} == before | after


def test_a_moved_front_needs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "front")
    (tmp_path / "front").rename(tmp_path / "moved")

    def never(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a point was trained again")

    monkeypatch.setattr(training, "run_cell", never)
    front = small(tmp_path / "moved")
    assert front.points[0].load().model(torch.zeros(1, 2)).shape == (1, 2)


# Python


def own() -> dict[str, Any]:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    objectives = [Objective("profit", "squared"), Objective("waste", "squared")]
    targets = {"profit": x[:, 0] + 1, "waste": x[:, 1] - 1}
    how: dict[str, Any] = {"lr": 0.1, "batch_size": 0, "local_steps": 3}
    algorithm = {"preference": FedCMOOPref(**how), "scalarisation": FedAvg(**how)}
    federation = Federation.from_arrays(x, targets, clients=2)
    return {"problem": Problem(model, objectives), "federation": federation, "algorithm": algorithm}


def test_a_problem_of_ones_own(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"method": "both", "points": 4, "first_rounds": 6, "out": tmp_path / "front"}
    front = polyfed.front(**own(), **arguments)
    assert [point.kind for point in front.points].count("scalarisation") == 4
    assert front.hypervolume is None or front.hypervolume > 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "front").glob("*/result.json")}
    again = polyfed.front(**own(), **arguments)
    assert again.about == front.about
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "front").glob("*/result.json")} == before
    weight = front.pick(profit=1.0).load(model=nn.Linear(4, 1)).model.state_dict()["weight"]
    assert weight[0, 0] > weight[0, 1]  # the model for profit goes by profit's feature


def test_how_a_front_shows_itself(made: Front) -> None:
    table = made.to_pandas()
    assert list(table["loss.f1"]) == [point.losses["f1"] for point in made.points]
    assert "<table>" in made._repr_html_()
    assert "5 of 5 points (*) are not dominated" in str(made)
    assert "objectives" not in repr(made)
    assert Front.load(str(made.path)).about == json.loads(json.dumps(made.about))


def test_names_of_objectives_are_no_markup(made: Front) -> None:
    told = json.loads(json.dumps(made.about).replace('"f1"', '"<b>f1"'))
    assert "<b>" not in Front(made.path, told)._repr_html_()


def test_without_moocore_there_is_a_sentence_in_place_of_the_hypervolume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "moocore", None)
    front = small(tmp_path / "front", points=3)
    assert front.hypervolume is None
    assert "pip install 'polyfed[front]'" in str(front)


def test_a_plot_has_every_point(made: Front) -> None:
    pytest.importorskip("matplotlib")
    drawn = made.plot()
    assert drawn.axes[0].get_xlabel() == "loss of f1"
    places = {tuple(xy) for cloud in drawn.axes[0].lines for xy in np.asarray(cloud.get_xydata()).tolist()}
    places |= {tuple(xy) for cloud in drawn.axes[0].collections for xy in np.asarray(cloud.get_offsets()).tolist()}
    assert {(point.losses["f1"], point.losses["f2"]) for point in made.points} <= places
    assert "<svg" in made._repr_html_()


# picking


def test_a_preference_picks_the_least_largest_weighted_loss(made: Front) -> None:
    for r in ({"f1": 0.6, "f2": 0.4}, {"f1": 1.0}, {"f1": 0.01, "f2": 0.99}):
        worst = [max(r.get(k, 0) * F for k, F in point.losses.items()) for point in made.points]
        assert made.pick(r).run == made.points[int(np.argmin(worst))].run
    assert made.pick(f1=2.0, f2=2.0).run == made.pick({"f1": 0.5, "f2": 0.5}).run


@pytest.mark.parametrize(
    ("preference", "said"),
    [
        ({"f3": 1.0}, "which is no objective here"),
        ({"f1": -1.0}, "numbers from 0 on"),
        ({"f1": 0.0}, "a number above 0"),
        ({}, "a number above 0"),
    ],
)
def test_a_preference_that_says_nothing_is_refused(
    tmp_path_factory: pytest.TempPathFactory, preference: dict[str, float], said: str
) -> None:
    told = {"objectives": ["f1", "f2"], "points": []}
    with pytest.raises(BadInput, match=said):
        Front(tmp_path_factory.getbasetemp(), told).pick(preference)


# what is refused


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"points": 2}, "at least 3"),
        ({"reference": {"f1": 1.0}}, "'f2' is missing"),
        ({"reference": {"f1": 1.0, "f2": 1.0, "f3": 1.0}}, "'f3', which is no objective"),
        ({"method": "weights"}, "'preference', 'scalarisation' or 'both'"),
        ({"rounds": 0}, "whole number from 1 on"),
        ({"settings": {"algorithm.mu": 1.0}}, "None of the methods"),
        ({"settings": ["algorithm.lr=0.1,0.2"]}, "one value for each key"),
    ],
)
def test_bad_input_writes_nothing(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        small(tmp_path / "front", **more)
    assert not (tmp_path / "front").exists()


def test_one_objective_has_no_front(tmp_path: Path) -> None:
    keys = {**experiment("quadratic", objectives=1), "model": {"name": "point", "dtype": "float64"}}
    with pytest.raises(BadInput, match="between two objectives or more"):
        polyfed.front(keys, out=tmp_path / "front")


def test_losses_below_zero_are_a_sentence_and_leave_no_front(tmp_path: Path) -> None:
    keys = {**experiment("quadratic", dim=2), "model": {"name": "point", "dtype": "float64"}}
    with pytest.raises(PolyfedError, match="losses that are not negative"):
        polyfed.front(keys, out=tmp_path / "front")
    assert not (tmp_path / "front" / "front.json").exists()
