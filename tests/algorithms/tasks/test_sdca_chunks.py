"""Coordinate steps taken some at a time are those taken at once, to the last bit, and end where they are told to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from polyfed.core import interrupt
from polyfed.work.linear import examples
from polyfed.work.linear.examples import as_examples
from polyfed.work.linear.losses import LOSSES, find


def solved(X: Any, y: Any, loss: str, steps: int = 433) -> tuple[bytes, bytes]:
    rows, beta, u = as_examples(X, y, find(loss)), np.zeros(len(y)), np.zeros(X.shape[1])
    rows.sdca(beta, u, s=0.3, c=1.0, loss=find(loss), g=0.5, steps=steps, key=(1 << 63) + 12345, live=True)
    return beta.tobytes(), u.tobytes()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dense", [True, False])
def test_chunks_are_the_same_bits(loss: str, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 17)) * (rng.random((50, 17)) < 0.5), np.sign(rng.normal(size=50))
    rows = X if dense else sparse.csr_matrix(X)
    whole = solved(rows, y, loss)
    monkeypatch.setattr(examples, "AT_ONCE", 6 * (examples.LOGISTIC + 8))  # six or seven steps
    assert solved(rows, y, loss) == whole


@pytest.fixture
def given_up() -> Iterator[None]:
    interrupt.give_up()
    yield
    interrupt.begin()


@pytest.mark.usefixtures("given_up")
def test_work_that_is_given_up_ends() -> None:
    with pytest.raises(KeyboardInterrupt):
        solved(np.ones((4, 2)), np.array([1.0, -1.0, 1.0, -1.0]), "hinge", steps=10**18)
