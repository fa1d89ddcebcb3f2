"""`polyfed export`: the same outputs from a file that needs no polyfed, with any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import polyfed
from golden_runs import DIGITS
from polyfed import FedAvg, Federation, Mocha, Objective, Problem, train
from polyfed.cli import app
from polyfed.experiment import exporting
from polyfed.experiment.building import plan
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute


class Nested(nn.Module):
    """Takes a dict, and names its outputs in no sorted order."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.right, self.left = nn.Embedding(5, 3), nn.Linear(3, 2), nn.Linear(4, 1)

    def forward(self, token: torch.Tensor, rest: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"right": self.right(self.table(token)), "left": self.left(rest["far"])}


class Fixed(nn.Module):
    """Cannot do with another number of rows than it was traced with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ones(len(x.tolist()), 1) * self.layer(x)
        return made


def digits() -> polyfed.Loaded:
    made, resolved = plan("e", {**DIGITS, "rounds": 1, "algorithm": {"name": "fedavg"}})
    execute(made, RunDirectory.create(Path("run"), "e", {"name": "e", **resolved}))
    return polyfed.load("run")


def nested() -> tuple[polyfed.Loaded, dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = {"token": np.arange(12) % 5, "rest": {"far": rng.normal(size=(12, 4)).astype(np.float32)}}
    targets = {"right": np.arange(12) % 2, "left": np.ones(12)}
    objectives = [Objective("right", "cross-entropy"), Objective("left", "squared")]
    federation = Federation.from_arrays(x, targets, clients=3)
    result = train(Problem(Nested(), objectives), federation, FedAvg(), rounds=1, out="nested")
    return polyfed.load(result.run, model=Nested()), federation.x


def computed(path: str, outputs: list[str], inputs: dict[str, Any]) -> list[Any]:
    """What ONNX's runtime makes of a file."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(outputs, inputs)
    return found


def test_the_command_writes_both_kinds() -> None:
    loaded = digits()
    x = loaded.federation.x[:5].double()
    with torch.no_grad():
        wanted = loaded.model(x)
    for name in ("model.pt2", "model.onnx"):
        done = CliRunner().invoke(app, ["export", "run", name])
        assert done.exit_code == 0, done.stderr
        assert done.stdout == done.stderr == ""
    program: Any = torch.export.load("model.pt2").module()
    found = program(x)
    assert list(found) == ["left", "right"]
    assert all(torch.allclose(found[name], wanted[name]) for name in found)
    left, right = computed("model.onnx", ["left", "right"], {"x": x.numpy()})
    assert np.allclose(left, wanted["left"])
    assert np.allclose(right, wanted["right"])


def test_nested_inputs_and_outputs_keep_their_names() -> None:
    loaded, x = nested()
    loaded.export("model.pt2")
    loaded.export("model.onnx")
    program: Any = torch.export.load("model.pt2").module()
    with torch.no_grad():
        wanted, found = loaded.model(**x), program(x)
    assert all(torch.allclose(found[name], wanted[name]) for name in ("right", "left"))
    given = {"token": x["token"].numpy(), "rest.far": x["rest"]["far"].numpy()}
    (right,) = computed("model.onnx", ["right"], given)
    assert np.allclose(right, wanted["right"], atol=1e-5)


def test_a_clients_own_model_is_exported() -> None:
    x = torch.randn(40, 3)
    federation = Federation.from_arrays(x, {"y": x[:, 0] > 0}, owner=np.repeat(["n", "m"], 20))
    train(Problem(nn.Linear(3, 1), [Objective("y", "binary")]), federation, Mocha(), rounds=2, out="run")
    loaded = polyfed.load("run", model=nn.Linear(3, 1))
    loaded.export("m.pt2", client="m")
    program: Any = torch.export.load("m.pt2").module()
    with torch.no_grad():
        assert torch.allclose(program(x)["y"], loaded.personal("m")(x))


def test_what_cannot_be_traced_is_a_sentence_and_leaves_nothing() -> None:
    federation = Federation.from_arrays(torch.randn(12, 2), {"y": torch.ones(12)}, clients=2)
    train(Problem(Fixed(), [Objective("y", "squared")]), federation, FedAvg(), rounds=1, out="run")
    with pytest.raises(polyfed.BadInput, match="cannot be exported with any number of rows") as found:
        polyfed.load("run", model=Fixed()).export("model.pt2")
    assert len(str(found.value)) <= 400
    with pytest.raises(polyfed.BadInput, match=r"to a \.pt2 or an \.onnx file. Found 'model\.pth'"):
        polyfed.load("run", model=Fixed()).export("model.pth")
    assert not list(Path().glob("*model*"))


def test_what_differs_from_the_model_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = nested()
    true = exporting.WRITERS[".pt2"]

    def wrong(program: Any, x: Any) -> Any:
        data, again = true(program, x)
        return data, lambda rows: [t + 1 for t in again(rows)]

    monkeypatch.setitem(exporting.WRITERS, ".pt2", wrong)
    with pytest.raises(polyfed.BadInput, match="gives other outputs than the run's, and is not written"):
        loaded.export("model.pt2")
    assert not Path("model.pt2").exists()


def test_onnx_without_its_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    loaded, _ = nested()
    with pytest.raises(polyfed.BadInput, match=r"pip install 'polyfed\[onnx\]'"):
        loaded.export("model.onnx")
