"""A client's side: its data, its memory on disk, the process that stays, and the app that `flower init` writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleets  # noqa: F401 (registers the toys)
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polyfed.cli import app as cli
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.layer import Layers
from polyfed.core.messages import TICKS, Reply, Request
from polyfed.core.part import Part
from polyfed.deploy.client import Sites
from polyfed.deploy.data import own_data
from polyfed.deploy.memory import DiskMemory
from polyfed.deploy.site import Site
from polyfed.run.directory import RunDirectory
from polyfed.testing import open_door
from small import small_federation, small_problem

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

from polyfed.deploy.app import ASKED_WHO, To, client_app  # noqa: E402
from polyfed.deploy.engine import OverGrid  # noqa: E402
from polyfed.deploy.grid import InProcess as Grid  # noqa: E402
from polyfed.deploy.server import federate  # noqa: E402
from polyfed.deploy.warm import Warm  # noqa: E402

RUN = "0123456789abcdef" * 2
EXPERIMENT = """
rounds = 3
cohort = "all"
[data]
name = "nodes"
clients = 3
shape = [5]
objectives = {left = 3, right = "binary"}
test = 0.2
[model]
name = "mlp"
hidden = [4]
[algorithm]
name = "fedcmoo"
local_steps = 2
"""


def rows(i: int, path: Path, **more: Any) -> Path:
    rng = np.random.default_rng(i)
    x = rng.normal(size=(20 + i, 5)).astype(np.float32)
    right: dict[str, Any] = {"right": x[:, 0] > 0} if i else {}
    np.savez(path, x=x, left=rng.integers(0, 3, len(x)), **right, **more)
    return path


@pytest.fixture
def clinics() -> list[dict[str, Any]]:
    """Three nodes, each with a file of its own; the first has no data for the objective 'right'."""
    Path("experiment.toml").write_text(EXPERIMENT)
    names = ["clinic-c", "clinic-a", "clinic-b"]
    return [
        {
            "name": name,
            "data": str(rows(i, Path(f"{name}.npz").absolute())),
            "state": str(Path(f"state-{i}").absolute()),
        }
        for i, name in enumerate(names)
    ]


def fresh(config: dict[str, Any]) -> Any:
    """An app that forgets everything between messages, as Flower's processes do."""
    return client_app(lambda context, to, m: Sites(Path.cwd()).answer(config, context.node_config, to, m))


def config(**more: Any) -> dict[str, Any]:
    return {"out": str(Path("run").absolute()), "timeout": 20.0, "wait": 5.0, **more}


def test_every_client_opens_its_own_file(clinics: list[dict[str, Any]]) -> None:
    summary = federate(Path.cwd(), Grid(fresh(config()), clinics), config())
    assert summary["failures"] == 0
    clients = json.loads(Path("run/clients-0.json").read_text())["clients"]
    assert [c["name"] for c in clients] == ["clinic-a", "clinic-b", "clinic-c"]
    assert [c["examples"] for c in clients] == [16, 17, 16]
    assert [c["holds"] for c in clients] == [[True, True], [True, True], [True, False]]


class PowerFailure(BaseException):
    """Nothing is tidied up after it."""


def test_a_server_that_stopped_goes_on_at_the_same_model(clinics: list[dict[str, Any]]) -> None:
    whole = federate(Path.cwd(), Grid(fresh(config()), clinics), config(out="whole"))["model_sha256"]

    class Dying(Grid):
        left = 17  # messages until the power fails, in the second round

        def _push(self, message: Any) -> str:
            self.left -= 1
            if not self.left:
                raise PowerFailure
            return super()._push(message)

    with pytest.raises(PowerFailure):
        federate(Path.cwd(), Dying(fresh(config()), clinics), config())
    assert RunDirectory.open(Path("run")).load() is not None
    grid = Grid(fresh(config()), clinics[::-1])
    grid.contexts = {10 + i: context for i, context in grid.contexts.items()}  # other numbers at Flower, same names
    again = federate(Path.cwd(), grid, config(bind=False))
    assert again["model_sha256"] == whole
    assert federate(Path.cwd(), Grid(fresh(config()), []), config()) == again  # complete: nobody is asked


def stopped(clinics: list[dict[str, Any]], rounds: int = 1) -> None:
    """A run that was killed after so many rounds of three."""

    class Dying(Grid):
        def _push(self, message: Any) -> str:
            if Path("run/metrics.jsonl").read_bytes().count(b"\n") == rounds:
                raise PowerFailure
            return super()._push(message)

    with pytest.raises(PowerFailure):
        federate(Path.cwd(), Dying(fresh(config()), clinics), config())


def resumed(clinics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return federate(Path.cwd(), Grid(fresh(config()), clinics), config(bind=False, **more))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"set": "algorithm.lr=0.25"}, r"The app's experiment was changed .* algorithm.lr: .* -> 0.25"),
        ({"set": "seed=5"}, "seed: 0 -> 5"),
        ({"set": "data.clients=2"}, "data.clients: 3 -> 2"),
        ({"rounds": -1}, "rounds should be"),
    ],
)
def test_a_run_does_not_go_on_as_another_model(clinics: list[dict[str, Any]], change: Any, says: str) -> None:
    stopped(clinics)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=says) as error:
        resumed(clinics, **change)
    assert len(str(error.value)) <= 400
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_run_that_was_edited_does_not_go_on(clinics: list[dict[str, Any]]) -> None:
    stopped(clinics)
    run = Path("run/experiment.toml")
    run.write_text(run.read_text().replace("seed = 0", "seed = 7"))
    with pytest.raises(BadInput, match=r"The experiment.toml of that run was changed since .* seed: 0 -> 7"):
        resumed(clinics)


def test_rounds_below_what_is_done_are_refused(clinics: list[dict[str, Any]]) -> None:
    stopped(clinics, rounds=2)
    with pytest.raises(BadInput, match=r"rounds should be at least what the run .* has done, 2\. Found 1\."):
        resumed(clinics, rounds=1)


@pytest.mark.parametrize(
    ("app", "run", "configuration"), [(3, 3, 5), (5, 3, 0), (3, 5, 0), (3, 4, 5), (4, 5, 0)], ids=str
)
def test_a_run_goes_on_for_as_many_rounds_as_are_asked_for(
    clinics: list[dict[str, Any]], app: int, run: int, configuration: int
) -> None:
    """What `-c rounds=5` said was ignored."""
    stopped(clinics)
    for path, rounds in (("experiment.toml", app), ("run/experiment.toml", run)):
        Path(path).write_text(Path(path).read_text().replace("rounds = 3", f"rounds = {rounds}"))
    assert resumed(clinics, rounds=configuration)["rounds"] == 5


def test_a_guard_that_is_turned_off_on_the_way_is_told_of(clinics: list[dict[str, Any]]) -> None:
    stopped(clinics)
    (said,) = resumed(clinics, set="guard='off'")["rules"]
    assert said == "guard is 'off' from here on; the run began with 'on'."


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data": "no/such.npz"}, "'no/such.npz' cannot be read as .npz"),
        ({"data": "no.such:module"}, "cannot be imported"),
        ({"data": None}, "names its data"),
        ({"data": None, "partition-id": 1}, "data are the nodes' own"),
    ],
)
def test_a_node_whose_data_is_not_there_is_named(clinics: list[dict[str, Any]], change: Any, why: str) -> None:
    clinics[1] = {key: value for key, value in {**clinics[1], **change}.items() if value is not None}
    with pytest.raises(RunStopped, match=r"2 of 3 clients were there after 0\.2 s") as error:
        federate(Path.cwd(), Grid(fresh(config()), clinics), config(wait=0.2))
    assert why in str(error.value)


@pytest.mark.parametrize("engine", ["local", "flower"])
def test_data_that_only_the_nodes_have_is_not_invented(engine: str) -> None:
    """F3: it trained on rows of zeros."""
    Path("experiment.toml").write_text(EXPERIMENT)
    done = CliRunner().invoke(cli, ["run", "experiment.toml", "--engine", engine])
    assert done.exit_code == 2
    assert "only the clients have the data" in done.stderr
    assert not list(Path.cwd().glob("runs/*"))


def test_a_part_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"partition-id should be below data\.clients, 6\. Found 7"):
        own_data({"partition-id": 7}, small_federation(), ["left"], {}, 0)


@pytest.mark.parametrize("name", ["no-such.toml", "../../etc/passwd", "/etc/passwd"])
def test_an_experiment_that_is_not_the_apps_is_refused_by_the_client(clinics: Any, name: str) -> None:
    reply = Reply.decode(Sites(Path.cwd()).answer({"experiment": name}, clinics[0], To(RUN, 0, ASKED_WHO), b""))
    assert reply.error == f"refused: The app has no experiment {name!r}."


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"left": [0]}, "should hold 'x'"), ({"x": np.zeros((2, 5))}, "one of 'left', 'right'"),
        ({"x": np.zeros((2, 4)), "left": [0, 1]}, "examples have the shape (4,)"),
        ({"x": np.zeros((2, 5)), "left": [0, 1, 2]}, "'left' should have the shape (2,). Found (3,)"),
    ],
)  # fmt: skip
def test_a_file_with_the_wrong_arrays_is_a_sentence(arrays: dict[str, Any], why: str) -> None:
    np.savez("rows.npz", **arrays)
    template = small_federation(holds={"right": [True] * 6})
    with pytest.raises(BadInput) as error:
        own_data({"data": "rows.npz"}, template, ["left", "right"], {}, 0)
    assert why in str(error.value)


def test_a_pickle_in_a_file_is_not_opened() -> None:
    np.savez("rows.npz", x=np.array([{}], dtype=object))
    with pytest.raises(BadInput, match="allow_pickle=False"):
        own_data({"data": "rows.npz"}, small_federation(), ["left"], {}, 0)


def test_rows_kept_aside_come_from_the_file_or_are_cut() -> None:
    x, left = np.zeros((10, 5), np.float32), np.zeros(10, np.int64)
    np.savez("rows.npz", x=x, left=left, test_x=x[:4], test_left=left[:4])
    made = own_data({"data": "rows.npz"}, small_federation(), ["left"], {"valid": 0.2, "test": 0.5}, 0)
    assert made.test is not None
    assert made.valid is not None
    assert (len(made.rows("train", 0)), len(made.rows("valid", 0)), len(made.rows("test", 0))) == (8, 2, 4)


def pair() -> tuple[Any, Any]:
    return np.ones((7, 5), np.float32), {"left": np.zeros(7, np.int64)}


def test_a_function_may_give_the_rows() -> None:
    made = own_data({"data": f"{__name__}:pair"}, small_federation(), ["left", "right"], {}, 0)
    assert made.examples.tolist() == [7]
    assert made.matrix(["left", "right"]).tolist() == [[True, False]]


# -- memory


def door_with(app: Any, folder: Path) -> Door:
    problem, federation = small_problem(), small_federation(clients=3)
    grid = Grid(app, [{"partition-id": i} for i in range(3)])
    engine = OverGrid({"": Part(problem, federation)}, Layers(), grid, rosters=[folder / "c.json"])
    return open_door(problem, federation, engine)


def forgetful() -> Any:
    """Clients whose process ends after every message: what they know is on their disks."""
    problem, federation = small_problem(), small_federation(clients=3)

    def answer(context: Any, to: To, message: bytes) -> bytes:
        i = int(context.node_config["partition-id"])
        memory: Callable[[str, str], DiskMemory] = lambda run, name: DiskMemory.of(Path("disk"), run, name)  # noqa: E731
        return Site(str(i), problem, federation.alone(i), Layers(), memory).answer(to, message)

    return client_app(answer)


def add(door: Door, amount: float) -> None:
    list(door.ask(range(3), Request("toy-add", each={"amount": torch.full((3,), amount)})))


def totals(door: Door) -> list[float]:
    return [float(s["total"]) for s in door.ask(range(3), Request("toy-total"))]


def test_state_outlives_the_process_and_follows_the_server_back() -> None:
    door = door_with(forgetful(), Path.cwd())
    saved: dict[int, dict[int, int]] = {0: {}}
    for t in range(1, 6):
        door.begin(t)
        add(door, 1.0)
        add(door, 10.0)  # twice a round: only the end of a round is a checkpoint's
        saved[t] = dict(door.clock.used)
    for t in (5, 4):  # a server that died in the round after: the newest checkpoint, and the one before
        door = door_with(forgetful(), Path.cwd())
        door.clock.used = dict(saved[t])
        door.begin(t + 1)
        assert totals(door) == [11.0 * t] * 3
    files = sorted(int(p.suffix[1:]) // TICKS for p in Path("disk").rglob("0.0/state.*"))
    assert len(files) <= 5  # what no checkpoint can go back to is not kept


def test_between_two_exchanges_the_model_is_on_the_disk() -> None:
    door, start = door_with(forgetful(), Path.cwd()), small_problem().initial()
    door.begin(1)
    first = [s["g"] for s in door.ask(range(3), Request("toy-slope", start))]
    second = [s["g"] for s in door.ask(range(3), Request("toy-slope"))]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_state_that_is_gone_is_an_error_and_not_a_fresh_start() -> None:
    door = door_with(forgetful(), Path.cwd())
    door.begin(1)
    add(door, 1.0)
    for path in Path("disk").rglob("1.0/state.*"):
        path.unlink()
    door.begin(2)
    assert totals(door) == [1.0, 1.0]
    assert "no longer has the state" in dict(door.failures)[1]


@pytest.mark.parametrize("run", ["../../evil", "", "A" * 32, "0" * 31])
def test_a_runs_id_leads_nowhere_else(run: str) -> None:
    with pytest.raises(BadInput, match="32 hexadecimal digits"):
        DiskMemory.of(Path("disk"), run, "name")
    assert not Path("disk").exists()


# -- the process that stays


@pytest.mark.filterwarnings("ignore")  # the process outlives the object that started it: that is what it is for
def test_a_warm_process_answers_and_ends(clinics: list[dict[str, Any]]) -> None:
    node = {**clinics[1], "keep-warm": 2.0}
    warm = Warm(Path.cwd(), config(), node)
    warm.supernode = os.getpid()
    replies = [Reply.decode(warm.ask(To(RUN, 0, ASKED_WHO), b"")) for _ in range(2)]
    assert [int(r.arrays["examples"]) for r in replies] == [16, 16]
    assert warm.path.stat().st_mode & 0o077 == 0
    assert "Unknown work 'os:system'" in Reply.decode(warm.ask(To(RUN, 0, 1), Request("os:system").encode())).error
    deadline = time.monotonic() + 20
    while warm.path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- the app


def test_init_writes_an_app_that_flower_takes(tmp_path: Path) -> None:
    from flwr.cli.config_utils import load_and_validate

    Path("mine.py").write_text("from polyfed.models.basic import linear\n")
    Path("mine.toml").write_text(EXPERIMENT.replace('name = "mlp"\nhidden = [4]', 'name = "mine:linear"'))
    done = CliRunner().invoke(cli, ["flower", "init", "my app", "--experiment", "mine.toml"])
    assert done.exit_code == 0, done.output
    found = load_and_validate(Path("my app/pyproject.toml"))
    assert found
    table = tomllib.loads(Path("my app/pyproject.toml").read_text())
    assert table["tool"]["flwr"]["app"]["components"]["serverapp"] == "federation.server:app"
    assert sorted(p.name for p in Path("my app/federation").iterdir()) == [
        "__init__.py", "client.py", "experiment.toml", "mine.py", "server.py",
    ]  # fmt: skip
    again = CliRunner().invoke(cli, ["flower", "init", "my app", "--experiment", "mine.toml"])
    assert again.exit_code == 2


def test_the_clients_app_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = "[m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules]"
    code = f"import sys, polyfed.deploy.client as c; c.app('x/y.py'); print({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"
