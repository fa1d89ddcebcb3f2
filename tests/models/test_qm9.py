"""The graph network: as the papers' in layers and size, blind to padding and to the order of atoms, on two engines."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from polyfed import Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.cli import app
from polyfed.client.autograd import Autograd
from polyfed.core.errors import BadInput
from polyfed.core.federation import Rows
from polyfed.core.problem import Batch
from polyfed.data import Dataset
from polyfed.data.build import federate
from polyfed.data.molecules import BONDS, graphs
from polyfed.data.qm9 import PROPERTIES
from polyfed.models import models
from polyfed.models.qm9 import GRU, LSTM, WIDTH, GraphNet, Messages
from polyfed.reproduce.grids import cells_of
from polyfed.reproduce.item import chosen

KNOWN = """C N O C#C C#N C=O CC CO CC#C CC#N CC=O NC=O CCC CCO C1CC1 C1CO1 CC(C)=O CC(N)=O NC(N)=O CC(C)C CC(C)O
CCC#C OCC#C CCC#N NCC#N OCC#N CCC=O C1CCC1 C1COC1 CC1CC1 CC1CO1 OC1CC1 CCCC CCCO CCOC OCCO CC#CC#N C1=CC=CN1 C1=COC=C1
C1=CNC=N1 CC(C)(C)C CC1(C)CC1 FC(F)(F)F C1=CC=CC=C1 C1=CC=NC=C1 [NH3+]CC([O-])=O OC1=CC=CC=C1 CC1=CC=CC=N1"""
SMILES = KNOWN.split()


def molecules(objectives: int = 2) -> Dataset:
    """Real molecules with targets that their graphs tell: hydrogens, then bonds in rings; 0 for others."""
    x = graphs(SMILES)
    known = [x["atoms"][..., -1].sum(1) - 6.0, (x["bonds"] > 4).sum((1, 2)) / 4 - 1.0]
    names = [f"o{s}" for s in range(objectives)]
    blank = np.zeros(len(SMILES))
    targets = {name: (known[s] if s < 2 else blank).astype(np.float32) for s, name in enumerate(names)}
    return Dataset(x, targets, tuple(Objective(name, "squared") for name in names))


def tensors(x: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in x.items()}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return models["qm9-gnn"](molecules()).double()


def test_the_papers_count_of_parameters() -> None:
    data = molecules(objectives=11)
    problem = Problem(models["qm9-gnn"](data), data.objectives)
    parts = {part: len(index) for part, index in problem.parts.items()}
    assert problem.dim == 617_675, "617k in FedCMOO's appendix D.3"
    assert parts == {"shared": 616_960, **dict.fromkeys(problem.names, WIDTH + 1)}
    assert not problem.buffers, "nothing beside the parameters travels"


def test_the_cells_are_torchs() -> None:
    torch.manual_seed(0)
    x, state, memory = torch.randn(3, 5, 6)[:, :, :6].unbind()
    gru, lstm = GRU(6, 6), LSTM(6, 6)
    for own, theirs in ((gru, nn.GRUCell(6, 6)), (lstm, nn.LSTMCell(6, 6))):
        for name, layer in (("ih", own.input), ("hh", own.state)):
            getattr(theirs, f"weight_{name}").data, getattr(theirs, f"bias_{name}").data = layer.weight, layer.bias
        got = own(x, state) if isinstance(own, GRU) else own(x, state, memory)
        torch.testing.assert_close(got, theirs(x, state) if isinstance(own, GRU) else theirs(x, (state, memory)))


def test_messages_are_those_of_every_bond_by_itself() -> None:
    torch.manual_seed(0)
    messages, bonds = Messages().double(), tensors(graphs(["CC(C)=O", "C1=CC=CN1"]))["bonds"]
    states = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    wanted = states
    for _ in range(3):
        heard = torch.zeros_like(states)
        for i, a in np.ndindex(2, 9):
            for b in (near := bonds[i, a].nonzero().flatten().tolist()):
                features = torch.from_numpy(BONDS[int(bonds[i, a, b]) - 1]).double()
                heard[i, a] += wanted[i, b] @ messages.bond(features).view(WIDTH, WIDTH) / len(near)
        wanted = messages.cell(torch.relu(heard + messages.own(wanted)), wanted)
    torch.testing.assert_close(messages(states, bonds), wanted)


def test_padding_does_not_change_outputs(model: nn.Module) -> None:
    x = molecules().x
    wide = {
        "atoms": np.pad(x["atoms"], ((0, 0), (0, 4), (0, 0)), constant_values=1),  # what stands there is not looked at
        "bonds": np.pad(x["bonds"], ((0, 0), (0, 4), (0, 4))),
        "mask": np.pad(x["mask"], ((0, 0), (0, 4))),
    }
    narrow = {name: values[:6, :2, :2] if name == "bonds" else values[:6, :2] for name, values in x.items()}
    wanted = model(tensors(x))
    assert min(float(y.detach().std()) for y in wanted.values()) > 1e-3
    torch.testing.assert_close(model(tensors(wide)), wanted)
    torch.testing.assert_close(model(tensors(narrow)), {name: y[:6] for name, y in wanted.items()})


def test_the_order_of_atoms_does_not_change_outputs(model: nn.Module) -> None:
    x, order = molecules().x, np.random.default_rng(0).permutation(9)
    mixed = {"atoms": x["atoms"][:, order], "bonds": x["bonds"][:, order][:, :, order], "mask": x["mask"][:, order]}
    torch.testing.assert_close(model(tensors(mixed)), model(tensors(x)))


def test_bonds_count(model: nn.Module) -> None:
    x = tensors(molecules().x)
    without = model({**x, "bonds": torch.zeros_like(x["bonds"])})
    single = model({**x, "bonds": x["bonds"].clamp(max=1)})
    outputs = model(x)["o0"]
    assert not torch.allclose(outputs, without["o0"], atol=1e-4)
    assert not torch.allclose(outputs, single["o0"], atol=1e-4)


def test_a_row_without_atoms_does_no_harm() -> None:
    """Engines fill batches up with blank rows, which a mask leaves out of the loss."""
    data = molecules()
    torch.manual_seed(0)
    problem = Problem(models["qm9-gnn"](data), data.objectives)
    x = {name: torch.cat([t[:3], torch.zeros_like(t[:2])]) for name, t in tensors(data.x).items()}
    start, targets = problem.initial(), {name: torch.zeros(5) for name in problem.names}
    found = []
    for rows, mask in ((5, torch.tensor([1.0, 1, 1, 0, 0])), (3, None)):
        batch = Batch({name: t[:rows] for name, t in x.items()}, {n: t[:rows] for n, t in targets.items()}, mask)
        g, _, _ = Autograd(problem).grad(start["x"], start["buffers"], batch, torch.ones(2), [True, True])
        found.append(g)
    torch.testing.assert_close(*found)


def test_it_makes_nothing_on_the_host(model: nn.Module) -> None:
    """Torch's `meta` device refuses tensors of the host, as a GPU does, and needs none."""
    outputs = model.to("meta")({name: t.to("meta") for name, t in tensors(molecules().x).items()})
    assert {(y.device.type, tuple(y.shape)) for y in outputs.values()} == {("meta", (len(SMILES), 1))}


def trained(data: Dataset, rounds: int, engine: Any, name: str = "fedcmoo", **settings: Any) -> nn.Module:
    """By clients of unequal sizes, of which each keeps some rows aside."""
    torch.manual_seed(0)
    problem = Problem(models["qm9-gnn"](data), data.objectives)
    federation = federate(data, Rows.of(np.split(np.arange(len(SMILES)), [4, 15, 30])), test=0.2)
    algorithm = algorithms[name](local_steps=3, batch_size=8, **settings)
    return train(problem, federation, algorithm, rounds=rounds, engine=engine).model


def test_it_is_the_same_on_both_engines() -> None:
    data, engines = molecules(), ("local", {"name": "batched", "device": "cpu"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # no fall-back to client after client
        made = [trained(data, 2, engine, lr=0.1, width=16) for engine in engines]
    torch.manual_seed(0)
    untrained = models["qm9-gnn"](data)
    start, one, other = (nn.utils.parameters_to_vector(model.parameters()) for model in (untrained, *made))
    assert (one - other).norm() < 1e-4 * (one - start).norm()


def test_it_learns() -> None:
    data = molecules()
    model = trained(data, 8, "local", "fedavg", lr=3e-3, optimizer="adam")
    with torch.no_grad():
        outputs = model(tensors(data.x))
    for name, target in data.targets.items():
        loss, variance = ((outputs[name][:, 0].numpy() - target) ** 2).mean(), target.var()
        assert loss < 0.7 * variance, name


def test_the_papers_experiment_runs(place: Path) -> None:
    (place / "qm9").mkdir(parents=True)
    atoms = graphs(SMILES)["atoms"].sum(1)[:, [10, 0, 1, 2, 3]]
    table = np.random.default_rng(0).normal(size=(len(SMILES), len(PROPERTIES))) + atoms @ np.arange(5)[:, None]
    np.savez(
        place / "qm9" / "qm9_table.npz",
        targets=table, target_names=list(PROPERTIES.values()), atoms_HCNOF=atoms, smiles="\n".join(SMILES).encode(),
    )  # fmt: skip
    small = ["data.examples=38", "data.clients=5", "algorithm.local_steps=2", "engine.name=local"]
    (item,) = chosen("fedcmoo/fig3")
    cells = cells_of(item, item.grid("graphs"), quick=False, changes=small).cells
    settings = next(cell.settings for cell in cells if cell.settings["algorithm"]["name"] == "fedcmoo")
    Path("qm9.toml").write_text(tomli_w.dumps(settings))
    done = CliRunner().invoke(app, ["run", "qm9.toml", "--rounds", "1", "--out", "made"])
    assert done.exit_code == 0, done.stderr
    assert set(json.loads(Path("made", "result.json").read_text())["objectives"]) == set(PROPERTIES)


def test_what_does_not_fit_is_a_sentence() -> None:
    data = molecules()
    table = Dataset(np.eye(3, dtype=np.float32), {"o0": np.zeros(3)}, data.objectives[:1])
    with pytest.raises(BadInput, match=r"'qm9-gnn' takes molecules as graphs.*data\.graphs = true"):
        models["qm9-gnn"](table)
    for name in ("linear", "mlp", "conv", "resnet18", "shakespeare-lstm"):
        with pytest.raises(BadInput, match=r"examples of one array.*atoms, bonds, mask"):
            models[name](data)
    assert isinstance(models["qm9-gnn"](data).body, GraphNet)
