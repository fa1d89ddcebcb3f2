"""What an algorithm asks of `weighting = "..."`: from a Gram matrix and a state to weights and the next state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from polyfed.core.registry import Registry
from polyfed.weights.gram import Array, Numbers, as_array, extend, restrict

WeightingState: TypeAlias = dict[str, Array]


class Weighting(ABC):
    """A rule from G (M x M) to weights (M), a dataclass of its settings.

    It is a value: what it remembers is `state`, what it draws comes from `key`. Every axis of an array of the state
    counts objectives, so that `weigh` can leave absent ones out.
    """

    def init(self, size: int) -> WeightingState:
        """The state before the first round, for `size` objectives; a number that does not fit is refused here."""
        return {}

    def during(self, objectives: int, rounds: int) -> Weighting:
        """Itself, for a run of so many rounds over so many objectives; one whose settings follow from them says so."""
        return self

    @abstractmethod
    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        """Weights of this round's objectives, and the state for the next round."""


# A name stands for a factory, so that options have a place: `weightings["pgd"](steps=100)` is a Weighting.
weightings: Registry[Callable[..., Weighting]] = Registry("weighting", "polyfed.weights")


def weigh(
    weighting: Weighting, gram: Numbers, state: WeightingState, key: int = 0, present: npt.ArrayLike | None = None
) -> tuple[Array, WeightingState]:
    """This round's weights of all M objectives: those that nobody answered for are left out of G and get 0.

    gram: G, M x M, whatever the rows of absent objectives hold; present: M truth values, all true if not given. A zero
    row left in G would be taken for a gradient of length 0: it would get all the weight and stop training.
    """
    G = as_array(gram)
    here = np.ones(len(G), dtype=bool) if present is None else np.asarray(present, dtype=bool)
    if not here.any():
        return np.zeros(len(G)), state
    known = {name: restrict(value, here) for name, value in state.items()}
    weights, new = weighting(restrict(G, here), known, key)
    return extend(weights, here), {name: extend(value, here, state.get(name)) for name, value in new.items()}
