"""Cells run in one process or several: the same models, data made once, failures that stay one cell's."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed.core.errors import BadInput, Interrupted
from polyfed.data.build import build_data
from polyfed.engines.local import nursery
from polyfed.experiment.building import plan
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.run.plan import Plan
from polyfed.study.cells import Cell, make_cell
from polyfed.study.runner import DataOnce, Outcome, Pool, check_jobs, default_jobs, finished, run_cell

SMALL: dict[str, Any] = {
    "rounds": 3,
    "cohort": 2,
    "data": {"name": "two-digits", "clients": 4, "examples": 60},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.2, "local_steps": 2},
}
STUDY = Path("study")
JOBS = pytest.mark.parametrize("jobs", [1, 2])


def cells(*methods: str, seeds: Sequence[int] = (0, 1), **changes: Any) -> list[Cell]:
    return [
        make_cell(name, seed, {**SMALL, **changes, "algorithm": {**SMALL["algorithm"], "name": name}})
        for name in methods
        for seed in seeds
    ]


def run(some: Sequence[Cell], jobs: int = 1, **how: Any) -> dict[str, Outcome]:
    STUDY.mkdir(exist_ok=True)
    with Pool(STUDY, "small", jobs=jobs, **how) as pool:
        return {one.cell.name: one for one in pool.run(some)}


def sums(found: Mapping[str, Outcome]) -> dict[str, str]:
    return {name: one.summary["model_sha256"] if one.summary else one.why for name, one in found.items()}


@JOBS
def test_a_cell_is_the_run_that_the_command_makes(jobs: int) -> None:
    some = cells("fedavg", "fedmgda")
    found = sums(run(some, jobs))
    for cell in some:
        made, resolved = plan("small", {**cell.settings})
        alone = execute(made, RunDirectory.create(Path("alone") / cell.name, "small", resolved)).summary
        assert found[cell.name] == alone["model_sha256"]
        assert RunDirectory.open(STUDY / cell.name).settings() == {"name": "small", "folder": "", **resolved}


def test_where_forked_processes_cannot_train_cells_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU, after this process has trained."""
    some = cells("fedavg")
    apart = sums(run(some, 2))
    for cell in some:
        shutil.rmtree(STUDY / cell.name)
    monkeypatch.setattr(nursery, "forks_train", lambda: False)
    with pytest.warns(RuntimeWarning, match="trained before, on a machine with a GPU, .*: jobs = 2 is 1 in this run"):
        assert sums(run(some, 2)) == apart


@JOBS
def test_finished_cells_are_found_and_not_run_again(jobs: int) -> None:
    lines: list[str] = []
    some = cells("fedavg")
    first = run(some, jobs, told=lambda cell, line: lines.append(cell.name))
    assert sorted(lines) == sorted(cell.name for cell in some for _ in range(3))
    lines.clear()
    more = run([*some, *cells("fedprox")], jobs, told=lambda cell, line: lines.append(cell.row))
    assert lines == ["fedprox"] * 6
    assert sums(first).items() <= sums(more).items()


def test_data_are_made_once_for_cells_that_share_them() -> None:
    made: list[int] = []

    def count(table: dict[str, Any], seed: int) -> Any:
        made.append(seed)
        return build_data(table, seed)

    load = DataOnce(count)
    for cell in sorted(cells("fedavg", "fedprox", "fedmgda"), key=lambda cell: cell.seed):
        load.begin()
        run_cell(STUDY, "small", cell, load=load)
    assert made == [0, 1]
    assert len(load._kept) == 1  # those of a seed that is done make room


def test_a_worker_keeps_to_the_data_that_it_has() -> None:
    some = cells("fedavg", "fedprox", "fedmgda", seeds=(0, 1))
    where: dict[str, set[int]] = {}

    def note(cell: Cell, made: Plan) -> Plan:
        (Path("where") / cell.name).write_text(str(os.getpid()))
        return made

    Path("where").mkdir()
    run(some, 2, prepare=note)
    for cell in some:
        where.setdefault(cell.data, set()).add(int((Path("where") / cell.name).read_text()))
    pids = [*where.values()]
    assert all(os.getpid() not in some for some in pids)
    assert len(pids) == 2
    assert min(map(len, pids)) == 1  # the one that is done first may help the other


@JOBS
def test_a_cell_that_fails_is_one_sentence_and_the_others_go_on(jobs: int) -> None:
    some = [*cells("fedavg", seeds=(0,)), *cells("fedprox", seeds=(0,), cohort=99), *cells("fedmgda", seeds=(0,))]
    found = run(some, jobs)
    good, bad, other = (found[cell.name] for cell in some)
    assert good.summary is not None
    assert other.summary is not None
    assert (bad.summary, bad.bad) == (None, True)
    assert "cohort should be at most the number of clients, 4. Found 99." in bad.why
    assert not bad.run.exists()


@JOBS
def test_an_error_that_nobody_foresaw_is_kept_with_its_traceback(jobs: int) -> None:
    def broken(cell: Cell, made: Plan) -> Plan:
        if cell.row == "fedprox":
            raise ZeroDivisionError("oh")
        return made

    found = run(cells("fedprox", "fedavg", seeds=(0,)), jobs, prepare=broken)
    bad, good = found.values() if jobs == 1 else sorted(found.values(), key=lambda one: one.summary is not None)
    assert good.summary is not None
    assert bad.why.startswith("ZeroDivisionError: oh; the traceback is in")
    assert "in broken" in (STUDY / "output.log").read_text()


def test_a_worker_that_dies_takes_one_cell_with_it() -> None:
    def deadly(cell: Cell, made: Plan) -> Plan:
        if cell.row == "fedprox":
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    found = run(cells("fedprox", "fedavg", seeds=(0, 1)), 2, prepare=deadly)
    assert {one.cell.row for one in found.values() if one.summary is not None} == {"fedavg"}
    assert all("ended with code -9" in one.why for one in found.values() if one.cell.row == "fedprox")
    again = run(cells("fedprox", "fedavg", seeds=(0, 1)), 2)
    assert all(one.summary is not None for one in again.values())


@JOBS
def test_an_answer_ends_a_run_after_that_round(jobs: int) -> None:
    def told(cell: Cell, line: Mapping[str, Any]) -> str | None:
        return "hopeless" if cell.row == "fedprox" and line["round"] == 2 else None

    found = run(cells("fedavg", "fedprox"), jobs, told=told, asks=True)
    rounds = {one.cell.row: one.summary["rounds"] for one in found.values() if one.summary is not None}
    assert rounds == {"fedavg": 3, "fedprox": 2}
    stopped = [one.summary for one in found.values() if one.cell.row == "fedprox"]
    assert all(summary is not None and summary["stopped"] == "hopeless" for summary in stopped)
    assert all(finished(STUDY, one.cell) is not None for one in found.values())


@JOBS
def test_what_told_raises_is_raised_and_the_run_can_go_on(jobs: int) -> None:
    def told(cell: Cell, line: Mapping[str, Any]) -> None:
        raise BadInput("No such metric.")

    with pytest.raises(BadInput, match="No such metric"):
        run(cells("fedavg"), jobs, told=told)
    assert all(one.summary is not None for one in run(cells("fedavg"), jobs).values())


def test_next_gives_cells_that_depend_on_the_last() -> None:
    some = cells("fedavg", seeds=(0, 1, 2))
    STUDY.mkdir()
    with Pool(STUDY, "small", jobs=2) as pool:
        assert pool.next() is None
        pool.submit(some[0])
        assert pool.working == 1
        first = pool.next()
        assert first is not None
        pool.submit(some[1])
        pool.submit(some[2])
        both = [pool.next(), pool.next()]
        assert {one.cell.name for one in [first, *both] if one is not None} == {cell.name for cell in some}
        assert pool.next() is None


def test_an_interrupt_in_this_process_keeps_the_rounds() -> None:
    def told(cell: Cell, line: Mapping[str, Any]) -> None:
        if line["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="the same command goes on"):
        run(cells("fedavg", seeds=(0,)), told=told)
    rounds: list[int] = []
    run(cells("fedavg", seeds=(0,)), told=lambda cell, line: rounds.append(line["round"]))
    assert rounds == [3]


def test_settings_that_now_stand_for_something_else_do_not_go_on() -> None:
    (cell,) = cells("fedavg", seeds=(0,))
    STUDY.mkdir()
    _, resolved = plan("small", {**cell.settings, "algorithm": {"name": "fedavg", "lr": 0.5}})
    RunDirectory.create(STUDY / cell.name, "small", resolved)  # as if a default had changed since
    (found,) = run([cell]).values()
    assert "algorithm.lr: 0.5 -> 0.2" in found.why


@pytest.mark.parametrize(
    ("engine", "jobs"),
    [
        ({}, 2),
        ("local", 2),
        ({"name": "wire"}, 2),
        ("auto", 2),
        ({"name": "batched"}, 2),
        ({"name": "local", "workers": 2}, 1),
        ({"name": "auto", "workers": 2}, 1),
        ({"name": "ray"}, 1),
    ],
)
def test_engines_with_processes_have_one_job(engine: Any, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = [{**SMALL, "engine": engine}]
    assert default_jobs(settings, 9) == jobs
    assert default_jobs(settings, 1) == 1
    if jobs == 1:
        with pytest.raises(BadInput, match="engines of one process"):
            check_jobs(2, settings)
    else:
        check_jobs(2, settings)
    with pytest.raises(BadInput, match="from 1 on"):
        check_jobs(0, settings)


@pytest.mark.parametrize("engine", [{"name": "local", "device": "cuda"}, "auto", {"name": "batched"}])
def test_runs_share_a_gpu_where_they_are_told_to(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other by itself; and not from a process that has used it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    settings = [{**SMALL, "engine": engine}]
    assert default_jobs(settings, 9) == 1
    check_jobs(4, settings)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    check_jobs(1, settings)
    check_jobs(4, [SMALL])
    with pytest.raises(BadInput, match="has not used it"):
        check_jobs(4, settings)
