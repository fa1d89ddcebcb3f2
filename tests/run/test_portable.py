"""Where there is no fork, no fcntl and no Unix socket, as on Windows: everything but several workers is there.

No such machine is needed: a process takes these things away from itself first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from polyfed import BadInput, FedAvg, train
from polyfed.cli import app
from polyfed.deploy import client
from polyfed.run import directory
from polyfed.run.directory import RunDirectory
from small import small_federation, small_problem

pytestmark = pytest.mark.skipif(os.name != "posix", reason="takes away what only POSIX has")

WITHOUT = """
import errno, fcntl, multiprocessing.context, os, signal, socket, sys

flags = fcntl.fcntl
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # importing it is a ModuleNotFoundError
del os.fork, os.getuid, os.geteuid, socket.AF_UNIX, signal.SIGKILL, signal.SIGHUP
for name in ("fork", "forkserver"):
    del multiprocessing.context._concrete_contexts[name]
multiprocessing.get_all_start_methods = lambda: ["spawn"]
multiprocessing.set_start_method("spawn")

def rename(old, new, over=os.rename):
    if os.path.exists(new):
        raise FileExistsError(errno.EEXIST, "File exists", new)
    over(old, new)

def fsync(file, flush=os.fsync):
    if flags(file, 3) & os.O_ACCMODE == os.O_RDONLY:  # 3: F_GETFL
        raise OSError(errno.EBADF, "Bad file descriptor")
    flush(file)

os.rename, os.fsync = rename, fsync
"""
COMMAND = "\nfrom polyfed.cli import main\nmain()\n"
CTRL_C = """
from polyfed.run.directory import RunDirectory

def log(self, line, clients=None, write=RunDirectory.log):
    write(self, line, clients)
    if line["round"] == 2:
        signal.raise_signal(signal.SIGINT)

RunDirectory.log = log
"""
EVERY_MODULE = """
import importlib, pkgutil, polyfed

def stop(name):
    raise

for module in pkgutil.walk_packages(polyfed.__path__, "polyfed.", stop):
    if module.name not in ("polyfed.__main__", *sys.argv[1:]):
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("polyfed.")]))
"""
SMALL = ["--set", "data.examples=300", "--set", "data.clients=10", "--set", "cohort=3"]


def without(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process says that runs code without all of this."""
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore:only soft file lock", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_this_takes_them_away() -> None:
    says = without("import multiprocessing\nmultiprocessing.get_context('fork')").stderr
    assert "ValueError: cannot find context for 'fork'" in says
    assert "ModuleNotFoundError" in without("import fcntl").stderr


def test_every_module_can_be_imported() -> None:
    done = without(EVERY_MODULE, "polyfed.engines.batched.kernels.convolution_triton")  # Triton's, for Linux
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_run_is_interrupted_and_resumed_to_the_same_model() -> None:
    Path("run").mkdir()  # empty, which --out may be
    experiment = ["run", "two-digits", *SMALL, "--rounds", "4"]
    stopped = without(CTRL_C + COMMAND, *experiment, "--out", "run")
    assert stopped.returncode == 130, stopped.stderr
    assert "Stopped after round 2 of 4. Continue with: polyfed resume run" in stopped.stderr
    resumed = without(COMMAND, "resume", "run", "--json")
    assert resumed.returncode == 0, resumed.stderr
    whole = CliRunner().invoke(app, [*experiment, "--out", "whole", "--json"])
    assert json.loads(resumed.stdout)["model_sha256"] == json.loads(whole.stdout)["model_sha256"]
    assert Path("run/experiment.toml").read_bytes() == Path("whole/experiment.toml").read_bytes()


def test_several_workers_are_refused_in_a_sentence() -> None:
    done = without(COMMAND, "run", "two-digits", *SMALL, "--rounds", "1", "--set", "engine.workers=2", "--out", "run")
    says = "polyfed: engine.workers above 1 needs a system that can fork (Linux, macOS); use workers = 1.\n"
    assert (done.returncode, done.stderr) == (2, says)
    assert not Path("run").exists()


def test_a_letter_that_the_console_does_not_have() -> None:
    done = without(COMMAND, "run", *SMALL, "--rounds", "1", "--out", "zürich", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "z\\xfcrich" in done.stdout


@pytest.mark.parametrize("windows", [False, True])
def test_a_refused_run_is_removed(windows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows removes no file that is open: of a run that is locked, the lock stays until it is free."""
    monkeypatch.setattr("polyfed.run.loop.OPEN_FILES_STAY", windows)
    if windows:
        rmtree, held = shutil.rmtree, [False, True]

        def remove(path: Path, ignore_errors: bool) -> None:
            (Path(path) / "experiment.toml").unlink(missing_ok=True)
            if not held.pop():
                rmtree(path)

        monkeypatch.setattr("polyfed.run.directory.shutil.rmtree", remove)
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(BadInput, match="needs a system that can fork"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r", engine={"name": "local", "workers": 2})
    assert not Path("r").exists()


def test_a_new_run_that_somebody_else_holds_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "PATIENCE", 0.0)
    ours = RunDirectory.create(Path("r"), "r", {})
    with RunDirectory.open(Path("r")).locked(), pytest.raises(BadInput, match="Another process"), ours.locked():
        pass
    ours.abandon()
    assert Path("r/experiment.toml").is_file()


def test_the_lock_goes_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(Path("r"), "r", {})
    holding = """
import pathlib, time
from polyfed.run.directory import RunDirectory
with RunDirectory.open(pathlib.Path("r")).locked():
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with monkeypatch.context() as impatient:
            impatient.setattr(directory, "PATIENCE", 0.1)
            with pytest.raises(BadInput, match="Another process is working on the run r; wait for it"), run.locked():
                pass
        other.kill()
        with run.locked():
            pass


def test_how_to_resume_is_quoted_as_the_system_does(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(Path("my runs/it's"))
    assert run.how_to_resume() == """polyfed resume 'my runs/it'"'"'s'"""
    monkeypatch.setattr(directory, "os", SimpleNamespace(name="nt"))
    assert run.how_to_resume() == '''polyfed resume "my runs/it's"'''


@pytest.mark.parametrize("missing", ["os.getuid", "socket.AF_UNIX"])
def test_a_node_without_private_sockets_works_without_a_process_that_stays(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "client_app", lambda answer: answer)
    monkeypatch.setattr(client.Sites, "answer", lambda self, run, node, to, message: b"done here")
    monkeypatch.delattr(missing)
    answer: Any = client.app("federation/client.py")
    assert answer(SimpleNamespace(run_config={}, node_config={}), None, b"") == b"done here"
