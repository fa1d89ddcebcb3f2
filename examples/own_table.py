"""A DataFrame whose rows have owners: one client per hospital, a rare label, and one that many rows lack.

For your own: name the columns; a missing value in a target is a missing label, and costs nothing else.
"""

import numpy as np
import pandas as pd
import torch
from torch import nn

import polyfed
from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.models import Headed

# One row per patient: the hospital, three measurements, whether they fell ill (rare), how long they stayed (if known).
rng = np.random.default_rng(0)
patients = pd.DataFrame(rng.normal(size=(6000, 3)), columns=["age", "weight", "pressure"])
patients["hospital"] = rng.choice(["north", "south", "east", "west"], size=6000, p=[0.4, 0.3, 0.2, 0.1])
patients["ill"] = patients.age + patients.pressure + rng.normal(size=6000) > 3.2
patients["stay"] = (patients.weight + patients.age).where(rng.random(6000) < 0.6)  # in standard units

federation = Federation.from_frame(
    patients, owner="hospital", x=["age", "weight", "pressure"], targets=["ill", "stay"], test=0.25
)
torch.manual_seed(0)
model = Headed(nn.Sequential(nn.Linear(3, 16), nn.ReLU()), {"ill": nn.Linear(16, 1), "stay": nn.Linear(16, 1)})
problem = Problem(model, [Objective("ill", "binary", {"auc": polyfed.metrics.auc()}), Objective("stay", "squared")])
result = train(problem, federation, FedAvg(lr=0.1), rounds=40, evaluate={"every": 40, "per_client": True})
print(f"{patients.ill.mean():.1%} are ill. {result.summary['rules'][0]}")
for name, auc, loss in zip(federation.names, result.clients["ill"]["auc"], result.clients["stay"]["loss"], strict=True):
    print(f"{name:<6} AUC of ill {auc:.3f}, squared error of stay {loss:.3f}")
torch.save(result.model.state_dict(), "patients.pt")
