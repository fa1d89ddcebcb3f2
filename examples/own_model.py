"""Your own torch model with two heads, trained for two objectives by FedCMOO, then used for a prediction.

For your own: change `Net`, the objectives and the arrays; a head, its objective and its targets share one name.
"""

import torch
from torch import nn

from polyfed import FedCMOO, Federation, Objective, Problem, train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"time": nn.Linear(32, 1), "tip": nn.Linear(32, 1)})

    def forward(self, x):
        shared = self.body(x)
        return {name: head(shared) for name, head in self.heads.items()}


# Deliveries: distance, dishes and rain, each from -1 to 1; how long each took, and whether there was a tip.
torch.manual_seed(0)
orders = 2 * torch.rand(3000, 3) - 1
minutes = 35 + 12 * orders[:, 0] + 6 * orders[:, 1] + 8 * orders[:, 0] * orders[:, 2] + 3 * torch.randn(3000)
tip = (35 - minutes + 15 * orders[:, 1] + 5 * torch.randn(3000) > 0).long()
time = (minutes - 35) / 10  # so that the two losses are of similar size

problem = Problem(Net(), [Objective("time", "squared"), Objective("tip", "binary")])
test = (orders[2500:], {"time": time[2500:], "tip": tip[2500:]})
data = Federation.from_arrays(orders[:2500], {"time": time[:2500], "tip": tip[:2500]}, clients=40, test=test)
result = train(problem, data, FedCMOO(lr=0.3, local_steps=10), rounds=50, cohort=10, seed=0)

found = result.summary["objectives"]
print(f"time: off by {10 * found['time']['absolute_error']:.1f} minutes, tip: {found['tip']['accuracy']:.0%} right")
far, near = result.model(torch.tensor([[0.9, 0.0, 0.5], [-0.9, 0.0, 0.5]]))["time"].flatten().tolist()
print(f"in some rain a far order takes {35 + 10 * far:.0f} minutes, a near one {35 + 10 * near:.0f}")
