"""The server's Flower app: runs an experiment over a Grid; started again, it goes on where its run directory ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from polyfed.run.callbacks import Callback, RunView


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
        settings = {**directory.settings(), "engine": settings["engine"]}
        plan, _ = build_plan(settings.pop("name"), settings)
    else:
        plan, resolved = build_plan(name, settings)
        directory = RunDirectory.create(out, name, {"name": name, **resolved})
    rosters = [out / f"clients-{place}.json" for place in range(len(plan.parts))]
    own = {key: value for key, value in settings["engine"].items() if key not in ("name", "address")}
    names = Names(out / "names.json", roster, bind=bool(config.get("bind", True)))
    engine = partial(OverGrid, grid=grid, rosters=rosters, names=names, **own)
    plan = replace(plan, engine=engine, callbacks=(*plan.callbacks, _lines()))
    return _log(f"the model is in {out}", execute(plan, directory).summary)


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
