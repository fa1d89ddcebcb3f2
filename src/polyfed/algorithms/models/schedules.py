"""Which clients train which model: the schedules of multi-model federated learning.

Bhuyan, Moharir, Joshi, "Multi-Model Federated Learning with Provable Guarantees", 2022. A schedule is a function of
the round t = 1, 2, ..., the number of models M and `partition`, which cuts the clients into M disjoint groups at
random, the same ones whenever it is asked for the same number; it returns each model's group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyfed.core.registry import Registry

Groups = list[list[int]]
Partition = Callable[[int], Groups]
Schedule = Callable[[int, int, Partition], Groups]

schedules: Registry[Schedule] = Registry("schedule", "polyfed.algorithms.models")


@schedules("mfa-rand")
def mfa_rand(t: int, M: int, partition: Partition) -> Groups:
    """MFA-Rand: every round a new partition of the clients, group j trains model j.

    Algorithm 2. Rounds are independent, and each model's group is a uniform sample.
    """
    return partition(t)


@schedules("mfa-rr")
def mfa_rr(t: int, M: int, partition: Partition) -> Groups:
    """MFA-RR: a partition lasts a frame of M rounds, in which the groups take turns: each trains each model once.

    Algorithm 3: in round t group j trains model ((j + t - 2) mod M) + 1, both counted from 1; a frame begins when
    (t - 1) mod M = 0. Here j and the model count from 0, and the rule is solved for j.
    """
    S = partition(frame_start(t, M))
    return [S[(m - t + 1) % M] for m in range(M)]


def frame_start(t: int, M: int) -> int:
    """The first round of the frame that round t is in."""
    return t - (t - 1) % M


def split(clients: Sequence[int], M: int, rng: np.random.Generator) -> Groups:
    """M disjoint groups at random, each in order of the clients' numbers; sizes differ by at most one.

    Which of them are the larger ones is drawn too, so that no model has more clients on average.
    """
    groups = np.array_split(rng.permutation(np.asarray(clients)), M)
    return [sorted(int(c) for c in groups[j]) for j in rng.permutation(M)]
