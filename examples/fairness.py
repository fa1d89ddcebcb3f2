"""Accuracy beside fairness: the gap between two groups as an objective of its own, and the trade-off as a picture.

For your own: name the column of groups; a larger preference for 'parity' ends with a smaller gap and a lower AUC.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from polyfed import FedCMOOPref, Federation, Objective, Problem, losses, metrics, train

# Twenty firms hire by skill and by school, and the school tells of the group.
rng = np.random.default_rng(0)
sex, skill = rng.integers(0, 2, 4000), rng.normal(size=4000)
school = rng.normal(size=4000) + sex
hired = (skill + 0.7 * school + 0.5 * rng.normal(size=4000) > 0.5).astype(int)
x = np.stack([skill, school, rng.normal(size=4000)], 1).astype(np.float32)
federation = Federation.from_arrays(
    x, {"hired": hired}, owner=rng.integers(0, 20, 4000), columns={"sex": sex}, test=0.25
)
own = Objective("hired", "binary", {"auc": metrics.auc(), "gap": metrics.demographic_parity_gap("sex")})

found = []
for r in (9, 99, 300):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    method = FedCMOOPref(preference={"hired": 1, "parity": r}, lr=0.5, local_steps=10)
    problem = Problem(model, [own, losses.demographic_parity("parity", "sex")])
    last = train(problem, federation, method, rounds=40, evaluate={"every": 40}).history[-1]["metrics"]["hired"]
    found.append((last["gap"], last["auc"]))
    print(f"preference 1 : {r}   gap {last['gap']:.3f}   AUC {last['auc']:.3f}")

plt.plot(*zip(*found, strict=True), marker="o")
plt.xlabel("difference of the groups' shares that are hired")
plt.ylabel("AUC")
plt.savefig("tradeoff.png", bbox_inches="tight")
