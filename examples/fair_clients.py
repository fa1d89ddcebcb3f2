"""Fairness between clients: FedAvg beside FedMGDA+ and q-FedAvg, by each client's accuracy on its own rows.

For your own: put your clients' arrays into `clients`; a higher eps or q is fairer, often at some cost on average.
"""

import numpy as np
import torch
from torch import nn

from polyfed import FedAvg, Federation, FedMGDAPlus, Objective, Problem, QFedAvg, train

# Fifteen shops predict who will buy; three of them are abroad, where people look for other things.
rng = np.random.default_rng(0)
at_home, abroad = np.array([2.0, 1.0, 1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 2.0, 1.0])
clients = []
for shop in range(15):
    x = rng.normal(size=(200, 5))
    bought = x @ (abroad if shop < 3 else at_home) + 0.5 * rng.normal(size=200) > 0
    clients.append((x, bought))

federation = Federation.from_clients(clients)
torch.manual_seed(0)
problem = Problem(nn.Linear(5, 1), [Objective("buys", "binary")])  # every method starts from these weights
methods = {
    "FedAvg": FedAvg(lr=0.1, local_steps=5),
    "FedMGDA+": FedMGDAPlus(lr=0.1, local_steps=5, server_lr=0.3, eps=0.2),
    "q-FedAvg": QFedAvg(lr=0.1, local_steps=5, q=3.0),
}
print("accuracy    mean  worst    std")
for name, method in methods.items():
    result = train(problem, federation, method, rounds=40, seed=0, evaluate={"every": 40, "clients": True})
    over_clients = result.history[-1]["clients"]["buys"]["accuracy"]
    print(f"{name:10} {over_clients['mean']:5.3f}  {over_clients['worst']:5.3f}  {over_clients['std']:5.3f}")
