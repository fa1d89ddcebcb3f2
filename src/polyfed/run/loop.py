"""The loop: rounds of every part's method, evaluated, logged and checkpointed; killed and resumed at will."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from polyfed.algorithms.base import values_by_rules
from polyfed.algorithms.models.multimodel import ClientPool, MultiModelRound, qualified
from polyfed.core.algorithm import State, run_round
from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView, layer_fleets
from polyfed.core.engine import Engine
from polyfed.core.errors import BadInput, Interrupted, NobodyAnswered, NotFinite, PolyfedError, RunStopped, cut
from polyfed.core.fleet import Metered
from polyfed.core.guard import LIMIT
from polyfed.core.heap import keep_freed_memory
from polyfed.core.tree import flatten
from polyfed.core.validate import boundless
from polyfed.run.adapters import save_adapters
from polyfed.run.bounds import wide_bounds
from polyfed.run.callbacks import RunView
from polyfed.run.clients import ByClient
from polyfed.run.directory import BEST, RunDirectory, model_bytes, round_of
from polyfed.run.evaluation import Evaluation
from polyfed.run.failing import mostly_failed, never_used, plain_names
from polyfed.run.history import History
from polyfed.run.plan import Plan
from polyfed.run.process import Interruptions, interruptible, one_thread
from polyfed.run.showing import Shown, shown_row
from polyfed.run.telling import Audience, Failed, described

CHECKPOINT_SHARE = 0.05  # of the time goes into checkpoints, at most
FAR = 3.0  # times the median's length: worth saying
LATELY = 8  # rounds whose farthest clients are remembered, should the model be spoiled
MOST_LEFT_OUT = 3  # clients, one after the other, without whom a round is tried that left no sound state
# tables with a row per objective
BY_OBJECTIVE = ("losses", "metrics", "bounds", "not_computed", "clients", "per_client", "progress")
States = Mapping[str, State]  # by part
OPEN_FILES_STAY = os.name == "nt"  # Windows removes no file that is open


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """What a run leaves; in a notebook it shows its last figures and its losses.

    Args:
        model: the trained module; of several models, an `nn.ModuleDict`.
        history: one line of metrics a round; `history.to_pandas()` is a table.
        run: the run's directory; None where it was not kept.
        summary: the last figures, bytes and seconds, and the model's checksum.
        clients: with evaluate.per_client, every client's own figures at the last evaluation: by objective and name, an
            array with an entry for each client, in the order of their numbers and names, NaN where there is none.
        best_model: with the callback BestModel, the model of the best round, which summary['best'] names.
    """

    model: nn.Module
    history: History
    run: Path | None
    summary: dict[str, Any]
    clients: ByClient = field(default_factory=dict)
    best_model: nn.Module | None = None

    def __repr__(self) -> str:
        rows = {name: shown_row(row) for name, row in self.summary["objectives"].items()}
        figures = "; ".join(f"{name}: {row}" for name, row in rows.items())
        return f"Result({self.summary['algorithm']}, {self.summary['rounds']} rounds, {cut(figures)}, run={self.run})"


def execute(plan: Plan, directory: RunDirectory) -> Result:
    """Start or continue a run and see it through."""
    keep_freed_memory()  # before workers are forked
    failures = directory.failures.absolute()
    try:
        with directory.locked():
            try:
                with (
                    one_thread(), interruptible() as interrupted,
                    closing(plan.engine(plan.parts, replace(plan.layers, failures=failures))) as engine,
                ):  # fmt: skip
                    return _Loop(plan, directory, engine).run(interrupted)
            except BadInput:
                directory.abandon()  # unless clients have been asked something
                raise
    except BadInput:
        if OPEN_FILES_STAY:
            directory.abandon()  # once more, for the lock
        raise


def open_doors(plan: Plan, engine: Engine, meter: Metered) -> tuple[dict[str, Door], ClientPool | None]:
    """A door for each part, with the layers' server halves before it; and how several models share the clients."""
    pool = None
    if plan.schedule is not None:
        examples = np.sum([engine.population[name].examples for name in plan.parts], axis=0)
        who = plan.always, plan.never
        pool = ClientPool(plan.schedule.assign, len(plan.parts), examples, plan.cohort, plan.seed, *who)
    doors = {}
    for place, (name, part) in enumerate(plan.parts.items()):
        view = PartView(meter, name, engine.population[name], Clock(plan.seed, plan.layers))
        doors[name] = Door(
            plan.layers.fleet(view), part.problem, cohort=plan.cohort, rounds=plan.rounds, frame=len(plan.parts),
            draw=None if pool is None else partial(pool.group, place), always=plan.always, never=plan.never,
            called=part.federation.called,
        )  # fmt: skip
    return doors, pool


class _Loop:
    def __init__(self, plan: Plan, directory: RunDirectory, engine: Engine) -> None:
        self.plan, self.directory, self.engine = plan, directory, engine
        self.methods = plan.methods()
        self.meter = Metered(engine)
        self.doors, pool = open_doors(plan, engine, self.meter)
        self.together = None if pool is None else MultiModelRound(self.methods, self.doors, pool)
        self.evaluations = {
            m: Evaluation(
                p.problem,
                p.federation,
                **_of_part(plan.evaluate, m),
                weighting=_counts_by(p.algorithm),
                device=engine.device,
            )
            for m, p in plan.parts.items()
        }
        self.clients = next(iter(plan.parts.values())).federation  # all parts have the same
        self.names = {"names": plain} if (plain := plain_names(self.clients.names)) else {}
        self.done = False  # for good
        self.stopped = ""  # why, where a callback or the method's own measure ended the run
        self.audience = Audience(plan.callbacks, directory)
        self.lately: deque[dict[int, float]] = deque(maxlen=LATELY)  # who was far in the last rounds, and was used
        self.saved = -1
        self.next_save = 0.0

    def run(self, interrupted: Interruptions) -> Result:
        t, states = self._begin()
        self.view = RunView(self.plan, self.directory.path, t, states)
        result = None
        try:
            self._raise_first(self.audience.tell("on_start", self.view))
            self._note_stop()
            while t < self.plan.rounds and not self._over:
                try:
                    interrupted.release()
                    after, line = self._round(t + 1, states)
                    interrupted.hold()
                    self._finish_round(t + 1, after, line)
                except (NobodyAnswered, RunStopped) as error:
                    interrupted.hold()
                    if self.saved == t + 1:  # a callback's: the round is done
                        raise
                    raise self._stopped(t, states, self._beyond_training(t, error) or str(error)) from error
                except KeyboardInterrupt:
                    interrupted.hold()
                    if self.view.round > t:  # a callback's
                        raise
                    raise self._given_up(t, states) from None
                except BadInput:
                    if self.meter.down or self.meter.measuring:
                        self.directory.keep()  # what clients remember of the run is not to be left without it
                    raise
                states, t = after, t + 1
                self._checkpoint(t, states, now=t == self.plan.rounds or self._over or interrupted())
                if interrupted() and t < self.plan.rounds and not self._over:
                    raise Interrupted(f"Stopped after round {t} of {self.plan.rounds}. {self._how_to_resume()}")
            result = self._end(states)
            return result
        finally:
            if self.together is not None:
                self.together.close()
            self._tell_the_end(result)

    # beginning, and what a checkpoint holds: of one part its own trees, of several a tree for each

    def _begin(self) -> tuple[int, States]:
        found = self.directory.load()
        tree: dict[str, Any] = {}
        states: States
        if found is None:
            t, states = 0, {m: self.methods[m].init(p.problem) for m, p in self.plan.parts.items()}
        else:
            t, tree = found
            states = self._understood(lambda: self._fitting(t, tree.get("state", {})))
        for line in self.directory.rewind(t):
            self._note_participants(line)
        self._understood(lambda: self._restore(tree))
        self.done = "done" in tree
        self.stopped = bytes(tree.get("stopped", torch.zeros(0)).tolist()).decode() if self.done else ""
        return t, states

    def _restore(self, tree: Mapping[str, Any]) -> None:
        """What clients, layers, callbacks and the guard remember."""
        known = bytes(tree["medians"].tolist()) if "medians" in tree else b"{}"
        self.engine.medians = json.loads(known)
        self.engine.choices.load(json.loads(bytes(tree["choices"].tolist())) if "choices" in tree else {})
        self.engine.load(self._by_part(tree.get("clients", {})))
        folded, layers = self._by_part(tree.get("folded", {})), self._by_part(tree.get("layers", {}))
        for name, door in self.doors.items():
            door.clock.load(folded.get(name, {}))
            _load(layer_fleets(door), layers.get(name, {}))
        self.audience.load(tree.get("callbacks", {}))

    def _understood(self, read: Callable[[], Any]) -> Any:
        """A checkpoint that is whole, and not of such a run, is a sentence."""
        try:
            return read()
        except PolyfedError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            path, why = self.directory.path, cut(f"{type(error).__name__}: {error}", 80)
            raise BadInput(
                f"The newest checkpoint of {path} is not one that this experiment wrote ({why}); take it out of "
                f"{path}/checkpoints, and the one before it serves."
            ) from error

    def _fitting(self, t: int, tree: Mapping[str, Any]) -> States:
        """Every part's state as a checkpoint has it, refused where it is of another model, or of a longer run."""
        path = self.directory.path
        states: dict[str, Any] = {"": tree} if self.plan.schedule is None else tree.get("models", {})
        for m, part in self.plan.parts.items():
            shapes = {name: tuple(value.shape) for name, value in part.problem.initial().items()}
            found = {name: tuple(getattr(states.get(m, {}).get(name), "shape", ())) for name in shapes}
            if found != shapes:
                raise BadInput(f"{path} is a run of another model: it has {found}, the model given here {shapes}.")
        if t > self.plan.rounds:
            raise BadInput(f"rounds should be at least what the run {path} has done, {t}. Found {self.plan.rounds}.")
        return states

    def _by_part(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"": tree} if self.plan.schedule is None else tree

    def _packed(self, trees: Mapping[str, Any]) -> Any:
        return trees[""] if self.plan.schedule is None else dict(trees)

    def _checkpoint(self, t: int, states: States, now: bool = False) -> None:
        """After every round when clients keep their own state; otherwise as often as costs little."""
        start = time.perf_counter()
        if t == self.saved or not (now or self.engine.durable or start >= self.next_save):
            return
        several = self.plan.schedule is not None
        tree: dict[str, Any] = {
            "state": {"models": dict(states)} if several else states[""],
            "clients": self._packed(self.engine.tree()),
            "folded": self._packed({name: door.clock.tree() for name, door in self.doors.items()}),
        }
        tree |= {"medians": _bytes(json.dumps(known))} if (known := self.engine.medians) else {}
        tree |= {"choices": _bytes(json.dumps(made))} if (made := self.engine.choices.tree()) else {}
        layers = {name: _trees(layer_fleets(door)) for name, door in self.doors.items()}
        tree |= {"layers": self._packed(layers)} if any(layers.values()) else {}
        tree |= {"callbacks": told} if (told := self.audience.trees()) else {}
        tree |= {"done": torch.tensor(t), "stopped": _bytes(self.stopped)} if self.done else {}
        self.directory.save(t, tree)
        end = time.perf_counter()
        self.saved, self.next_save = t, end + (end - start) / CHECKPOINT_SHARE

    # a round

    def _round(self, t: int, before: States) -> tuple[States, dict[str, Any]]:
        start, up, down, measuring = time.perf_counter(), self.meter.up, self.meter.down, self.meter.measuring
        states, found, more = self._sound_round(t, before)
        self.lately.append({client: ratio for client, ratio in self._used_far().items() if ratio > FAR})
        line: dict[str, Any] = {"round": t, "bytes_up": self.meter.up - up, "bytes_down": self.meter.down - down}
        line |= {"cohort": list({client: None for door in self.doors.values() for client in door.asked})}
        _add(line, {**more, **self._named(found)})
        _add(line, self._named({m: self._rates(m, t) for m in found}))
        _add(line, self._named({name: door.report() for name, door in self.doors.items()}))
        self._note_participants(line)
        trained = {name: len(door.failures) for name, door in self.doors.items()}
        line |= self._measured(t, before, states, line, {m: own.get("weights") for m, own in found.items()})
        line["evaluation_bytes"] = self.meter.measuring - measuring
        line["failures"] = [
            {"client": client, **self._name(client), "why": f"{name}: {why}" if name else why}
            | ({"measuring": True} if i >= trained[name] else {})
            for name, door in self.doors.items()
            for i, (client, why) in enumerate(door.failures)
        ] + [{"client": None, "why": why} for why in self.engine.refusals()]
        line |= {"choices": said} if (said := self.engine.choices.news()) else {}
        line["seconds"] = time.perf_counter() - start
        return states, line

    def _sound_round(self, t: int, before: States) -> tuple[States, dict[str, Any], dict[str, Any]]:
        """A round after which clients can go on: where it is not, it is done again without who was farthest.

        With the guard on, that is: replies that passed one by one may yet be too much together, or too much for two or
        three clients to tell who is far.
        """
        left_out: dict[int, str] = {}
        first: RunStopped | None = None
        while True:
            for door in self.doors.values():
                door.begin(t, left_out)
            try:
                trained = self._trained(t, before)
                why = self._check_state(t, before, trained[0])
                if not why:
                    return trained
                first = first or RunStopped(f"{why}, which is not taken. {self._suspects()}")
            except BadInput as error:  # a Gram matrix that is not finite; in round 1, settings that do not go together
                if t == 1 and not isinstance(error, NotFinite):
                    raise
                why = f"round {t} is not taken"
                first = first or RunStopped(f"Round {t} is not taken: {error} {self._suspects()}")
            except NobodyAnswered as error:
                raise first or error from error
            suspect = self._farthest(left_out)
            if suspect is None:
                raise first
            left_out[suspect] = f"with its replies, the longest, {cut(why, 200)}; the round is done without it"
            for door in self.doors.values():
                door.rewind()

    def _check_state(self, t: int, before: States, after: States) -> str:
        """Why a round is not taken: no client could go on with its state, and every resume would stop, too. Or ''."""
        for m, state in after.items():
            spoiled = [name for name, a in flatten(state).items() if not _sound(a)]
            was = flatten(before[m]) if spoiled else {}
            for name in (n for n in spoiled if n not in was or _sound(was[n])):
                return f"{qualified(m, name)!r} would be infinite, not a number or beyond {LIMIT:.0e} after round {t}"
        return ""

    def _farthest(self, left_out: Mapping[int, str]) -> int | None:
        """Whose replies of this round were the longest, of those that were used; None where no more are left out."""
        if len(left_out) == MOST_LEFT_OUT or not self.plan.layers.guard:
            return None
        far = self._used_far()
        return max(far, key=lambda client: (far[client], -client), default=None)

    def _used_far(self) -> dict[int, float]:
        """How many times the median each client's longest array was in this round, of those that were used."""
        failed = {client for door in self.doors.values() for client, _ in door.failures}
        return {client: ratio for client, ratio in self.engine.far().items() if client not in failed}

    def _beyond_training(self, t: int, error: Exception) -> str:
        """What to do where all clients' numbers overflow: the last checkpoints are spoiled, as is every resume. Or ''.

        Args:
            t: the rounds that are done; before the first nobody has spoiled the model.
            error: why the next one is not.
        """
        failed = error.failed if isinstance(error, NobodyAnswered) else {}
        if not t or not failed or not all(map(boundless, failed.values())):
            return ""
        return (
            f"Round {t + 1}: none of the {len(failed)} clients gave a usable reply, since the model has left what they "
            f"can train on: theirs are infinite, not a number or too long.{self._far_lately()}{self._how_to_go_back(t)}"
        )

    def _far_lately(self) -> str:
        """Who was far in most of the last rounds: in one of a spoiled model, honest clients are, too."""
        far: dict[int, list[float]] = {}
        for client, ratio in (pair for one in self.lately for pair in one.items()):
            far.setdefault(client, []).append(ratio)
        most = sorted(far, key=lambda client: (-len(far[client]), -max(far[client]), client))[:2]
        some = [f"{c} (in {len(far[c])}, up to {max(far[c]):.2g} times the median's length)" for c in most]
        return f" Far in the last {len(self.lately)} rounds: clients {', '.join(some)}." if some else ""

    def _how_to_go_back(self, t: int) -> str:
        if self.directory.passing:
            return ""
        rounds = ", ".join(str(round_of(path)) for path in self.directory.saved() if round_of(path) < t)
        where = f"{f'checkpoints: {rounds}; ' if rounds else ''}0 is the beginning"
        return f" First 'polyfed runs repair {self.directory.path} --back-to ROUND', one that was good ({where})."

    def _suspects(self) -> str:
        """Who may have spoiled a round: those whose replies were farthest from the others', then the rest."""
        far = self.engine.far()
        asked = sorted({c for door in self.doors.values() for c in door.asked}, key=lambda c: (-far.get(c, 0.0), c))
        some = [f"{c} ({far[c]:.2g} times the median's length)" if far.get(c, 0.0) > FAR else str(c) for c in asked[:5]]
        more = f" and {len(asked) - 5} more" if len(asked) > 5 else ""
        off = "" if self.plan.layers.guard else "; guard = 'on' leaves out who is far from the rest"
        return f"A client or too large a step size did that; suspects: clients {', '.join(some)}{more}{off}."

    def _note_participants(self, line: Mapping[str, Any]) -> None:
        """Who took part in a round, as its line says: of several models, each one's group."""
        for m, evaluation in self.evaluations.items():
            evaluation.took_part(line["groups"][m] if "groups" in line else line.get("cohort", ()))

    def _rates(self, m: str, t: int) -> dict[str, Any]:
        """What rules gave a part's settings in this round."""
        rates = values_by_rules(self.methods[m], t, self.doors[m])
        return {"rates": rates} if rates else {}

    def _trained(self, t: int, states: States) -> tuple[States, dict[str, Any], dict[str, Any]]:
        """Every part's next state, what its method logs, and who trained what where a schedule decides."""
        if self.together is not None:
            return self.together(t, states)
        state, found = run_round(self.methods[""], t, states[""], self.doors[""])
        return {"": state}, {"": found}, {}

    def _measured(
        self, t: int, before: States, after: States, line: Mapping[str, Any], weights: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What is measured by asking clients about the round, the evaluation if it is due, the methods' own figures."""
        rounds = self.plan.rounds
        asked = {m: e for m, e in self.evaluations.items() if self.doors[m].asked}  # an idle model has not changed
        found = self._named(
            {
                m: e.client_metrics(t, before[m], after[m], self.doors[m], rounds, weights.get(m))
                for m, e in asked.items()
            }
        )
        if next(iter(self.evaluations.values())).due(t, rounds):
            found |= self._evaluated(after)
            own = {m: dict(method.measure(after[m], self.doors[m])) for m, method in self.methods.items()}
            reasons = {m: figures.pop("done", "") for m, figures in own.items()}
            self.done = all(reasons.values())
            if self.done:
                why = "; ".join(f"{m}, {why}" if m else f"{why}" for m, why in reasons.items() if isinstance(why, str))
                self.stopped = f"Stopped after round {t}: {why}." if why else ""
            found |= {name: v for name, v in self._named(own).items() if name not in line and name not in found}
        return found

    def _evaluated(self, states: States) -> dict[str, Any]:
        every = self.evaluations.items()
        return self._named({m: e(states[m], self.doors[m], self.methods[m].personal) for m, e in every})

    def _finish_round(self, t: int, states: States, line: dict[str, Any]) -> None:
        """Log the round, and tell the callbacks of it."""
        line = _plain(line)
        every = line.pop("per_client", None)
        own = None if every is None else {"round": t, "split": line["clients_split"], **self.names, "clients": every}
        self.directory.log(line, own)
        self.view.round, self.view.states = t, states
        failed = self.audience.tell("on_round", self.view, line)
        failed += self.audience.tell("on_evaluation", self.view, line) if "losses" in line else []
        self._note_stop()
        if failed:
            self._checkpoint(t, states, now=True)
        self._raise_first(failed)

    @property
    def _over(self) -> bool:
        return self.done or self.view.stopping

    def _note_stop(self) -> None:
        """Whether a callback has ended the run, for good or until it is resumed under other settings."""
        self.done = self.done or (self.view.stopping and self.view.for_good)
        self.stopped = self.stopped or self.view.why

    def _named(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Figures of all parts in one table: vectors over objectives by their names; of several models, by model."""
        table: dict[str, Any] = {}
        for m, figures in found.items():
            names = self.plan.parts[m].problem.names
            for key, value in figures.items():
                if isinstance(value, Tensor) and value.shape == (len(names),):
                    row: Any = {qualified(m, n): v for n, v in zip(names, value.tolist(), strict=True)}
                elif key in ("splits", "personalised"):
                    row = {s: _merged(table.get(key, {}).get(s, {}), self._named({m: t})) for s, t in value.items()}
                elif m:
                    row = {qualified(m, n): v for n, v in value.items()} if key in BY_OBJECTIVE else {m: value}
                else:
                    row = value
                table[key] = {**table[key], **row} if m and key in table else row
        return table

    def _raise_first(self, failed: Failed) -> None:
        self.audience.raise_first(failed, self.view, self._how_to_resume())

    # the end

    def _tell_the_end(self, result: Result | None) -> None:
        """To everybody; what one of them raises is shown when the run itself went well."""
        failed = self.audience.tell("on_end", self.view, result)
        if failed and result is not None:
            callback, error = failed[0]
            why = f"The callback {type(callback).__name__} failed at the end ({described(error)})"
            raise RunStopped(f"{why}; the run in {self.directory.path} is complete.") from error

    def _stopped(self, t: int, states: States, why: str) -> RunStopped:
        for door in self.doors.values():
            door.rewind()
        self._checkpoint(t, states, now=True)
        there = self.directory.failures.is_dir() and not self.directory.passing
        where = f" Tracebacks are in {self.directory.failures}." if there else ""
        return RunStopped(f"{why} The run stopped after round {t}.{where} {self._how_to_resume()}")

    def _given_up(self, t: int, states: States) -> Interrupted:
        """Round t + 1 has not been."""
        if self.together is not None:
            self.together.close()  # no thread works on
        why = f"Interrupted in round {t + 1} of {self.plan.rounds}, which is given up."
        try:
            return Interrupted(str(self._stopped(t, states, why)))
        except PolyfedError as error:  # what clients remember may be out of reach
            return Interrupted(f"{why} The last checkpoint stands ({error}) {self._how_to_resume()}")

    def _how_to_resume(self) -> str:
        if self.directory.passing:
            return "Nothing of it is kept, since keep=False."
        return f"Continue with: {self.directory.how_to_resume()}"

    def _end(self, states: States) -> Result:
        weights = self.plan.weights(states)
        saved = self.plan.saved(states)
        history = self.directory.history()
        summary = self._summary(history, states, hashlib.sha256(model_bytes(saved)).hexdigest()) | self._tasks(saved)
        self.directory.finish(saved, summary)
        if "mostly_failed" in summary:
            self.audience.warn(summary["mostly_failed"])
        model = self.plan.trained(weights)  # a copy: the problem stays as it was, for the next method to start from
        save_adapters(self.plan, model, self.directory.path)
        run = None if self.directory.passing else self.directory.path
        best = self._best(weights) if "best" in summary else None
        return Result(model, history, run, summary, self.directory.clients.last(), best)

    def _tasks(self, saved: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the tasks of a saved Omega are called, where each client is one and has a name."""
        names = self.names.get("names", [])
        tied = any(name.endswith("tasks.omega") and len(a) == len(names) for name, a in saved.items())
        return {"tasks": names} if tied else {}

    def _best(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The best round's model, which has arrays of the same names."""
        kept = load_file(self.directory.path / BEST)
        return self.plan.trained({name: kept[name] for name in weights})

    def _name(self, client: int) -> dict[str, Any]:
        """What a client is called, where clients have names."""
        return {"name": self.names["names"][client]} if self.names else {}

    def _summary(self, history: list[dict[str, Any]], states: States, sha256: str) -> dict[str, Any]:
        done: dict[str, Any] = history[-1] if history else {"round": 0}
        last: dict[str, Any] = (
            done if "losses" in done else _plain(self._evaluated(states))
        )  # a callback may stop in any round
        objectives = {
            (name := qualified(m, o.name)): {"loss": last["losses"][name], **last["metrics"][name]}
            if name in last["losses"]
            else dict.fromkeys(o.reported)  # of which no row has a label
            for m, part in self.plan.parts.items()
            for o in part.problem.objectives
        }
        more, failed = self.audience.summary(self.view)
        self._raise_first(failed)
        tracebacks = None if self.directory.passing else self.directory.failures
        return {
            "run": None if self.directory.passing else str(self.directory.path),
            "algorithm": self.plan.title,
            "engine": self.plan.engine_name,
            "rounds": done["round"],
            "seed": self.plan.seed,
            "seconds": sum(line["seconds"] for line in history),
            "bytes_up": sum(line["bytes_up"] for line in history),
            "bytes_down": sum(line["bytes_down"] for line in history),
            "failures": sum(len(line["failures"]) for line in history),
            **({"never_used": lost} if (lost := never_used(history, self.clients.called)) else {}),
            **({"mostly_failed": most} if (most := mostly_failed(history, tracebacks)) else {}),
            **({"stopped": self.stopped} if self.stopped else {}),
            **({"callbacks_failed": list(warned.values())} if (warned := self.audience.warned) else {}),
            "split": _one_word(last.get("split")),
            "objectives": objectives,
            "better": {
                qualified(m, o.name): {name: metric.better for name, metric in o.reported.items()}
                for m, part in self.plan.parts.items()
                for o in part.problem.objectives
            },
            **({"bounds": wide} if (wide := wide_bounds(last)) else {}),
            **({"personalised": own} if (own := last.get("personalised")) else {}),
            **({"rules": list(self.plan.notes)} if self.plan.notes else {}),
            **({"choices": chosen} if (chosen := self.engine.choices.sentences()) else {}),
            "model_sha256": sha256,
            **more,
        }


def _sound(a: Tensor) -> bool:
    """Whether a model with these numbers can be trained on: finite, and so are their squares."""
    return not a.is_floating_point() or not a.numel() or all(abs(float(v)) <= LIMIT for v in torch.aminmax(a))


def _of_part(evaluate: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The settings of one part's evaluation."""
    by_part = {key: evaluate.get(key) for key in ("optimum", "personalise")}
    return {**evaluate, **{key: None if every is None else every[part] for key, every in by_part.items()}}


def _one_word(split: Any) -> Any:
    """Which rows the figures are of, in one word where all models agree."""
    return next(iter(split.values())) if isinstance(split, Mapping) and len(set(split.values())) == 1 else split


def _merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of tables, those of several models in one."""
    return {key: {**before.get(key, {}), **now.get(key, {})} for key in {**before, **now}}


def _counts_by(method: Any) -> str:
    """What a client counts in the method's means: 1 ('uniform') or its number of examples ('size')."""
    return str(getattr(method, "weighting_by", "uniform"))


def _trees(things: Any) -> dict[str, Any]:
    """The trees of those that remember something, by their places."""
    return {str(i): tree for i, thing in enumerate(things) if (tree := thing.tree())}


def _load(things: Any, trees: Mapping[str, Any]) -> None:
    """Back to what `_trees` has saved."""
    for i, thing in enumerate(things):
        if str(i) in trees:
            thing.load(trees[str(i)])


def _bytes(text: str) -> Tensor:
    """A text as a checkpoint has it."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


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
