"""The protocol: bytes there and back, sizes from the schema, and nothing malformed gets in."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyfed.core.messages import DTYPES, BadMessage, Reply, Request, decode, encode, size

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
names = st.text("abcdefg_", min_size=1, max_size=5)


@given(st.dictionaries(names, st.tuples(shapes, st.sampled_from(sorted(DTYPES))), max_size=4))
def test_there_and_back_and_counted_right(schema: dict[str, tuple[tuple[int, ...], str]]) -> None:
    arrays = {name: torch.randint(0, 2, shape).to(DTYPES[dtype]) for name, (shape, dtype) in schema.items()}
    data = encode({"a": 1}, arrays)
    assert len(data) == size({"a": 1}, arrays)
    head, back = decode(data)
    assert head == {"a": 1}
    assert list(back) == list(arrays)
    for name, a in arrays.items():
        assert back[name].dtype == a.dtype
        assert torch.equal(back[name], a)


def test_a_request_for_one_client() -> None:
    request = Request(
        "sgd", {"x": torch.arange(3.0)}, {"w": torch.arange(6.0).view(2, 3)}, {"lr": 0.1, "name": "é"},
        seed=2**62, round=7, exchange=1, folded=torch.tensor([-1, 5]),
    )  # fmt: skip
    back = Request.decode(request.row(1).encode())
    assert back.folded is not None
    assert (back.work, back.seed, back.round, back.exchange, int(back.folded)) == ("sgd", 2**62, 7, 1, 5)
    assert back.options == {"lr": 0.1, "name": "é"}
    assert back["w"].tolist() == [3, 4, 5]
    assert back["x"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError, match="no array 'z'"):
        back["z"]


def test_every_row_of_a_request_has_the_same_size() -> None:
    request = Request("sgd", {"x": torch.zeros(3)}, {"w": torch.zeros(2, 1)}, folded=torch.tensor([-1, 123456789]))
    assert len(request.row(0).encode()) == len(request.row(1).encode())


def test_a_reply_with_an_error_is_counted_too() -> None:
    reply = Reply(error="ValueError: no")
    assert len(reply.encode()) == reply.nbytes
    assert Reply.decode(reply.encode()).error == "ValueError: no"


def _message(head: object, data: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<4sI", b"PF01", len(text)) + text + data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "starts with the mark"),
        (b"\x80\x04pickle is not welcome", "starts with the mark"),
        (_message([1]), "JSON"),
        (_message({}), "list of arrays"),
        (_message({"arrays": [["x", "object", [1]]]}, b"12345678"), "list of arrays"),
        (_message({"arrays": [["x", "float32", [-1]]]}), "not negative"),
        (_message({"arrays": [["x", "float32", [1 << 30]]]}), "claims 4294967296 bytes"),
        (_message({"arrays": [["x", "float32", [1 << 40, 1 << 40]]]}), "claims"),
        (_message({"arrays": [["x", "uint8", [1]]]}, b"12"), "follow the last array"),
        (struct.pack("<4sI", b"PF01", 1 << 31), "JSON"),
    ],
)
def test_malformed_bytes_are_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode(data)


def test_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadMessage, match="at most 10 bytes"):
        decode(encode({}, {"x": torch.zeros(100)}), limit=10)


def test_a_request_without_its_parts_is_refused() -> None:
    with pytest.raises(BadMessage, match="needs 'work'"):
        Request.decode(encode({"work": "sgd"}, {}))


def test_types_that_do_not_travel_are_named() -> None:
    with pytest.raises(BadMessage, match="bfloat16"):
        encode({}, {"x": torch.zeros(1, dtype=torch.bfloat16)})
