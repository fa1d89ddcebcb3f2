"""The graph network of QM9 in the multi-task literature (Lin and Zhang 2023, after Gilmer et al. 2017), over bonds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core.errors import BadInput
from polyfed.core.structure import names_of
from polyfed.data import Dataset
from polyfed.data.molecules import BONDS
from polyfed.models import models
from polyfed.models.layers import headed

WIDTH, HIDDEN, STEPS = 64, 128, 3  # of an atom's state, of the network that reads a bond, of messages and of reading


class Gated(nn.Module):
    """What a recurrent cell computes of an input and a state, gates * width numbers; as products, which vmap can take
    where torch's own cells cannot be."""

    def __init__(self, inside: int, width: int, gates: int) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(inside, gates * width), nn.Linear(width, gates * width)


class GRU(Gated):
    """A gated recurrent unit: torch.nn.GRUCell."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__(inside, width, 3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        reset, update, new = self.input(x).chunk(3, -1)
        own_reset, own_update, own_new = self.state(state).chunk(3, -1)
        update = torch.sigmoid(update + own_update)
        return (1 - update) * torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new) + update * state


class LSTM(Gated):
    """A long short-term memory: torch.nn.LSTMCell."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__(inside, width, 4)

    def forward(self, x: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        into, forget, new, out = (self.input(x) + self.state(state)).chunk(4, -1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(into) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(memory), memory


class Messages(nn.Module):
    """A step along the bonds: each atom hears the mean of its neighbours' states, each times its bond's matrix.

    A network makes the matrix from the bond's features. There are eight kinds of bond, so that it makes eight of them,
    whatever the size of the batch.
    """

    kinds: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kinds", torch.from_numpy(BONDS), persistent=False)
        self.bond = nn.Sequential(nn.Linear(BONDS.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH * WIDTH))
        self.own = nn.Linear(WIDTH, WIDTH)
        self.cell = GRU(WIDTH, WIDTH)

    def forward(self, states: Tensor, bonds: Tensor) -> Tensor:
        number = torch.arange(1, 1 + len(self.kinds), device=bonds.device)
        along = (bonds.unsqueeze(1) == number.view(-1, 1, 1)).to(states.dtype)  # (n, kinds, atoms, atoms)
        along = along / along.sum((1, 3)).clamp(min=1)[:, None, :, None]
        matrices = self.bond(self.kinds.to(states.dtype)).view(-1, WIDTH)
        for _ in range(STEPS):
            heard = (along @ states.unsqueeze(1)).transpose(1, 2).flatten(2)  # (n, atoms, kinds * width)
            states = self.cell(F.relu(heard @ matrices + self.own(states)), states)
        return states


class Readout(nn.Module):
    """A molecule from its atoms in any order: Set2Set (Vinyals et al. 2016), which looks at them several times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = LSTM(2 * WIDTH, WIDTH)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        query = memory = torch.zeros_like(states[:, 0])
        found = torch.cat([query, query], -1)
        for _ in range(STEPS):
            query, memory = self.cell(found, query, memory)
            score = (states @ query.unsqueeze(-1)).squeeze(-1)
            # the least number, not -inf: rows of a padded batch have no atom at all
            share = score.masked_fill(~mask, torch.finfo(score.dtype).min).softmax(-1)
            found = torch.cat([query, (share.unsqueeze(1) @ states).squeeze(1)], -1)
        return found


class GraphNet(nn.Module):
    """Molecules as dicts of atoms, bonds and a mask (`polyfed.data.molecules.graphs`), any number of atoms."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, WIDTH)
        self.messages, self.read = Messages(), Readout()
        self.leave = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        states = F.relu(self.enter(x["atoms"].to(self.enter.weight.dtype)))
        states = self.messages(states, x["bonds"])
        return F.relu(self.leave(self.read(states, x["mask"])))


@models("qm9-gnn")
def qm9_gnn(dataset: Dataset) -> nn.Module:
    """A graph network over bonds, one linear head per objective: 617,675 parameters on QM9 with data.graphs = true.

    Three steps of messages with a matrix per kind of bond, a GRU in each atom, Set2Set over the atoms. FedCMOO's
    network is of the same layers and size, but it sees all pairs of atoms with their distances.
    """
    if not isinstance(dataset.x, Mapping) or set(dataset.x) != {"atoms", "bonds", "mask"}:
        raise BadInput(
            f"The model 'qm9-gnn' takes molecules as graphs, which are atoms, bonds and mask. Found "
            f"{names_of(dataset.x)}; set data.graphs = true with the data set 'qm9', or choose another model.name."
        )
    return headed(GraphNet(dataset.x["atoms"].shape[-1]), dataset, lambda k: nn.Linear(WIDTH, k))
