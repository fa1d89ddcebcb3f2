"""The server's Flower app: runs an experiment over a Grid; started again, it goes on where its run directory ends."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from polyfed.run.callbacks import Callback, RunView
    from polyfed.run.directory import RunDirectory
    from polyfed.run.plan import Plan

FROM_RUN = ("rounds", "evaluate", "callbacks", "guard")  # keys that may be edited in a run's experiment.toml


def app(file: str) -> ServerApp:
    """The ServerApp of an app whose experiment lies beside `file`."""
    from flwr.serverapp import ServerApp

    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        _aside(lambda: federate(Path(file).parent, grid, context.run_config))

    return made


def _aside(work: Callable[[], object]) -> None:
    """In a thread of its own: signals stay with Flower's main thread, and end this process when its SuperLink ended.

    Nothing is lost with it: after every round there is a checkpoint.
    """
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failed:
        raise failed[0]


def federate(folder: Path, grid: Grid, config: Mapping[str, Any]) -> dict[str, Any]:
    """Start or continue the run in config['out'], and return its summary."""
    from polyfed.deploy.engine import OverGrid
    from polyfed.deploy.identity import Names, read_roster
    from polyfed.deploy.settings import experiment
    from polyfed.experiment.building import plan as build_plan
    from polyfed.run.directory import RunDirectory
    from polyfed.run.loop import execute

    name, settings = experiment(folder, config)
    known = str(config.get("roster", ""))
    roster = read_roster(Path(known).expanduser()) if known else None
    out = Path(str(config.get("out") or f"runs/{name}")).absolute()
    if (out / "experiment.toml").is_file():
        directory = RunDirectory.open(out)
        if done := directory.result():
            return _log(f"{out} is complete; set 'out' to another directory to run again", done)
        plan = _plan_of_a_run(directory, name, settings, config)
    else:
        plan, resolved = build_plan(name, settings)
        directory = RunDirectory.create(out, name, {"name": name, **resolved})
    rosters = [out / f"clients-{place}.json" for place in range(len(plan.parts))]
    own = {key: value for key, value in settings["engine"].items() if key not in ("name", "address")}
    names = Names(out / "names.json", roster, bind=bool(config.get("bind", True)))
    engine = partial(OverGrid, grid=grid, rosters=rosters, names=names, **own)
    plan = replace(plan, engine=engine, callbacks=(*plan.callbacks, _lines()))
    return _log(f"the model is in {out}", execute(plan, directory).summary)


def _plan_of_a_run(directory: RunDirectory, name: str, settings: dict[str, Any], config: Mapping[str, Any]) -> Plan:
    """The plan of a run that goes on: as the app says, whose clients do so, too, if that is still the same model.

    What may change (more rounds, other figures) may also be edited in the run's own experiment.toml; `-c rounds=N` goes
    before both. Both sides are compared with all defaults filled in: a newer version may have new ones.
    """
    from polyfed.experiment.building import plan as build_plan
    from polyfed.run.directory import check_same

    said = directory.check_unchanged()
    began, edited = directory.started(), directory.settings()
    of_its_own = {key: edited[key] for key in FROM_RUN if key in edited and edited[key] != began.get(key)}
    given = {"rounds": settings["rounds"]} if config.get("rounds") else {}
    plan, now = build_plan(name, {**settings, **of_its_own, **given})
    _, before = build_plan(str(began.pop("name", name)), {**began, "engine": settings["engine"]})
    said = check_same(directory.path, _plain(before), _plain(now), "The app's experiment") or said
    for line in said:
        _log(line, {})
    return replace(plan, notes=(*plan.notes, *said))


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run's file has them."""
    return tomllib.loads(tomli_w.dumps(settings))


def _log(text: str, summary: dict[str, Any]) -> dict[str, Any]:
    from logging import INFO

    from flwr.supercore import log

    log(INFO, "polyfed: %s", text)
    return summary


def _lines() -> Callback:
    """Progress as lines of Flower's log."""
    from polyfed.run.callbacks import Callback

    class Lines(Callback):
        def on_start(self, run: RunView) -> None:
            _log(f"round {run.round} of {run.rounds} is done; the run is {run.path}", {})

        def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
            missing = f"; missing or refused: {line['failures']}" if line["failures"] else ""
            _log(f"round {line['round']}: losses {line.get('losses', {})}{missing}", {})

    return Lines()
