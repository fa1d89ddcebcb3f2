"""Three unrelated models trained by one pool of phones at once: in every round each phone works for one of them.

For your own: give each model its problem, its method and its federation; all federations have the same clients.
"""

import torch
from torch import nn

from polyfed import FedAvg, Federation, MultiModel, Objective, Problem, train, train_many

# Thirty phones have data for all three: which word comes next, how long the battery lasts, whether a photo is kept.
torch.manual_seed(0)
typing, usage, photos = torch.randn(3000, 20), torch.randn(1500, 6), torch.randn(2400, 30)
word = (typing @ torch.randn(20, 5) + torch.randn(3000, 5)).argmax(1)
hours = usage @ torch.randn(6) + 0.3 * torch.randn(1500)
kept = photos @ torch.randn(30) + torch.randn(2400) > 0

battery_net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
problems = {
    "keyboard": Problem(nn.Linear(20, 5), [Objective("word", "cross-entropy")]),
    "battery": Problem(battery_net, [Objective("hours", "squared")]),
    "gallery": Problem(nn.Linear(30, 1), [Objective("kept", "binary")]),
}
data = {
    "keyboard": Federation.from_arrays(typing, {"word": word}, clients=30, seed=0),
    "battery": Federation.from_arrays(usage, {"hours": hours}, clients=30, seed=0),
    "gallery": Federation.from_arrays(photos, {"kept": kept}, clients=30, seed=0),
}
method = FedAvg(lr=0.1, local_steps=5)
models = MultiModel({name: (problem, method) for name, problem in problems.items()}, schedule="mfa-rr")
together = train_many(models, data, rounds=24, seed=0, evaluate={"every": 24})

print("loss after 24 rounds   together   one after the other, 8 each")
for name, problem in problems.items():
    alone = train(problem, data[name], method, rounds=8, seed=0, evaluate={"every": 8})
    (objective,) = problem.names
    losses = together.summary["objectives"][f"{name}/{objective}"], alone.summary["objectives"][objective]
    print(f"{name:20} {losses[0]['loss']:10.3f} {losses[1]['loss']:10.3f}")
