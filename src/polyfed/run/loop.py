"""The loop: rounds of an algorithm over a fleet, evaluated, logged and checkpointed; killed and resumed at will."""

from __future__ import annotations

import copy
import hashlib
import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.algorithms import Algorithm, State
from polyfed.core.errors import BadInput, Interrupted, NobodyAnswered, RunStopped
from polyfed.core.federation import Federation
from polyfed.core.fleet import Door, Engine, Fleet, Metered
from polyfed.core.heap import keep_memory
from polyfed.core.problem import Problem
from polyfed.run.directory import RunDirectory, model_bytes
from polyfed.run.evaluation import Evaluation

CHECKPOINT_SHARE = 0.05  # of the time goes into checkpoints, at most


class Progress:
    """Told of every round; this one keeps quiet."""

    def start(self, done: int, rounds: int, run: Path) -> None: ...

    def round(self, line: Mapping[str, Any]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, checked and built; nothing written yet."""

    name: str
    algorithm_name: str
    engine_name: str
    problem: Problem
    federation: Federation
    algorithm: Algorithm
    engine: Callable[[], Engine]
    rounds: int
    seed: int
    cohort: int
    evaluate: Mapping[str, Any] = field(default_factory=dict)  # the settings of Evaluation
    around: Callable[[Fleet], Fleet] = lambda fleet: fleet  # losses, deadlines: between metering and the door

    def door(self, meter: Fleet) -> Door:
        """What the algorithm sees of the fleet."""
        return Door(self.around(meter), self.problem, seed=self.seed, cohort=self.cohort, rounds=self.rounds)

    def evaluation(self) -> Evaluation:
        return Evaluation(self.problem, self.federation, **self.evaluate)

    def weights(self, state: State) -> dict[str, Tensor]:
        """What is saved of a state as the model, as `load_state_dict` wants it."""
        return self.problem.state_dict(state["x"], state["buffers"])


@dataclass(frozen=True)
class Result:
    """What a run leaves: the trained module, one line of metrics a round, the directory, and the summary."""

    model: nn.Module
    history: list[dict[str, Any]]
    run: Path
    summary: dict[str, Any]


def execute(plan: Plan, directory: RunDirectory, progress: Progress | None = None) -> Result:
    """Start or continue a run and see it through."""
    keep_memory()  # before workers are forked
    with directory.locked(), _one_thread(), _interruptible() as interrupted:
        try:
            engine = plan.engine()
        except BadInput:
            directory.abandon()
            raise
        try:
            return _Loop(plan, directory, engine, progress or Progress()).run(interrupted)
        finally:
            engine.close()


class _Loop:
    def __init__(self, plan: Plan, directory: RunDirectory, engine: Engine, progress: Progress) -> None:
        self.plan, self.directory, self.engine, self.progress = plan, directory, engine, progress
        self.meter = Metered(engine)
        self.door = plan.door(self.meter)
        self.evaluation = plan.evaluation()
        self.done = False
        self.saved = -1
        self.next_save = 0.0

    def run(self, interrupted: Callable[[], bool]) -> Result:
        t, state = self._begin()
        self.progress.start(t, self.plan.rounds, self.directory.path)
        try:
            while t < self.plan.rounds and not self.done:
                try:
                    state = self._round(t + 1, state)
                except (NobodyAnswered, RunStopped) as error:
                    raise self._stopped(t, state, str(error)) from error
                t += 1
                self._checkpoint(t, state, now=t == self.plan.rounds or self.done or interrupted())
                if interrupted() and t < self.plan.rounds and not self.done:
                    raise Interrupted(f"Stopped after round {t} of {self.plan.rounds}. {self._how_to_resume()}")
        finally:
            self.progress.stop()
        return self._end(state)

    def _begin(self) -> tuple[int, State]:
        found = self.directory.load()
        t, tree = found or (0, {"state": self.plan.algorithm.init(self.plan.problem)})
        self.directory.rewind(t)
        self.engine.load(tree.get("clients", {}))
        self.door.load(tree.get("folded", {}))
        self.done = "done" in tree
        return t, tree["state"]

    def _round(self, t: int, state: State) -> State:
        start, up, down = time.perf_counter(), self.meter.up, self.meter.down
        self.door.begin(t)
        before = state
        state, found = self.plan.algorithm.round(t, before, self.door)
        line: dict[str, Any] = {"round": t, "bytes_up": self.meter.up - up, "bytes_down": self.meter.down - down}
        line |= {"cohort": list(self.door.asked)}
        _add(line, {**self._named(found), **self.door.report()})
        sent = self.meter.up + self.meter.down
        line |= self.evaluation.more(t, before, state, self.door, self.plan.rounds)
        if self.evaluation.due(t, self.plan.rounds):
            line |= self.evaluation(state, self.door, getattr(self.plan.algorithm, "personal", None))
            _add(line, self._measured(state))
        line["evaluation_bytes"] = self.meter.up + self.meter.down - sent
        line["failures"] = [{"client": client, "why": why} for client, why in self.door.failures]
        line["seconds"] = time.perf_counter() - start
        line = _plain(line)
        self.directory.log(line)
        self.progress.round(line)
        return state

    def _measured(self, state: State) -> dict[str, Any]:
        """What the algorithm itself measures beside the model's quality; 'done' ends the run."""
        measure = getattr(self.plan.algorithm, "measure", None)
        found: dict[str, Any] = measure(state, self.door) if measure else {}
        self.done = bool(found.pop("done", False))
        return found

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Vectors with one entry per objective, by the objectives' names."""
        names = self.plan.problem.names
        each = [key for key, v in found.items() if isinstance(v, Tensor) and v.shape == (len(names),)]
        return {**found, **{key: dict(zip(names, found[key].tolist(), strict=True)) for key in each}}

    def _checkpoint(self, t: int, state: State, now: bool = False) -> None:
        """After every round when clients keep their own state; otherwise as often as costs little."""
        start = time.perf_counter()
        if t == self.saved or not (now or self.engine.durable or start >= self.next_save):
            return
        tree: dict[str, Any] = {"state": state, "clients": self.engine.tree(), "folded": self.door.tree()}
        if self.done:
            tree["done"] = torch.tensor(t)
        self.directory.save(t, tree)
        end = time.perf_counter()
        self.saved, self.next_save = t, end + (end - start) / CHECKPOINT_SHARE

    def _stopped(self, t: int, state: State, why: str) -> RunStopped:
        self.door.rewind()
        self._checkpoint(t, state, now=True)
        return RunStopped(f"{why} The run stopped after round {t}. {self._how_to_resume()}")

    def _how_to_resume(self) -> str:
        return f"Continue with: polyfed resume {shlex.quote(str(self.directory.path))}"

    def _end(self, state: State) -> Result:
        weights = self.plan.weights(state)
        extras = getattr(self.plan.algorithm, "extras", None)
        saved = {**weights, **(extras(state) if extras else {})}
        history = self.directory.history()
        summary = self._summary(history, hashlib.sha256(model_bytes(saved)).hexdigest())
        self.directory.finish(saved, summary)
        model = copy.deepcopy(self.plan.problem.model)  # the problem stays as it was, for the next method to start from
        model.load_state_dict(weights)
        return Result(model, history, self.directory.path, summary)

    def _summary(self, history: list[dict[str, Any]], sha256: str) -> dict[str, Any]:
        last = history[-1]
        objectives = {name: {"loss": loss, **last["metrics"][name]} for name, loss in last["losses"].items()}
        return {
            "run": str(self.directory.path),
            "algorithm": self.plan.algorithm_name,
            "engine": self.plan.engine_name,
            "rounds": self.plan.rounds,
            "seed": self.plan.seed,
            "seconds": sum(line["seconds"] for line in history),
            "bytes_up": sum(line["bytes_up"] for line in history),
            "bytes_down": sum(line["bytes_down"] for line in history),
            "failures": sum(len(line["failures"]) for line in history),
            "objectives": objectives,
            "model_sha256": sha256,
        }


def _add(line: dict[str, Any], found: Mapping[str, Any]) -> None:
    """A method's own names do not hide the loop's."""
    line |= {name: value for name, value in found.items() if name not in line}


def _plain(value: Any) -> Any:
    """Numbers, lists and dicts only; what is not finite becomes null, as JSON wants it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _gpus() -> list[int]:
    """Those in use: asking the others for their random state would begin to use them."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread (the same bits whatever the machine's load), and the caller's random state left alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=_gpus()):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM lets the round finish; the second stops at once, at the last checkpoint."""
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        print("\nStopping after this round; once more stops at once.", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
