"""A made-up paper with two small items, one of them computed by a function; no data from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

import polyfed.reproduce.item

PAPER = """
title = "A toy"
cite = "Nobody, 2026"
order = 1
about = "Quadratics with large and small steps."
"""
RUNS = """
title = "Large steps and small ones"
where = "Table 1"
shows = "Large steps end lower."
minutes = { quick = 0.1, full = 0.2, gpu = 0.1 }
differs = ["Ours ends at {loss @ plain / large}."]

[base]
rounds = 6
cohort = "all"
data = { name = "quadratic", clients = 4, examples = 8 }
model = { name = "point", dtype = "float64" }
algorithm = { name = "fedavg", lr = 0.1, local_steps = 1, batch_size = 0 }

[quick]
seeds = 2
set = { rounds = 3 }

[[grids]]
name = "plain"
seeds = 3
rows = [
  { label = "large", set.algorithm.lr = 0.5 },
  { label = "middle", set.algorithm.lr = 0.1 },
  { label = "small", set.algorithm.lr = 0.01 },
]

[[grids]]
name = "prox"
seeds = 3
set = { algorithm = { name = "fedprox", mu = 0.1 } }
rows = [
  { label = "large", set.algorithm.lr = 0.5 },
  { label = "middle", set.algorithm.lr = 0.1 },
  { label = "small", set.algorithm.lr = 0.01 },
]

[[measures]]
name = "loss"
title = "mean loss"
of = "mean.loss"
better = "lower"
digits = 3

[[published]]
row = "large"
grid = "plain"
values = { loss = [0.5, 0.1] }

[[claims]]
text = "Large steps end lower."
kind = "order"
measures = ["loss"]
rows = ["large", "middle", "small"]

[[draw]]
kind = "curves"
of = ["mean.loss"]
"""
DRIVEN = """
title = "Powers of two"
where = "Figure 1"
shows = "Powers rise."
minutes = { quick = 0.1, full = 0.1, gpu = 0.1 }

[base]
base = 2

[[grids]]
name = "powers"
seeds = 3
driver = "power"
rows = [
  { label = "n = 1", series = "two", x = 1, set.n = 1 },
  { label = "n = 2", series = "two", x = 2, set.n = 2 },
  { label = "n = 3", series = "two", x = 3, set.n = 3 },
]

[[measures]]
name = "value"
title = "power"
better = "higher"

[[claims]]
text = "Powers rise with n."
kind = "order"
measures = ["value"]
rows = ["n = 1", "n = 2", "n = 3"]

[[draw]]
kind = "lines"
measures = ["value"]
x_title = "n"
"""
DRIVER = """
def power(settings, seed):
    return {"values": {"value": settings["base"] ** settings["n"] + seed / 10}, "rounds": settings["n"]}
"""


def use_made_papers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The made-up paper's folder, in place of the package's papers."""
    toy = folder / "toy_paper"
    toy.mkdir(parents=True)
    for name, text in (("paper.toml", PAPER), ("table1.toml", RUNS), ("fig1.toml", DRIVEN), ("fig1.py", DRIVER)):
        (toy / name).write_text(text)
    monkeypatch.setattr(polyfed.reproduce.item, "home", lambda: folder)
    return toy
