"""MOCHA and the methods it is compared with, round by round over tasks that lie here, in simulated time.

Methods, faults and networks are those of any experiment. What is left out is what surrounds a run (its files, the check
of replies), which takes several times as long as rounds of so few steps. Several networks may time the same rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView, layer_fleets
from polyfed.core.layer import Layer, Layers
from polyfed.core.problem import Objective, Problem
from polyfed.core.settings import Settings
from polyfed.experiment.building import build_algorithm
from polyfed.layers.faults import Faults
from polyfed.layers.network import Network, Timed
from polyfed.reproduce.papers.mocha.tasks import shuffled
from polyfed.tasks.engine import ArrayEngine
from polyfed.work.linear.examples import Examples, as_examples
from polyfed.work.linear.losses import find

MOST = 100_000  # rounds of a try, whose time is over long before
TIMES = np.geomspace(1e-4, 1e3, 141)  # simulated seconds at which curves have their points: 20 a decade
FIRST = {False: 1e-3, True: 1e-2}  # of them, the same for all seeds; the later one where there is latency
TITLES = {
    "wifi": "WiFi", "lte": "LTE", "g3": "3G",
    "phone_wifi": "phones, WiFi", "phone_lte": "phones, LTE", "phone_g3": "phones, 3G",
}  # fmt: skip
FLOOR = 1e-6  # of a sub-optimality that is drawn


@dataclass
class Trace:
    """What evaluations found, from the start on: the round, simulated seconds by network, and the two values."""

    rounds: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    primal: list[float] = field(default_factory=list)
    dual: list[float] = field(default_factory=list)
    done: bool = False  # the method's own measure says so: its stop_gap is reached

    def off(self, best: float) -> Any:
        """Relative sub-optimality at each evaluation."""
        return np.array(self.primal) / best - 1


Stop = Callable[[Trace], bool]


@lru_cache(maxsize=4)
def examples(name: str, seed: int) -> list[Examples]:
    """Training rows of every task, each with a constant feature."""
    X, y, _, _ = shuffled(name, seed)
    return [
        as_examples(np.hstack([a, np.ones((len(a), 1))]), np.where(b > 0, 1.0, -1.0), find("hinge"))
        for a, b in zip(X, y, strict=True)
    ]


def trace(
    tasks: Sequence[Examples],
    method: Settings,
    networks: Mapping[str, Settings],
    *,
    seed: int,
    rounds: int,
    every: int = 1,
    faults: Settings | None = None,
    stop: Stop = lambda found: found.done,
) -> Trace:
    """A method's rounds.

    Args:
        tasks: the nodes' rows.
        method: the table of an experiment, with a name.
        networks: by name, tables of an experiment; each times the rounds.
        seed: of the nodes' draws.
        rounds: how many at most.
        every: rounds between evaluations.
        faults: the table of an experiment.
        stop: whether what was found is enough.
    """
    rule: Any = build_algorithm(method)[0]
    listed: list[Layer] = [Network(**table) for table in networks.values()]
    layers = Layers((*listed, *([Faults(**faults)] if faults else [])))
    problem = Problem(nn.Linear(tasks[0].X.shape[1], 1, bias=False), [Objective("y", "squared")], torch.float64)
    found = Trace(seconds={name: [] for name in networks})
    with closing(ArrayEngine(tasks, problem)) as engine:
        view = PartView(engine, "", engine.population[""], Clock(seed, layers))
        door = Door(layers.fleet(view), problem, cohort=len(tasks), rounds=rounds)
        clocks = dict(zip(networks, [one for one in layer_fleets(door) if isinstance(one, Timed)], strict=True))
        spent = dict.fromkeys(networks, 0.0)
        state = rule.begun(dict(problem.initial()), door)
        _note(found, rule.measure(state, door), 0, spent)
        for t in range(1, rounds + 1):
            door.begin(t)
            state, _ = rule.round(t, state, door)
            spent = {name: spent[name] + float(one.report()["simulated_seconds"]) for name, one in clocks.items()}
            if t % every == 0 or t == rounds:
                _note(found, rule.measure(state, door), t, spent)
                if stop(found):
                    break
    return found


def _note(found: Trace, values: Mapping[str, Any], t: int, spent: Mapping[str, float]) -> None:
    found.rounds.append(t)
    found.primal.append(float(values["primal"]))
    found.dual.append(float(values.get("dual", -np.inf)))
    found.done = "done" in values
    for name, seconds in spent.items():
        found.seconds[name].append(seconds)


def optimum(name: str, seed: int, method: Settings) -> float:
    """The optimal primal value: the dual one, which is never above it, at a small gap; with Omega steps, the primal.

    Args:
        name: of the case.
        seed: of its shuffle.
        method: MOCHA's table; its steps and rounds are chosen here.
    """
    return _optimum(name, seed, json.dumps(method, sort_keys=True))


@lru_cache(maxsize=8)
def _optimum(name: str, seed: int, method: str) -> float:
    table = {**json.loads(method), "name": "mocha", "steps": 20_000, "stop_gap": 1e-4}
    found = trace(examples(name, seed), table, {}, seed=seed, rounds=400, every=5)
    return found.dual[-1] if not table.get("omega_every") else min(found.primal)


def reached(found: Trace, network: str, best: float, level: float) -> float:
    """Simulated seconds until the relative sub-optimality is at most `level`; all there were if it never is.

    Args:
        found: the rounds.
        network: whose clock.
        best: the optimal primal value.
        level: relative sub-optimality.
    """
    below = found.off(best) <= level
    return found.seconds[network][int(np.argmax(below)) if below.any() else -1]


def curve(found: Trace, network: str, best: float) -> dict[str, Any]:
    """Sub-optimality at fixed times up to the end, as the last evaluation before each of them found it.

    Args:
        found: the rounds.
        network: whose clock.
        best: the optimal primal value.
    """
    seconds, off = np.array(found.seconds[network]), found.off(best)
    inside = TIMES[(seconds[-1] >= TIMES) & (FIRST[network.startswith("phone_")] <= TIMES)]
    last = np.searchsorted(seconds, inside, side="right") - 1
    return {"x": {"simulated_seconds": inside.tolist()}, "y": np.maximum(off[last], FLOOR).tolist()}


# drivers


def tuned(settings: Settings, seed: int) -> dict[str, Any]:
    """A method with the best of the settings tried, for each network apart: milliseconds to within 10 % and 1 %.

    Where a level is not reached, all that the method had counts, so that it is understated.

    Args:
        settings: case; problem, what all methods share; method, its table; tries, changes to it; networks, by name;
            horizon, seconds on the network `clock` after which a try is over; until, the sub-optimality where it is;
            every, rounds between evaluations; faults; tries_at_most.
        seed: of the shuffle and of the nodes' draws.
    """
    case, networks = settings["case"], settings["networks"]
    best = optimum(case, seed, {**settings["problem"], "omega_every": 0})

    def enough(found: Trace) -> bool:
        late = found.seconds[settings["clock"]][-1] >= settings["horizon"]
        return late or bool(found.off(best)[-1] <= settings["until"])

    tries = settings["tries"][: settings.get("tries_at_most")]
    tables = [{**settings["problem"], **settings["method"], **one} for one in tries]
    given = {"seed": seed, "rounds": MOST, "every": settings["every"], "faults": settings.get("faults")}
    found = [trace(examples(case, seed), table, networks, stop=enough, **given) for table in tables]
    chosen = {name: _best(found, name, best) for name in networks}
    values = {name: 1000 * reached(one, name, best, 0.01) for name, one in chosen.items()}
    values |= {f"{name}_10": 1000 * reached(one, name, best, 0.1) for name, one in chosen.items()}
    values["left"] = 100 * min(float(one.off(best).min()) for one in chosen.values())
    if {"wifi", "g3"} <= {*networks}:
        values["slowdown"] = values["g3"] / values["wifi"]
    curves = {TITLES[name]: curve(one, name, best) for name, one in chosen.items()}
    return {"values": values, "rounds": max(one.rounds[-1] for one in chosen.values()), "curves": curves}


def _best(found: Sequence[Trace], network: str, best: float) -> Trace:
    """The one that is within 1 % first; of those that never are, the one that comes closest."""

    def quality(one: Trace) -> tuple[float, float]:
        off = one.off(best)
        within = bool((off <= 0.01).any())
        return (reached(one, network, best, 0.01) if within else np.inf), float(off.min())

    return min(found, key=quality)


def dropped(settings: Settings, seed: int) -> dict[str, Any]:
    """MOCHA with nodes that drop out: what is left after all rounds, in %, and the rounds until 1 % is.

    Args:
        settings: case, method, networks, rounds, every, and faults.
        seed: of the shuffle and of the nodes' draws.
    """
    case, method = settings["case"], settings["method"]
    best = optimum(case, seed, {key: value for key, value in method.items() if key != "steps"})
    found = trace(
        examples(case, seed), method, settings["networks"], seed=seed, rounds=settings["rounds"],
        every=settings["every"], faults=settings["faults"],
    )  # fmt: skip
    off = found.off(best)
    within = found.rounds[int(np.argmax(off <= 0.01))] if (off <= 0.01).any() else found.rounds[-1]
    curves = {TITLES[name]: curve(found, name, best) for name in settings["networks"]}
    return {"values": {"left": 100 * float(off[-1]), "within": within}, "rounds": found.rounds[-1], "curves": curves}
