"""Synthetic(a, b) (Shamir et al. 2014; Li et al. 2020): users whose models and inputs both differ, by a and by b."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets

Variance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SHAPES = {"A": (60, 5), "B": (30, 10)}  # features and classes


@datasets("synthetic")
def synthetic(
    *,
    seed: int,
    a: Variance = 1.0,
    b: Variance = 1.0,
    variant: Literal["A", "B"] = "A",
    users: Annotated[int, Field(ge=1)] = 100,
) -> Dataset:
    """Synthetic(a, b): softmax labels; A has 60 features and 5 classes, B 30 and 10; objective 'class'; key 'user'.

    For user k: n_k ~ lognormal(4, 2) + 50 examples; u_k ~ N(0, a), the entries of W_k and b_k ~ N(u_k, 1);
    B_k ~ N(0, b), the entries of v_k ~ N(B_k, 1); x ~ N(v_k, diag(j^-1.2)) and y = argmax(W_k x + b_k).

    Args:
        a: the variance of u_k, how far users' models are apart; 0 for models with a common mean.
        b: the variance of B_k, how far users' inputs are apart; 0 for inputs with a common mean.
        variant: which of the two sizes.
        users: how many there are.
    """
    features, classes = SHAPES[variant]
    check_room(900 * users * features, "data.users")  # 453 rows each on average
    made = [_user(generator(seed, "synthetic", k), a, b, features, classes) for k in range(users)]
    y = np.concatenate([y for _, y in made])
    return Dataset(
        x=np.concatenate([x for x, _ in made]),
        targets={"class": y},
        objectives=(Objective("class", "cross-entropy"),),
        labels=y,
        keys={"user": np.repeat(np.arange(users), [len(y) for _, y in made])},
    )


def _user(
    rng: np.random.Generator, a: float, b: float, features: int, classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    n = int(rng.lognormal(4, 2)) + 50
    u, B = rng.normal(0, np.sqrt(a)), rng.normal(0, np.sqrt(b))
    W, bias = rng.normal(u, 1, (features, classes)), rng.normal(u, 1, classes)
    spread = np.arange(1, features + 1) ** -0.6
    x = rng.normal(B, 1, features) + spread * rng.normal(size=(n, features))
    return x.astype(np.float32), (x @ W + bias).argmax(1)
