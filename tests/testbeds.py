"""The quadratic testbed of multi-model federated learning in the short form of its figures, and in other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polyfed.reproduce.papers.many_models import testbed

CONSTANT, DECAYING = testbed.RATES["constant"], testbed.RATES["decaying"]


@contextmanager
def sized(n: int, p: int, mu: float) -> Iterator[None]:
    """Inside, the short form has n clients, chains of p links each, and the modulus mu in place of the paper's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"N": n, "P": p, "MU": mu}.items():
            patch.setattr(testbed, name, value)
        testbed.problem.cache_clear()
        try:
            yield
        finally:
            testbed.problem.cache_clear()


def rounds_to(schedule: str, M: int, E: int, seed: int, gap: float) -> int:
    """T_P(M, eps): the first round by which every model has been at the log gap, with the constant step."""
    found = testbed.excess(schedule, M, 20_000, CONSTANT, E, seed, until=10**gap)
    return int((found <= 10**gap).argmax(0).max()) + 1
