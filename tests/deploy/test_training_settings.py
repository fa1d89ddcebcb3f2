"""AdamW, clipping, a server optimiser and fine-tuning over engine `flower`: the same model and figures as `local`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyfed import FedCMOO, Federation, train
from small import small_problem

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")


def uneven() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    targets = {side: (x @ rng.normal(size=(5, 3))).argmax(1) for side in ("left", "right")}
    return Federation.from_arrays(x, targets, clients=np.split(np.arange(60), [4, 10, 35]), test=0.3)


def test_the_same_as_local() -> None:
    method = FedCMOO(optimizer="adamw", lr=0.01, clip=0.5, width=16, server_optimizer="fedadam", local_steps=3)
    asked: dict[str, Any] = {"personalise": {"steps": 3}, "clients": True}
    local, grid = (
        train(small_problem(), uneven(), method, rounds=2, cohort=3, engine=engine, evaluate=asked)
        for engine in ("local", "flower")
    )
    assert local.summary["model_sha256"] == grid.summary["model_sha256"]
    assert local.summary["personalised"] == grid.summary["personalised"]
    assert (grid.summary["failures"], grid.summary["bytes_up"]) == (0, local.summary["bytes_up"])
