"""What all fuzzing of settings, arguments and files shares: odd values, and what must hold of whatever happens."""

from __future__ import annotations

import datetime
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st

from polyfed.core.errors import PolyfedError

SOAK = 20  # times as many cases in `make soak`: with those of messages, 200,000
SHARDS = range(16)  # that they are shared out among, for as many processors
Test = TypeVar("Test", bound=Callable[..., Any])
HANG = 5  # seconds
LONGEST = 400  # characters of a message

NUMBERS = st.sampled_from(
    [math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3.5, 0.5, -0.0, 2**31, 2**40, 2**62, -(2**62), 1e308, -1e308, 1e-308]
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "0.1",
            "3",
            "true",
            "x" * 5000,
            "os:system",
            "builtins:eval",
            "\x1b[31m",
            "[/red]",
            "../../x",
            "known",
            "all",
            "a.b",
            "it's",
            '"',
            "\\",
            "\x00",
            "\u202e",
            "min-norm",
            "fedavg",
            "nan",
        ]
    ),
    st.text(max_size=8),
)
SCALARS = NUMBERS | TEXTS | st.booleans() | st.just(datetime.date(2020, 1, 1)) | st.integers(-3, 12) | st.floats(0, 2)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("name"), inner, max_size=2),
    max_leaves=4,
)


def cases(n: int, shard: int | None = None) -> Callable[[Test], Test]:
    """The settings of a fuzzing test: the same cases in every run, or one shard of the many in `make soak`."""
    many = n if shard is None else n * SOAK // len(SHARDS)
    own = settings(max_examples=many, deadline=None, derandomize=shard is None, database=None,
                   suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])  # fmt: skip
    return own if shard is None else lambda test: own(seed(shard)(test))


@contextmanager
def only_our_errors(*names: str) -> Iterator[None]:
    """Whatever is done here ends within seconds, and raises nothing but a short sentence that names its key."""

    def hangs(number: int, frame: object) -> None:
        raise TimeoutError(f"no end within {HANG} seconds")

    timed = hasattr(signal, "SIGALRM")  # not on Windows
    before = signal.signal(signal.SIGALRM, hangs) if timed else None
    if timed:
        signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        yield
    except PolyfedError as error:
        text = str(error)
        assert len(text) <= LONGEST, text
        assert not names or any(name in text for name in names), f"{text!r} names none of {names}"
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
