"""The decoder as one function under fuzz: whatever the bytes, an answer or a `BadMessage`, and soon."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import SHARDS, cases
from polyfed.core.messages import DTYPES, BadMessage, Reply, Request, decode, encode

READERS: list[Callable[[bytes], Any]] = [decode, Reply.decode, Request.decode]
SOON = 5.0  # seconds

_REAL = [
    Reply({"delta": torch.ones(7), "heard": torch.ones(2), "weight": torch.ones(())}).encode(),
    Reply(error="ValueError: no").encode(),
    Reply({"name": torch.tensor(list(b"clinic"), dtype=torch.uint8), "examples": torch.tensor(9),
           "holds": torch.tensor([True, False])}).encode(),
    Request("sgd", {"x": torch.ones(3)}, {"w": torch.ones(1, 2)}, {"lr": 0.1, "compress": {"name": "sketch"}},
            folded=torch.tensor([3])).row(0).encode(),
    encode({"client": 3, "state": True}, {"state.n": torch.zeros(2, 2, dtype=torch.float64)}),
    Reply({"delta": torch.ones(5, dtype=torch.bfloat16), "half": torch.ones(3, dtype=torch.float16)}).encode(),
    Reply({"delta": torch.ones(3, dtype=torch.uint8), "delta.scale": torch.ones(())}).encode(),
]  # fmt: skip

numbers = (
    st.integers(-3, 9) | st.integers(-(2**80), 2**80) | st.floats() | st.sampled_from([2**31, 2**62, 2**63, 10**400])
)
texts = st.text(max_size=6) | st.sampled_from(
    ["float32", "bool", "bfloat16", "float16", "x", "when", "work", "each", "\u00b2", "\ud800", "9" * 5000]
)
plain = st.none() | st.booleans() | numbers | texts
anything = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
sizes = st.lists(st.integers(0, 4) | numbers, max_size=3)
claims = st.lists(st.tuples(texts, st.sampled_from(sorted(DTYPES)) | texts, sizes | anything) | anything, max_size=4)
heads = st.fixed_dictionaries(
    {"arrays": claims | anything},
    optional={"error": anything, "work": anything, "options": anything, "each": anything, "part": anything,
              "weighed": anything, "head": anything},
)  # fmt: skip


@st.composite
def mutated(draw: Any) -> bytes:
    """A real message with some bytes changed, cut out or put in; the head's length may be right or wrong."""
    data = bytearray(draw(st.sampled_from(_REAL)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 8)))
        data[at:end] = draw(st.binary(max_size=8) | st.sampled_from([b"[", b'"', b"9" * 40, b"1e999", b",[0]"]))
    return bytes(data)


@st.composite
def made(draw: Any) -> bytes:
    """A head of any JSON, well framed, and some bytes for arrays."""
    text, more = json.dumps(draw(heads)).encode(), bytes(draw(st.binary(max_size=64)))
    return struct.pack("<4sI", b"PF01", len(text)) + text + more


def _is_answered_or_refused(data: bytes) -> None:
    for read in READERS:
        begun = time.perf_counter()
        said = ""
        try:
            read(data)
        except BadMessage as refused:
            said = str(refused)
        assert len(said) <= 400
        assert time.perf_counter() - begun < SOON


def _fuzz(n: int, shard: int | None = None) -> None:
    for messages in (mutated(), made()):
        cases(n, shard)(given(messages)(_is_answered_or_refused))()


def test_any_bytes_are_answered_or_refused() -> None:
    _fuzz(400)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_any_bytes_are_answered_or_refused_160_000_times(shard: int) -> None:
    _fuzz(4000, shard)  # 16 shards of 2 x 5000
