"""A table whose rows have owners: one client per hospital, of any size, some without one of the objectives.

For your own: change the columns; a client is a pair (x, targets), and holds the objectives it has targets for.
"""

import numpy as np
import torch
from torch import nn

from polyfed import FedCMOO, Federation, Objective, Problem, train
from polyfed.models import Headed

# One row per patient: the hospital, four measurements, whether they came back, and how many days they stayed.
rng = np.random.default_rng(0)
hospital = rng.choice(10, size=4000, p=rng.dirichlet(np.full(10, 2.0)))
x = rng.normal(size=(4000, 4))
back = x @ [1.5, -1.0, 0.5, 0.0] + rng.normal(size=4000) > 0.5
days = 6 + x @ [2.0, 0.0, 1.0, 1.0] + rng.normal(size=4000)
without_stay = {1, 4, 7}  # these hospitals do not record how long a patient stays
held_out = rng.random(4000) < 0.2
stay = (days - 6) / 3  # standardised, so that the two losses are of similar size
test = (x[held_out], {"back": back[held_out], "stay": stay[held_out]})

clients = []
for owner in range(10):
    rows = (hospital == owner) & ~held_out
    targets = {"back": back[rows]} if owner in without_stay else {"back": back[rows], "stay": stay[rows]}
    clients.append((x[rows], targets))
    print(f"hospital {owner}: {rows.sum():3} patients with {' and '.join(targets)}")

torch.manual_seed(0)
model = Headed(nn.Sequential(nn.Linear(4, 16), nn.ReLU()), {"back": nn.Linear(16, 1), "stay": nn.Linear(16, 1)})
problem = Problem(model, [Objective("back", "binary"), Objective("stay", "squared")])
federation = Federation.from_clients(clients, test=test)
result = train(problem, federation, FedCMOO(lr=0.05, weighting_by="size"), rounds=60, cohort=5, seed=0)
found = result.summary["objectives"]
print(f"back: {found['back']['accuracy']:.0%} right (always no: {1 - back[held_out].mean():.0%})")
mean_alone = np.abs(days[held_out] - days.mean()).mean()
print(f"stay: off by {3 * found['stay']['absolute_error']:.2f} days (always the mean: {mean_alone:.2f})")
