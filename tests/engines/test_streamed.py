"""Data that are read when they are needed give the same model, bit for bit, on every engine; and never fill memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from polyfed import Federation, train
from polyfed.algorithms import algorithms
from polyfed.core import tensorkeys
from polyfed.core.messages import Request
from polyfed.core.source import Files, Index, Source
from polyfed.engines.batched import streams, together
from polyfed.testing import open_door
from small import small_problem, vector

GPU = [("batched", {"device": "cuda"})] if torch.cuda.is_available() else []
WORKERS = pytest.param("local", {"workers": 2}, marks=pytest.mark.forks)
ENGINES: list[Any] = [
    ("local", {}), WORKERS, ("wire", {}), ("batched", {"device": "cpu"}), ("batched", {"device": "cpu", "chunk": 3}),
    *GPU,
]  # fmt: skip
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"local_epochs": 2, "batch_size": 4}), ("fedavg", {"batch_size": 0}), ("fsmgda", {"batch_size": 4}),
    ("fedcmoo", {"compress": "exact", "batch_size": 4}),
]  # fmt: skip
EVALUATED: dict[str, Any] = {"clients": True, "stationarity": 1}


def uneven() -> Federation:
    """Clients with 1 to 25 rows, some kept aside, and rows of the server's own."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    targets = {name: (x @ rng.normal(size=(5, 3))).argmax(1) for name in ("left", "right")}
    owned = np.split(np.arange(78), np.cumsum([1, 5, 9, 20, 25, 10]))
    pair = x[78:], {name: t[78:] for name, t in targets.items()}
    return Federation.from_arrays(x[:78], {n: t[:78] for n, t in targets.items()}, clients=owned, valid=0.2, test=pair)


def nested(x: Any) -> Any:
    return {"x": x[:, :3], "more": (x[:, 3:],)}


def joined(x: Any) -> Tensor:
    return torch.cat([x["x"], x["more"][0]], -1) / 2


def shaken(x: Tensor, key: Any) -> Tensor:
    noise = tensorkeys.uniform(key, x.numel(), x.device) if isinstance(key, int) else tensorkeys.uniform(key, x.numel())
    return x + 0.01 * noise.reshape(x.shape)


def trained(federation: Federation, method: str, options: dict[str, Any], engine: str, settings: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*runs client by client")
        return train(
            small_problem(), federation, algorithms[method](**options), rounds=2, cohort=5, seed=4,
            engine={"name": engine, **settings}, evaluate=EVALUATED,
        )  # fmt: skip


def told(run: Any) -> list[dict[str, Any]]:
    """But for the time, and for choices: how much memory of a GPU is free."""
    return [{k: v for k, v in line.items() if k not in ("seconds", "choices")} for line in run.history]


def assert_figures(one: Any, other: Any, rel: float) -> None:
    """The same nested figures."""
    (values, form), (others, same) = tree_flatten(one), tree_flatten(other)
    assert form == same
    for a, b in zip(values, others, strict=True):
        assert a == (pytest.approx(b, rel=rel, abs=0) if isinstance(b, float) else b)


@pytest.mark.parametrize(("engine", "settings"), ENGINES)
def test_a_map_gives_the_same_model_as_memory_on_every_engine(
    engine: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    held = uneven()
    np.save(tmp_path / "x.npy", held.x.numpy())
    streamed = replace(held, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    for method, options in METHODS if engine == "batched" else METHODS[-2:]:
        one, other = (trained(f, method, options, engine, settings) for f in (held, streamed))
        assert torch.equal(vector(one), vector(other)), method
        # what the server measures, a GPU does where it holds the rows, and the host where they are read
        assert_figures(told(one), told(other), rel=1e-5 if settings.get("device") == "cuda" else 0)


@pytest.mark.parametrize(("engine", "settings"), ENGINES)
def test_nested_prepared_and_augmented_files_do_too(engine: str, settings: dict[str, Any], tmp_path: Path) -> None:
    held = uneven()
    rows = held.x.numpy()
    for i, row in enumerate(rows):
        np.save(tmp_path / f"{i:03}.npy", row)
    files = Files(tmp_path, lambda path: {"x": np.load(path)[:3], "more": (np.load(path)[3:],)})
    held = replace(held, x=nested(held.x), prepare=joined, augment=shaken)
    streamed = replace(held, x=files)
    one, other = (trained(f, *METHODS[0], engine, settings) for f in (held, streamed))
    assert torch.equal(vector(one), vector(other))


class Watched(Source):
    """Rows that a function makes, of which some cannot be read; notes how many are read at once."""

    def __init__(self, rows: int, bad: tuple[int, ...] = ()) -> None:
        self.x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0))
        self.bad, self.most = bad, 0

    def __len__(self) -> int:
        return len(self.x)

    def read(self, rows: Index) -> Tensor:
        self.most = max(self.most, len(rows))
        if found := [row for row in rows.tolist() if row in self.bad]:
            raise OSError(f"sector {found[0]} is gone")
        return self.x[torch.from_numpy(rows)]


def of(source: Source, clients: int = 6) -> Federation:
    y = {name: np.arange(len(source)) % 3 for name in ("left", "right")}
    return Federation.from_arrays(source, y, clients=np.array_split(np.arange(len(source)), clients))


SOME: list[Any] = [("local", {}), WORKERS, ("wire", {}), ("batched", {"device": "cpu"})]


@pytest.mark.parametrize(("engine", "settings"), SOME)
def test_who_cannot_read_its_data_has_failed_and_the_others_have_not(engine: str, settings: dict[str, Any]) -> None:
    problem, request = small_problem(), Request("evaluate", small_problem().initial(), options={"split": "train"})
    found = []
    for bad in ((), (35, 59)):
        fleet = open_door(problem, of(Watched(60, bad)), engine, settings=settings)
        fleet.begin(1)
        found.append(list(fleet.ask(range(6), request)))
        failed = dict(fleet.failures)
    whole, some = ({c: s["values"][i] for s in stacks for i, c in enumerate(s.clients)} for stacks in found)
    assert sorted(some) == [0, 1, 2, 4]
    assert all(torch.equal(some[c], whole[c]) for c in some)
    assert failed[3] == "OSError: sector 35 is gone"
    assert failed[5] == "OSError: sector 59 is gone"


def test_a_trial_begins_though_the_first_example_cannot_be_read() -> None:
    fleet = open_door(small_problem(), of(Watched(60, bad=(0,))), "auto", settings={"device": "cpu"})
    fleet.begin(1)
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})
    assert sum(len(s.clients) for s in fleet.ask(range(6), request)) == 5
    assert dict(fleet.failures) == {0: "OSError: sector 0 is gone"}


@pytest.mark.parametrize(("engine", "settings"), SOME)
def test_a_feature_that_is_not_finite_is_its_clients_failure(engine: str, settings: dict[str, Any]) -> None:
    source = Watched(60)
    source.x[42, 1] = torch.nan
    fleet = open_door(small_problem(), of(source), engine, settings=settings)
    fleet.begin(1)
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})
    assert sum(len(s.clients) for s in fleet.ask(range(6), request)) == 5
    failed = dict(fleet.failures)
    assert set(failed) == {4}
    assert "x should hold finite numbers. Found NaN or infinity in row" in failed[4]


def test_batched_gives_a_program_no_more_streamed_bytes_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    held, request = Watched(60), Request("evaluate", small_problem().initial(), options={"split": "train"})
    monkeypatch.setattr(together, "MOST", 2 * 10 * 5 * 4 + 1)  # two clients' rows
    fleet = open_door(small_problem(), of(held), "batched", settings={"device": "cpu"})
    fleet.begin(1)
    assert [list(s.clients) for s in fleet.ask(range(6), request)] == [[0, 1], [2, 3], [4, 5]]
    monkeypatch.setattr(together, "MOST", 10 * 5 * 4 - 1)
    fleet = open_door(small_problem(), of(held), "batched", settings={"device": "cpu"})
    fleet.begin(1)
    with pytest.warns(RuntimeWarning, match=r"The work 'evaluate' runs client by client: a client's streamed batches"):
        assert [list(s.clients) for s in fleet.ask(range(6), request)] == [[c] for c in range(6)]


def test_batched_tries_work_once_to_see_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, asking = [], streams.Streams.asking

    def counted(self: streams.Streams, found: Any, sizes: Any) -> Any:
        tries.append(found)
        return asking(self, found, sizes)

    monkeypatch.setattr(streams.Streams, "asking", counted)
    federation = of(Watched(60))
    train(small_problem(), federation, "fedavg", rounds=3, engine={"name": "batched", "device": "cpu"},
          evaluate={"every": 10})  # fmt: skip
    assert len(tries) == len({tuple(found) for found in tries}) <= 2  # training, and what the last line measures


@pytest.mark.parametrize("engine", ["local", "wire"])
def test_a_pass_over_all_rows_never_holds_them(engine: str) -> None:
    source = Watched(20_000)
    fleet = open_door(small_problem(), of(source, 2), engine)
    fleet.begin(1)
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})
    assert sum(float(s["n"]) for s in fleet.ask(range(2), request)) == 20_000
    assert source.most <= 1024


TWENTY_GB = """
import sys, threading, time
import numpy as np, torch
from torch import nn
from polyfed import Federation, Objective, Problem, train

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

most, done = [0.0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], anonymous())
threading.Thread(target=watch, daemon=True).start()

rows, width, clients = 320_000, 16_384, 10
x = np.memmap(sys.argv[1], np.float32, "r", shape=(rows, width))
y = np.arange(rows) // 200 % 2
model = nn.Linear(width, 2)
torch.nn.init.zeros_(model.weight)
owned = np.array_split(np.arange(rows), clients)
federation = Federation.from_arrays(x, y, clients=owned, test=(x[:40_000:200], y[:40_000:200]))
result = train(Problem(model, [Objective("class", "cross-entropy")]), federation, "fedavg", rounds=3, cohort=3,
               engine={"name": sys.argv[2]}, evaluate={"every": 1})
done.set()
print(most[0], *(line["losses"]["class"] for line in result.history))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_twenty_gigabytes_on_disk_train_in_less_than_one_of_memory(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(320_000 * 16_384 * 4)
    assert path.stat().st_size > 20e9
    assert path.stat().st_blocks * 512 < 1e6, "this file system keeps no sparse files"
    with path.open("r+b") as file:  # real rows among the empty ones
        for row in range(0, 320_000, 200):
            file.seek(row * 16_384 * 4)
            file.write(np.full(16_384, 0.05 if row // 200 % 2 else -0.05, np.float32).tobytes())
    done = subprocess.run(
        [sys.executable, "-c", TWENTY_GB, path, engine], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    most, *losses = map(float, done.stdout.split())
    assert most < (2000 if torch.cuda.is_available() else 1000)  # 1,499 seen there: CUDA, too
    assert len(losses) == 3
    assert losses[-1] < 0.9 * math.log(2)  # of a model that knows nothing
