"""`polyfed predict`: rows as the run's data were, an objective a column, nothing half-written."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import polyfed
from golden_runs import DIGITS, TASKS
from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.cli import app
from polyfed.core.registry import forget
from polyfed.experiment.building import plan
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute

MODULE = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.size, self.old = nn.Linear(2, 3), nn.Linear(2, 1), nn.Linear(2, 1)
    def forward(self, x):
        return {"kind": self.kind(x), "size": self.size(x), "old": self.old(x)}

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.rest = nn.Embedding(5, 3), nn.Linear(3, 3)
    def forward(self, token, rest):
        return self.rest(self.table(token)) + rest["far"]

def halved(x):
    return x / 2
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "predicting_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("predicting_mine")
    sys.modules.pop("predicting_mine")
    forget("predicting_mine")


def frame(rows: int = 30) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    made = pandas.DataFrame({"age": rng.normal(size=rows), "income": rng.normal(size=rows), "who": np.arange(rows) % 3})
    made["kind"] = np.array(["cat", "dog", "owl"])[np.arange(rows) % 3]
    made["size"] = made["age"] * 2
    made["old"] = (made["age"] > 0).astype(int)
    return made


def trained(mine: Any, **more: Any) -> polyfed.Loaded:
    """A run over a table, three kinds of objectives."""
    objectives = [Objective("kind", "cross-entropy"), Objective("size", "squared"), Objective("old", "binary")]
    targets = [o.name for o in objectives]
    federation = Federation.from_frame(frame(), owner="who", x=["age", "income"], targets=targets, **more)
    result = train(Problem(mine.Two(), objectives), federation, FedAvg(local_steps=2), rounds=1, out="run")
    return polyfed.load(result.run)


def save(**arrays: Any) -> None:
    """data.npz, 'far' under the name that it has as a part of 'rest'."""
    named: Any = {"rest.far" if name == "far" else name: a for name, a in arrays.items()}
    np.savez("data.npz", **named)


def predict(*words: str) -> Any:
    return CliRunner().invoke(app, ["predict", "run", *words])


def failed(*words: str) -> str:
    """A sentence, and no file."""
    before = sorted(Path().iterdir())
    done = predict(*words)
    assert done.exit_code == 2, done.stdout
    assert sorted(Path().iterdir()) == before
    assert len(done.stderr) <= 400
    return str(done.stderr)


def test_a_table_goes_in_and_a_table_comes_out(mine: Any) -> None:
    loaded = trained(mine)
    data = frame(7)[["who", "income", "size", "age"]]  # in another order, and with more
    data.to_csv("data.csv", index=False)
    done = predict("data.csv", "-o", "out.csv")
    assert done.exit_code == 0, done.stderr
    found = pandas.read_csv("out.csv")
    assert list(found) == ["kind", "size", "old"]
    with torch.no_grad():
        outputs = loaded.model(torch.tensor(data[["age", "income"]].to_numpy(), dtype=torch.float32))
    assert list(found["kind"]) == [("cat", "dog", "owl")[k] for k in outputs["kind"].argmax(1)]
    assert np.allclose(found["size"], outputs["size"][:, 0])
    assert list(found["old"]) == (outputs["old"][:, 0] > 0).long().tolist()
    chances = pandas.read_csv(io.StringIO(predict("data.csv", "--proba").stdout))
    assert list(chances) == ["kind.cat", "kind.dog", "kind.owl", "size", "old"]
    assert np.allclose(chances.iloc[:, :3], outputs["kind"].softmax(1))
    assert np.allclose(chances["old"], outputs["old"][:, 0].sigmoid())
    assert predict("data.csv", "-o", "out.npz").exit_code == 0
    with np.load("out.npz", allow_pickle=False) as arrays:
        assert list(arrays["kind"]) == list(found["kind"])
    assert (loaded.predict(data)["kind"] == loaded.predict(data[["age", "income"]].to_numpy())["kind"]).all()
    assert (loaded.predict(data, batch=2)["kind"] == found["kind"].to_numpy()).all()


def test_wrong_tables_are_sentences_and_leave_nothing(mine: Any) -> None:
    trained(mine)
    for text, why in (
        ("age,incme\n1,2\n", "should have the column 'income'. Did you mean 'incme'"),
        ("1,2\n3,4\n", "should begin with a line of names"),
        ("age,income\n1\n", "Line 2 of data.csv has 1 cells, its first line 2"),
        ("age,income\n1,two\n", "Found 'two' in line 2, column 2"),
        ("age,income\n1,\n", "Found NaN or infinity"),
        ("age,age\n1,2\n", "names of their own"),
        ("age,income\n", "should have a row"),
        ("", "empty file"),
        ("age,income\n1,\xff\n", "cannot be read as a table"),
    ):
        Path("data.csv").write_bytes(text.encode("latin-1"))
        assert why in failed("data.csv", "-o", "out.csv")
    assert "should be a .csv or an .npz file" in failed("data.txt")
    Path("data.csv").write_text("age,income\n1,2\n")
    assert "should be another file than the data" in failed("data.csv", "-o", "data.csv")
    assert "--out should be a .csv or an .npz" in failed("data.csv", "-o", "out.json")
    assert "cannot be written" in failed("data.csv", "-o", "no/out.csv")
    assert "cannot be read as a table" in failed("nowhere.csv")


def test_arrays_of_any_structure_go_in_by_name(mine: Any) -> None:
    tokens = np.arange(12) % 5
    x = {"token": tokens, "rest": {"far": np.ones((12, 3), dtype=np.float32)}}
    federation = Federation.from_arrays(x, {"y": tokens % 3}, clients=3)
    train(Problem(mine.Parts(), [Objective("y", "cross-entropy")]), federation, FedAvg(), rounds=1, out="run")
    save(token=[1.0, 4.0], far=np.ones((2, 3)), unused=np.zeros(9))
    done = predict("data.npz")
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    Path("data.csv").write_text("1,2,3,4\n")
    assert "no columns of a table: give an .npz file" in failed("data.csv")
    save(token=[1.5], far=np.ones((1, 3)))
    assert "'token' should be of type int64" in failed("data.npz")
    save(token=[1], far=np.ones((1, 4)))
    assert "shape (3,), as the run's data had. Found (4,)" in failed("data.npz")
    save(token=[9], far=np.ones((1, 3)))
    assert "cannot be applied to the data: IndexError" in failed("data.npz")


def test_pickles_are_not_read(mine: Any) -> None:
    trained(mine)
    np.savez("data.npz", x=np.array([{"age": 1}], dtype=object))
    assert "cannot be read as arrays of numbers" in failed("data.npz", "-o", "out.npz")
    Path("data.npz").write_bytes(b"PK nothing")
    assert "cannot be read as arrays of numbers" in failed("data.npz")


def test_what_prepares_the_data_is_applied(mine: Any) -> None:
    loaded = trained(mine, prepare=mine.halved)
    Path("data.csv").write_text("age,income\n1,2\n")
    done = predict("data.csv")
    assert done.exit_code == 0, done.stderr
    with torch.no_grad():
        size = loaded.model(torch.tensor([[0.5, 1.0]]))["size"]
    assert float(done.stdout.splitlines()[1].split(",")[1]) == pytest.approx(float(size))


def test_a_prepare_that_cannot_be_imported_is_a_sentence(mine: Any) -> None:
    trained(mine, prepare=lambda x: x / 2)
    Path("data.csv").write_text("age,income\n1,2\n")
    assert "which cannot be imported" in failed("data.csv")


def test_columns_by_number_for_a_run_without_names() -> None:
    made, resolved = plan("e", {**DIGITS, "rounds": 1, "algorithm": {"name": "fedavg"}})
    execute(made, RunDirectory.create(Path("run"), "e", {"name": "e", **resolved}))
    x = polyfed.load("run").federation.x[:2]
    np.savetxt("data.csv", x.reshape(2, -1).numpy(), delimiter=",")
    np.savez("data.npz", x=x.numpy())
    assert predict("data.csv").stdout == predict("data.npz").stdout
    Path("data.csv").write_text("1,2\n")
    assert "should have 112 columns, the numbers of an example of shape (1, 8, 14)" in failed("data.csv")


def test_a_clients_own_model_predicts() -> None:
    made, resolved = plan("e", {**TASKS, "rounds": 3, "algorithm": {"name": "mocha"}})
    execute(made, RunDirectory.create(Path("run"), "e", {"name": "e", **resolved}))
    loaded = polyfed.load("run")
    np.savez("data.npz", x=loaded.federation.x.numpy())
    for client in (0, 1):
        done = predict("data.npz", "--client", str(client))
        said = np.array(done.stdout.splitlines()[1:], dtype=int)
        assert (said == loaded.predict(loaded.federation.x, client=client)["label"]).all()
    assert predict("data.npz", "--client", "0").stdout != predict("data.npz", "--client", "1").stdout
    assert "client should be a number below 6" in failed("data.npz", "--client", "x")
    assert "Probabilities come with algorithm.loss = 'logistic'. Found 'hinge'" in failed("data.npz", "--proba")


def test_a_run_that_needs_its_model_says_so() -> None:
    federation = Federation.from_arrays(torch.randn(12, 2), {"y": torch.ones(12)}, clients=2)
    train(Problem(nn.Linear(2, 1), [Objective("y", "binary")]), federation, FedAvg(), rounds=1, out="run")
    Path("data.csv").write_text("1,2\n")
    assert "--allow-code torch" in failed("data.csv")
    done = predict("data.csv", "--allow-code", "torch")
    assert "takes arguments (in_features, out_features, bias, device, dtype)" in done.stderr
