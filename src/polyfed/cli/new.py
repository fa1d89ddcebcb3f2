"""`polyfed new`: an experiment to start from, with a file for one's own data and model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import errors_as_sentences
from polyfed.core.errors import BadInput, cut, shown, visible

EXPERIMENT = """\
# Two questions about customers, one network, the rows of 30 shops that stay where they are.
# Run it: polyfed run {file}
# Any key can be changed there, too: --set algorithm.lr=0.05
name = "{name}"
rounds = 20
seed = 0                    # the same seed, the same model
cohort = 10                 # clients a round: a number, a fraction below 1, or "all"

[data]
name = "mine:data"          # the function 'data' of mine.py, or a data set by name: polyfed list datasets
rows = 3000                 # an argument of that function
partition = "natural"       # who has which rows: here, each owner its own. polyfed list partitions
key = "shop"                # what owns them
test = 0.2                  # of every client's rows, kept aside: losses and metrics are of these

[model]
name = "mine:model"         # the function 'model' of mine.py, or a model by name: polyfed list models
hidden = 32                 # an argument of that function

[algorithm]
name = "fedcmoo"            # polyfed list algorithms; with its settings: polyfed list algorithms fedcmoo
lr = 0.1                    # the clients' step size
local_steps = 10            # in a round
batch_size = 32             # 0 for all of a client's rows
weighting = "min-norm"      # how the objectives count: polyfed list weightings

[engine]
name = "local"              # where clients work: polyfed list engines

[evaluate]
every = 5                   # rounds between evaluations
clients = true              # every client's figures, too: their mean, the worst, ...

# What an experiment can have besides; take the first # of a line away.

# [objectives.amount]       # another loss than the data set's
# loss = "squared"

# [faults]
# drop = 0.1                # the chance that a client drops out

# [network]
# name = "lte"              # simulated seconds: how long a round would take

# [[attacks]]
# name = "misreport"        # some clients report other losses than they have
# clients = [3]
# factor = 10.0
"""

MINE = '''\
"""Your data and your model. experiment.toml, beside this file, names them: mine:data and mine:model."""

import numpy as np
from torch import Tensor, nn

from polyfed import Objective
from polyfed.data import Dataset


def data(seed: int, rows: int = 3000) -> Dataset:
    """The rows of all clients; seed is the experiment's, other arguments are keys of its [data].

    These rows are made up. Read your own in their place: np.load("rows.npz"), pandas.read_csv("rows.csv"), ...
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8)).astype("float32")  # a row per example
    shop = rng.integers(0, 30, rows)  # who owns it
    targets = {
        "returns": (x[:, 0] + x[:, 1] > 0.02 * shop).astype("int64"),  # yes or no
        "amount": x[:, 2] - x[:, 3],
    }
    objectives = (Objective("returns", "binary"), Objective("amount", "squared"))
    return Dataset(x, targets, objectives, keys={"shop": shop})


class Net(nn.Module):
    """Layers that the objectives share, and a head for each."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.ReLU())
        self.heads = nn.ModuleDict({"returns": nn.Linear(hidden, 1), "amount": nn.Linear(hidden, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shared = self.body(x)
        return {name: head(shared) for name, head in self.heads.items()}


def model(dataset: Dataset, hidden: int = 32) -> nn.Module:
    """The network for a data set; other arguments are keys of the experiment's [model]."""
    return Net(dataset.x.shape[1], hidden)
'''


def new(
    name: Annotated[str, typer.Argument(help="A new directory; the experiment is called by it.")],
) -> None:
    """Write an experiment to start from: experiment.toml, and mine.py for your data and model."""
    from polyfed.experiment.reading import experiment_name

    with errors_as_sentences():
        folder = Path(name)
        if "\0" in name or folder.name in ("", ".."):
            raise BadInput(f"NAME should be a new directory's, as in my-experiment. Found {shown(name)}.")
        title = experiment_name(folder.name)
        if folder.exists() or folder.is_symlink():
            raise BadInput(f"{shown(name)} exists already; choose a name that is new.")
        file = shlex.quote(visible((folder / "experiment.toml").as_posix()))
        try:
            folder.mkdir(parents=True)
            for path, text in {"experiment.toml": EXPERIMENT.format(name=title, file=file), "mine.py": MINE}.items():
                (folder / path).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise BadInput(f"{shown(name)} cannot be made: {cut(str(error))}; choose another place.") from error
        print(f"{visible(name)} is ready; its two files say what to change. Train it: polyfed run {file}")
