"""A run is not resumed over other features: nested and streamed ones are looked at, what is random is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyfed import BadInput, FedAvg, Source, train
from polyfed.core.federation import Federation
from polyfed.core.part import Part
from polyfed.experiment.fingerprint import check_fingerprint, fingerprint
from small import small_federation, small_problem

X = torch.randn(120, 5, generator=torch.Generator().manual_seed(3))
RUN = Path("r")


class Read(Source):
    def __init__(self, noise: float = 0.0, *, fails: bool = False) -> None:
        self.noise, self.fails = noise, fails

    def __len__(self) -> int:
        return len(X)

    def read(self, rows: NDArray[np.int64]) -> Any:
        if self.fails:
            raise OSError("no disk")
        return X[torch.from_numpy(rows)] + self.noise * torch.randn(1)


def of(x: Any) -> Any:
    federation = Federation.from_arrays(x, torch.zeros(120), clients=3)
    return fingerprint({"": Part(small_problem(), federation, FedAvg())})


@pytest.mark.parametrize(
    ("x", "other"),
    [
        (X, 2 * X),
        (X, X.roll(1, 1)),
        ({"a": X, "b": (X, X[:, 0])}, {"a": X, "b": (X, -X[:, 0])}),
        (X, {"a": X, "b": X}),
        (Read(), X.flip(0)),
        (X.to(torch.uint8), X.to(torch.uint8) + 1),
    ],
)
def test_other_features_are_told_apart(x: Any, other: Any) -> None:
    check_fingerprint(RUN, of(x), of(x))
    with pytest.raises(BadInput, match="r is a run over other features"):
        check_fingerprint(RUN, of(x), of(other))


def test_what_another_machine_rounds_otherwise_is_the_same() -> None:
    check_fingerprint(RUN, of(X), of(X * (1 + 1e-6)))


@pytest.mark.parametrize("source", [Read(noise=1.0), Read(fails=True)])
def test_what_is_random_or_cannot_be_read_is_not_looked_at(source: Source) -> None:
    assert of(source)["features"] == []
    check_fingerprint(RUN, of(X), of(source))


def test_a_run_does_not_go_on_over_other_features_and_runs_of_earlier_versions_go_on() -> None:
    before, now = of(X), of(2 * X)
    check_fingerprint(RUN, {key: value for key, value in before.items() if key != "features"}, now)
    federation = small_federation()
    twice = Federation(2 * federation.x, federation.targets, federation.train, server=federation.server)
    train(small_problem(), federation, FedAvg(), rounds=1, out="r")
    with pytest.raises(BadInput, match="r is a run over other features"):
        train(small_problem(), twice, FedAvg(), rounds=2, out="r", resume=True)
    assert train(small_problem(), federation, FedAvg(), rounds=2, out="r", resume=True).summary["rounds"] == 2
