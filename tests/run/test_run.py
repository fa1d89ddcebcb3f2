"""Same seed, same model; failures are named and survived; a run killed at any moment resumes to the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polyfed import FedAvg, Wrappers, train
from polyfed.core.client import Client, Perform
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.messages import Request
from polyfed.engines import engines
from polyfed.run.directory import RunDirectory, flatten, unflatten
from small import small_federation, small_problem


def sha(**settings: Any) -> str:
    arguments = {"rounds": 4, "cohort": 3, **settings}
    result = train(small_problem(), small_federation(), FedAvg(lr=0.5, local_steps=5, batch_size=8), **arguments)
    return str(result.summary["model_sha256"])


def test_same_seed_same_model_whatever_the_engine() -> None:
    one = sha()
    assert sha() == one
    assert sha(engine="wire") == one
    assert sha(engine={"name": "local", "workers": 2}) == one
    assert sha(engine={"name": "local", "workers": 3}) == one
    assert sha(seed=1) != one


def test_the_callers_torch_state_is_left_alone() -> None:
    threads = torch.get_num_threads()
    problem, federation = small_problem(), small_federation()
    before = torch.get_rng_state()
    train(problem, federation, FedAvg(), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_a_run_directory_has_everything() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=3, cohort=2, out="here")
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    needed = {"round", "seconds", "bytes_up", "bytes_down", "losses", "metrics", "weights", "cohort", "failures"}
    assert needed <= set(lines[0])
    assert len(lines[0]["cohort"]) == 2
    assert set(lines[0]["metrics"]["left"]) == {"accuracy"}
    saved = load_file("here/model.safetensors")
    for name, value in result.model.state_dict().items():
        assert torch.equal(saved[name], value)
    assert result.summary == json.loads(Path("here/result.json").read_text())
    assert (Path("here/experiment.toml")).is_file()


def broken(what: str, who: tuple[int, ...] = (1, 4)) -> Wrappers:
    def around(inner: Perform) -> Perform:
        def attacked(client: Client, request: Request, state: Any) -> Any:
            arrays, state = inner(client, request, state)
            if client.id not in who or request.work != "sgd":
                return arrays, state
            if what == "raise":
                raise RuntimeError("the disk is on fire")
            delta = torch.as_tensor(arrays["delta"])
            bad = {"nan": delta * float("nan"), "inf": delta / 0, "shape": delta[:-1], "type": delta.double()}
            if what == "name":
                return {"dleta": delta}, state
            return {**arrays, "delta": bad[what]}, state

        return attacked

    return Wrappers(guards=(around,))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("raise", "the disk is on fire"),
        ("nan", "'delta' holds NaN"),
        ("inf", "'delta' holds NaN or infinity"),
        ("shape", "'delta' should be torch.float32 of shape"),
        ("type", "found torch.float64"),
        ("name", "the reply should hold"),
    ],
)
def test_a_failing_client_is_dropped_counted_and_named(what: str, why: str, engine: str) -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=engine, wrappers=broken(what))
    for line in result.history:
        assert [failure["client"] for failure in line["failures"]] == [1, 4]
        assert why in line["failures"][0]["why"]
    assert result.summary["failures"] == 4


def test_everybody_failing_ends_the_run_with_a_usable_checkpoint() -> None:
    with pytest.raises(RunStopped, match=r"none of the 6 clients .* the disk is on fire.*after round 0"):
        train(
            small_problem(), small_federation(), FedAvg(), rounds=3, out="r", wrappers=broken("raise", tuple(range(6)))
        )
    result = train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r", resume=True)
    again = train(small_problem(), small_federation(), FedAvg(), rounds=3)
    assert result.summary["model_sha256"] == again.summary["model_sha256"]


def test_a_dead_worker_is_a_sentence() -> None:
    def deadly(inner: Perform) -> Perform:
        def kill(client: Client, request: Request, state: Any) -> Any:
            if request.work == "sgd" and client.id == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(client, request, state)

        return kill

    with pytest.raises(RunStopped, match="A worker process died"):
        train(
            small_problem(), small_federation(), FedAvg(), rounds=1,
            engine={"name": "local", "workers": 2}, wrappers=Wrappers(attacks=(deadly,)),
        )  # fmt: skip


def test_evaluation_by_asking_the_clients_is_the_same_measure() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=1, evaluate={"clients": True})
    spread = result.history[0]["clients"]["left"]["accuracy"]
    assert set(spread) == {"mean", "std", "worst", "worst_5", "worst_10"}
    assert spread["worst"] <= spread["mean"] <= 1
    assert result.history[0]["evaluation_bytes"] > 0
    same = small_federation()
    everybodys = replace(same, server=same.train.order)  # the server tests on the rows that the clients have
    at_server = train(small_problem(), everybodys, FedAvg(), rounds=1).history[0]
    by_asking = train(small_problem(), replace(same, server=None), FedAvg(), rounds=1).history[0]
    for name in ("left", "right"):
        assert by_asking["losses"][name] == pytest.approx(at_server["losses"][name], rel=1e-5)
        assert by_asking["metrics"][name] == pytest.approx(at_server["metrics"][name], rel=1e-5)


def test_evaluation_may_be_rare_but_the_last_round_has_it() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=5, evaluate={"every": 3})
    assert [("losses" in line) for line in result.history] == [False, False, True, False, True]


def test_resume_goes_on_from_an_unfinished_run_and_forgets_half_a_line() -> None:
    whole = train(small_problem(), small_federation(), FedAvg(), rounds=6)
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="part")
    with Path("part/metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "secon')
    part = train(small_problem(), small_federation(), FedAvg(), rounds=6, out="part", resume=True)
    assert part.summary["model_sha256"] == whole.summary["model_sha256"]
    assert [line["round"] for line in part.history] == [1, 2, 3, 4, 5, 6]


def test_an_unreadable_checkpoint_falls_back_to_the_one_before() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r")
    directory = RunDirectory.open(Path("r"))
    directory.save(8, {"state": {"x": torch.ones(2)}})
    directory.save(9, {"state": {"x": torch.zeros(2)}})
    last = sorted(directory.checkpoints.iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1  # one bit, in the middle of a number
    last.write_bytes(data)
    found = directory.load()
    assert found is not None
    assert found[0] == 8
    last.write_bytes(b"")
    assert directory.load()[0] == 8  # type: ignore[index]


def test_trees_of_tensors_there_and_back() -> None:
    tree = {"a": {"b": torch.ones(2), "c": {"d": torch.tensor(3)}}, "e": torch.zeros(0)}
    back = unflatten(flatten(tree))
    assert torch.equal(back["a"]["c"]["d"], torch.tensor(3))
    assert back["e"].shape == (0,)


def test_bad_arguments_leave_nothing() -> None:
    with pytest.raises(BadInput, match="rounds should be greater than or equal to 1"):
        train(small_problem(), small_federation(), FedAvg(), rounds=0, out="x")
    with pytest.raises(BadInput, match="at most the number of clients, 6"):
        train(small_problem(), small_federation(), FedAvg(), cohort=7, out="x")
    assert not Path("x").exists()


COMMAND = [sys.executable, "-m", "polyfed"]
EXPERIMENT = ["--rounds", "60", "--set", "data.examples=2000", "--set", "data.clients=20", "--set", "cohort=4"]


def polyfed(*arguments: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, **kw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("whole") / "run"
    done = polyfed("run", *EXPERIMENT, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1])["model_sha256"])


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(run: Path, rounds: int, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while lines(run) < rounds and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    assert lines(run) >= rounds


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_twice_and_resumed_is_the_same_model(whole: str, tmp_path: Path, workers: int) -> None:
    moments = random.Random(workers)
    run = tmp_path / "run"
    process = start("run", *EXPERIMENT, "--out", str(run), "--set", f"engine.workers={workers}")
    wait_for(run, moments.randint(1, 25), process)
    process.kill()
    process.communicate(timeout=60)
    process = start("resume", str(run))
    wait_for(run, moments.randint(26, 50), process)
    process.kill()
    process.communicate(timeout=60)
    assert not (run / "result.json").exists()
    done = polyfed("resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["model_sha256"] == whole
    assert [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(
        range(1, 61)
    )


def test_ctrl_c_checkpoints_and_says_how_to_go_on(whole: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("run", *EXPERIMENT, "--out", str(run))
    wait_for(run, 5, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"polyfed resume {run}" in err
    done = lines(run)
    found = RunDirectory.open(run).load()
    assert found is not None
    assert found[0] == done < 60
    assert json.loads(polyfed("resume", str(run), "--json").stdout)["model_sha256"] == whole


def test_freed_memory_stays_with_the_process() -> None:
    """A large tensor comes from the heap, which keeps it when it is freed; by default it is mapped, and unmapped."""
    script = (
        "import ctypes, sys, torch\n"
        "from polyfed.core.heap import keep_memory\n"
        "kept = sys.argv[1] == 'keep' and keep_memory()\n"
        "libc = ctypes.CDLL(None)\n"
        "names = 'arena ordblks smblks hblks mapped usmblks fsmblks uordblks fordblks keepcost'.split()\n"
        "class Info(ctypes.Structure): _fields_ = [(name, ctypes.c_size_t) for name in names]\n"
        "libc.mallinfo2.restype = Info\n"
        "before = libc.mallinfo2()\n"
        "tensor = torch.ones(4 << 20)\n"
        "during = libc.mallinfo2()\n"
        "del tensor\n"
        "after = libc.mallinfo2()\n"
        "print(kept, during.mapped - before.mapped, during.arena - after.arena)\n"
    )

    def run(how: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True)
        if "mallinfo2" in done.stderr:
            pytest.skip("this system's C library is not a glibc of 2.33 or later")
        return done.stdout.split()

    assert run("keep") == ["True", "0", "0"]
    assert int(run("plain")[1]) >= 16 << 20


def test_an_engine_that_cannot_be_started_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: Any, **__: Any) -> None:
        raise BadInput("There is no cluster.")

    monkeypatch.setitem(engines._things, "nowhere", nowhere)
    with pytest.raises(BadInput, match="no cluster"):
        train(small_problem(), small_federation(), FedAvg(), engine="nowhere", out="r")
    assert not Path("r").exists()
    assert train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r").run == Path("r")
