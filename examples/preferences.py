"""Points of your choice on a trade-off: FedCMOO-Pref ends where r_1 F_1 = r_2 F_2, for the preference r that you give.

For your own: change the model and the data; the objective with the larger r ends with the smaller loss.
"""

import numpy as np
import torch
from torch import nn

from polyfed import FedCMOOPref, Federation, Objective, Problem, train

# A news page gives each article one score. Lurid headlines are clicked, but what follows is not read to its end.
rng = np.random.default_rng(0)
articles = rng.normal(size=(4000, 5))  # the first feature: how lurid the headline is
clicked = articles @ [2.0, 1.0, 0.5, 0.0, 0.0] + rng.normal(size=4000) > 0
finished = articles @ [-1.5, 1.0, 0.5, 0.5, 0.0] + rng.normal(size=4000) > 0
federation = Federation.from_arrays(articles, {"click": clicked, "finish": finished}, clients=20, seed=0)
torch.manual_seed(0)
problem = Problem(nn.Linear(5, 1), [Objective("click", "binary"), Objective("finish", "binary")])

print("  preference r        loss F           r x F         weight of a")
print(" click  finish    click  finish    click  finish   lurid headline")
for r in [(2.0, 1.0), (1.5, 1.0), (1.0, 1.0), (1.0, 1.5), (1.0, 2.0)]:
    preference = {"click": r[0], "finish": r[1]}
    method = FedCMOOPref(lr=0.3, local_steps=2, batch_size=0, preference=preference)
    result = train(problem, federation, method, rounds=30, cohort=10, seed=0, evaluate={"every": 30})
    F = [row["loss"] for row in result.summary["objectives"].values()]
    lurid = result.model.weight[0, 0].item()
    print(f"{r[0]:6.1f}{r[1]:8.1f}{F[0]:9.2f}{F[1]:8.2f}{r[0] * F[0]:9.2f}{r[1] * F[1]:8.2f}{lurid:17.2f}")
