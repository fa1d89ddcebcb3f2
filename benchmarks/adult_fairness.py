"""Adult, by sex: what a smaller gap between women and men costs in AUC. 20 clients, a linear model, FedCMOO-Pref.

POLYFED_DATA=... python benchmarks/adult_fairness.py [tradeoff.png]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from polyfed import FedCMOOPref, Objective, Problem, losses, metrics, train
from polyfed.core.federation import Federation, Rows
from polyfed.data import datasets
from polyfed.data.build import federate

PREFERENCES = (1, 10, 30, 100, 300, 1000, 3000)  # of 'parity', beside 1 of 'income'


def adult() -> Federation:
    """Twenty clients of equal size, and the publisher's test rows at the server."""
    dataset = datasets["adult"]()
    order = np.random.default_rng(0).permutation(dataset.rows)
    return federate(dataset, Rows.dealt(order, 20))


def point(federation: Federation, r: float, rounds: int = 60) -> tuple[float, float]:
    """The gap and the AUC on the test rows for one preference."""
    torch.manual_seed(0)
    shown = {"auc": metrics.auc(), "gap": metrics.demographic_parity_gap("sex")}
    objectives = [Objective("income", "binary", shown), losses.demographic_parity("parity", "sex")]
    method = FedCMOOPref(preference={"income": 1, "parity": r}, lr=0.5, local_steps=10, batch_size=64)
    with tempfile.TemporaryDirectory() as folder:
        problem = Problem(nn.Linear(federation.x.shape[1], 1), objectives)
        run = train(problem, federation, method, rounds=rounds, out=Path(folder) / "run", evaluate={"every": rounds})
    last = run.history[-1]["metrics"]["income"]
    return last["gap"], last["auc"]


def main() -> None:
    federation = adult()
    found = [point(federation, r) for r in PREFERENCES]
    print("| preference income : parity | gap | AUC |\n|---|---|---|")
    for r, (gap, auc) in zip(PREFERENCES, found, strict=True):
        print(f"| 1 : {r} | {gap:.3f} | {auc:.3f} |")
    if sys.argv[1:]:
        import matplotlib.pyplot as plt

        plt.figure(figsize=(5, 3.2))
        plt.plot(*zip(*found, strict=True), marker="o")
        for r, at in zip(PREFERENCES, found, strict=True):
            plt.annotate(f"1 : {r}", at, textcoords="offset points", xytext=(6, -10), fontsize=8)
        plt.xlabel("women's and men's shares above the threshold, difference")
        plt.ylabel("AUC of income")
        plt.savefig(sys.argv[1], bbox_inches="tight", dpi=150)


if __name__ == "__main__":
    main()
