"""Layers from outside the package: one file each, named in TOML, on every engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from outside import MEDIAN, TOY
from polyfed import FedAvg, FedMGDAPlus, train
from polyfed.cli import app
from polyfed.core.errors import BadInput
from polyfed.core.messages import Options, Request
from polyfed.testing import open_door
from small import small_federation, small_problem, vector

CLIP = '''
import torch
from pydantic.dataclasses import dataclass

from polyfed.layers import Layer


@dataclass(frozen=True)
class Clip(Layer):
    """Updates no longer than `norm`."""

    norm: float = 1.0

    def reply(self, out):
        def clipped(a):
            return a * torch.clamp(self.norm / a.norm().clamp(min=1e-30), max=1.0)

        return {name: clipped(a) if name in out.named("update") else a for name, a in out.arrays.items()}
'''

HALF = '''
from dataclasses import replace

import torch

from polyfed.core.fleet import Around
from polyfed.layers import Layer


class Half(Layer):
    """Updates travel as float16."""

    stage = "quantise"

    def transported(self, fields):
        return {n: replace(f, dtype="float16") if f.role == "update" else f for n, f in fields.items()}

    def reply(self, out):
        return {n: a.to(torch.float16) if n in out.named("update") else a for n, a in out.arrays.items()}

    def fleet(self, inner):
        return Widened(inner)


class Widened(Around):
    def ask(self, clients, request):
        wide = self.population.dtype
        for stack in self.inner.ask(clients, request):
            arrays = {n: a.to(wide) if a.dtype is torch.float16 else a for n, a in stack.arrays.items()}
            yield replace(stack, arrays=arrays)
'''

FILES = {"median_layer": MEDIAN, "clip_layer": CLIP, "half_layer": HALF}
ENGINES: list[Any] = ["local", "batched", "wire", "flower", {"name": "local", "workers": 2}]


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def experiment(layers: str, algorithm: str = 'name = "fedavg"', engine: str = 'name = "local"') -> str:
    text = f"""
rounds = 1
cohort = "all"
[data]
name = "two-digits"
clients = 5
examples = 230
partition = "dirichlet"
alpha = 1.0
[model]
name = "mlp"
hidden = [6]
dtype = "float64"
[algorithm]
{algorithm}
lr = 0.2
local_steps = 2
batch_size = 8
[engine]
{engine}
{layers}
"""
    Path("e.toml").write_text(text)
    return "e.toml"


def run(source: str) -> torch.Tensor:
    out = f"run-{time.monotonic_ns()}"
    done = CliRunner().invoke(app, ["run", source, "--out", out])
    assert done.exit_code == 0, done.stderr or done.exception
    return torch.cat([v.reshape(-1) for v in load_file(f"{out}/model.safetensors").values()])


def updates(by: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The start, and what the median of the clients' updates makes of it, by hand."""
    from polyfed.experiment.building import plan
    from polyfed.experiment.reading import read

    algorithm = f'name = "fedavg"\nweighting_by = "{by}"'
    part = plan(*read(experiment("", algorithm)))[0].parts[""]
    door = open_door(part.problem, part.federation)
    door.begin(1)
    assert isinstance(part.algorithm, FedAvg)
    options = part.algorithm.local_options(1, door)
    shared = {**part.problem.initial(), "omega": torch.full((2,), 0.5, dtype=torch.float64)}
    stacks = list(door.ask(range(5), Request("sgd", shared, options=options)))
    start = part.problem.initial()["x"]
    x = start - torch.cat([s["delta"] for s in stacks]).median(0).values
    weights = part.problem.state_dict(x, part.problem.initial()["buffers"])
    return start, torch.cat([weights[name].reshape(-1) for name in sorted(weights)])


@pytest.mark.parametrize("engine", ["local", "batched", "wire", "flower"])
@pytest.mark.parametrize("by", ["uniform", "size"])
def test_a_median_changes_the_model_as_a_median_should(engine: str, by: str) -> None:
    layers = '[[layers]]\nname = "median_layer:Median"'
    algorithm = f'name = "fedavg"\nweighting_by = "{by}"'
    _, wanted = updates(by)
    found = run(experiment(layers, algorithm, f'name = "{engine}"'))
    assert torch.allclose(found, wanted, atol=1e-10)
    assert not torch.allclose(found, run(experiment("", algorithm)), atol=1e-6)


def test_a_median_is_refused_by_a_method_that_needs_single_replies() -> None:
    source = experiment('[[layers]]\nname = "median_layer:Median"', 'name = "fedmgda+"')
    done = CliRunner().invoke(app, ["run", source, "--out", "never"])
    assert done.exit_code == 2
    assert "'median_layer:Median'" in done.stderr
    assert "'fedmgda+' needs every single reply" in done.stderr
    assert not Path("never").exists()


def test_a_layer_from_python_too() -> None:
    from median_layer import Median  # type: ignore[import-not-found]

    plain = train(small_problem(), small_federation(), FedAvg(lr=0.5), rounds=2)
    robust = train(small_problem(), small_federation(), FedAvg(lr=0.5), rounds=2, layers=[Median()])
    named = train(small_problem(), small_federation(), FedAvg(lr=0.5), rounds=2, layers=["median_layer:Median"])
    assert not torch.equal(vector(plain), vector(robust))
    assert torch.equal(vector(robust), vector(named))
    with pytest.raises(BadInput, match="needs every single reply"):
        train(small_problem(), small_federation(), FedMGDAPlus(), rounds=1, layers=[Median()], out="never")


@pytest.mark.parametrize("engine", ["local", "batched", "wire"])
def test_a_clip_bounds_every_update_exactly(engine: str) -> None:
    """Of 2 x 20 rows by size: the clip is about the update, not about n times it."""
    from clip_layer import Clip  # type: ignore[import-not-found]

    problem, federation = small_problem(dtype=torch.float64), small_federation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a fall-back would warn
        door = open_door(problem, federation, engine, layers=[Clip(norm=0.01)])
        shared = {**problem.initial(), "omega": torch.full((2,), 0.5, dtype=torch.float64)}
        options: Options = {"lr": 0.5, "steps": 3, "batch_size": 8, "weight": "size"}
        request = Request("sgd", shared, options=options)
        door.begin(1)
        norms = torch.cat([s["delta"] for s in door.ask(range(6), request)]).norm(dim=1)
        total = door.sum(range(6), request)
    assert torch.allclose(norms, torch.full((6,), 0.01, dtype=torch.float64), rtol=1e-12)
    assert total["delta"].norm() / total["weight"] <= 0.01 + 1e-15
    reference = open_door(problem, federation, layers=[Clip(norm=0.01)])
    reference.begin(1)
    assert torch.allclose(total["delta"], reference.sum(range(6), request)["delta"], rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_is_metered_as_it_travels(engine: Any) -> None:
    from half_layer import Half  # type: ignore[import-not-found]

    problem = small_problem()
    whole = train(problem, small_federation(), FedAvg(), rounds=1, engine=engine)
    half = train(problem, small_federation(), FedAvg(), rounds=1, engine=engine, layers=[Half()])
    saved = whole.summary["bytes_up"] - half.summary["bytes_up"]
    assert saved == 6 * problem.dim * 2  # two bytes a number, six clients
    assert torch.allclose(vector(whole), vector(half), atol=1e-2)
    assert not torch.equal(vector(whole), vector(half))


def test_the_order_of_stages_is_checked_and_keys_are_named() -> None:
    from clip_layer import Clip
    from half_layer import Half

    with pytest.raises(BadInput, match=r"list 'clip_layer:Clip' \(guard\) before 'half_layer:Half' \(quantise\)"):
        train(small_problem(), small_federation(), FedAvg(), rounds=1, layers=[Half(), Clip()], out="never")
    done = CliRunner().invoke(app, ["run", experiment('[[layers]]\nname = "clip_layer:Clip"\nnrom = 2.0')])
    assert done.exit_code == 2
    assert "Unknown key 'layers.nrom'. Did you mean 'norm'?" in done.stderr
    done = CliRunner().invoke(app, ["run", experiment('[[layers]]\nname = "fualts"')])
    assert "Unknown layer 'fualts'. Did you mean 'faults'?" in done.stderr


@pytest.mark.parametrize("engine", ["local", "flower"])
def test_a_layer_with_exchanges_and_state_survives_a_kill(engine: str, tmp_path: Path) -> None:
    (tmp_path / "toy_layer.py").write_text(TOY)
    lists = '[[layers]]\nname = "toy_layer:Toy"\n[[callbacks]]\nname = "toy_layer:Slow"'
    source = experiment(lists, engine=f'name = "{engine}"')
    command = [sys.executable, "-m", "polyfed"]
    sha = []
    for name, killed in (("whole", False), ("killed", True)):
        process = subprocess.Popen(
            [*command, "run", source, "--rounds", "30", "--out", name], stdout=subprocess.DEVNULL
        )
        if killed:
            _wait_for_rounds(Path(name), 8)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not Path(name, "result.json").exists()
            again = subprocess.run([*command, "resume", name], capture_output=True, text=True, check=False)
            assert again.returncode == 0, again.stderr
        assert process.wait(timeout=120) == (-signal.SIGKILL if killed else 0)
        sha.append(json.loads(Path(name, "result.json").read_text())["model_sha256"])
    assert sha[0] == sha[1]
    lines = [json.loads(line) for line in Path("killed/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 31))
    assert all(line["failures"] == [] for line in lines)


def _wait_for_rounds(run: Path, rounds: int) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("\n") >= rounds:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get that far")


def test_the_layers_state_matters() -> None:
    """What the toy layer keeps changes the model, so that the test above would notice its loss."""
    Path("toy_again.py").write_text(TOY.replace('"toy-', '"toy-again-'))
    with_state = run(experiment('[[layers]]\nname = "toy_again:Toy"'))
    assert np.isfinite(with_state.numpy()).all()
    assert not torch.allclose(with_state, run(experiment("")), atol=1e-8)
