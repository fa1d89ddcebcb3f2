"""The protocol: bytes there and back, sizes from the schema, and nothing malformed gets in."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyfed.core.messages import DTYPES, BadMessage, Reply, Request, decode, encode, short_text, size, whole_number

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
        (_message({"arrays": [["x", "float32", [-1]]]}), "from 0 to"),
        (_message({"arrays": [["x", "float32", [1 << 30]]]}), "claims 4294967296 bytes"),
        (_message({"arrays": [["x", "float32", [1 << 40, 1 << 40]]]}), "claims"),
        (_message({"arrays": [["x", "uint8", [1]]]}, b"12"), "follow the last array"),
        (struct.pack("<4sI", b"PF01", 1 << 31), "at most 1048576 bytes"),
        (struct.pack("<4sI", b"PF01", 9), "claims 9 bytes and has 0"),
    ],
)
def test_malformed_bytes_are_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode(data)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ([["delta", "float32", [0, 9223372036854775808]]], "whole number"),  # R1, as it came
        ([["delta", "float32", [0, 9223372036854775807]]], "claims"),
        ([["delta", "float32", [1 << 62] * 2000]], "at most 16 axes"),
        ([["delta", "float32", [1 << 32] * 15 + [0]]], "claims"),
        ([["delta", "float32", [float("inf")]]], "numbers are finite"),
        ([["delta", "float32", [1e300]]], "whole number"),
        ([["delta", "float32", ["\u00b2"]]], "whole number"),
        ([["delta", "float32", [True]]], "whole number"),
        ([["delta", "float32", [[1]]]], "whole number"),
        ([["delta", "float32", "3"]], "a name, a type and a shape"),
        ([["delta", ["float32"], []]], "types such as"),
        ([[None, "float32", []]], "1 to 256 printable characters"),
        ([["\ud800", "float32", [0]]], "printable"),
        ([["x" * 5000, "float32", [0]]], "1 to 256"),
        ([["delta", "float32", [0]]] * 2, "there twice"),
        ("delta", "list of arrays"),
        ([[]], "a name, a type and a shape"),
    ],
)
def test_what_a_stranger_may_claim_is_bounded(claims: object, why: str) -> None:
    with pytest.raises(BadMessage, match=why) as found:
        decode(_message({"arrays": claims}))
    assert len(str(found.value)) <= 400


def test_numbers_of_5000_digits_deep_lists_and_stray_bytes_of_bool_are_refused() -> None:
    for text in ('{"arrays":[["x","uint8",[' + "9" * 5000 + "]]]}", '{"arrays":[],"a":' + "[" * 5000 + "]" * 5000 + "}",
                 '{"arrays":[],"options":' + "[" * 20 + "]" * 20 + "}", '{"arrays":[],"a":NaN}'):  # fmt: skip
        with pytest.raises(BadMessage):
            decode(struct.pack("<4sI", b"PF01", len(text)) + text.encode())
    with pytest.raises(BadMessage, match="0 or 1"):
        decode(_message({"arrays": [["x", "bool", [1]]]}, b"\x02"))


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param([["x" + str(i), "float32", [0]] for i in range(1_000_000)], id="a million empty arrays"),
        pytest.param([["x", "float32", [0] * 700_000]], id="100,000 dimensions and more"),
        pytest.param([["x", "float32", [0] * 100_000]], id="as many as a head has room for"),
        pytest.param([["x" + str(i), "float32", [0]] for i in range(30_000)], id="as many arrays as it has room for"),
        pytest.param([[]] * 300_000, id="empty lists"),
    ],
)
def test_bombs_are_refused_at_once(claims: object) -> None:
    """R8: they took 15 and 32 seconds, and 1.5 GB."""
    data = _message({"arrays": claims})
    begun = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 50e6
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begun < 2  # traced, which is slow; some 0.1 s without


def test_what_we_wrote_ourselves_may_be_long() -> None:
    arrays = {f"clients.{i}": torch.tensor(i) for i in range(5000)}
    data = encode({}, arrays)
    with pytest.raises(BadMessage, match="at most 4096 arrays"):
        decode(data)
    assert list(decode(data, ours=True)[1]) == list(arrays)


def test_an_error_is_a_text_that_can_be_shown() -> None:
    assert Reply(error="a\x1b[31m\ud800" + "b" * 9000).error == "a\ufffd[31m\ufffd" + "b" * 3993 + "..."
    with pytest.raises(BadMessage, match="error is a text"):
        Reply.decode(encode({"error": ["x"]}, {}))


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        ({"work": 3}, {}),
        ({"work": "x" * 300}, {}),
        ({"options": [1]}, {}),
        ({"each": "ab"}, {}),
        ({"each": [["a"]]}, {}),
        ({"each": ["nowhere"]}, {}),
        ({"weighed": 1}, {}),
        ({"part": 1.5}, {}),
        ({}, {"when": torch.zeros(())}),
        ({}, {"when": torch.zeros(4)}),
    ],
)
def test_a_request_with_the_wrong_parts_is_refused(head: dict[str, object], arrays: dict[str, torch.Tensor]) -> None:
    fine = {"work": "sgd", "options": {}, "each": []}
    when = {"when": torch.zeros(4, dtype=torch.int64)}
    assert Request.decode(encode(fine, when)).work == "sgd"
    with pytest.raises(BadMessage):
        Request.decode(encode({**fine, **head}, {**when, **arrays}))


def test_whole_numbers_and_short_texts_of_strangers() -> None:
    assert whole_number(torch.tensor(7), "count", most=7) == whole_number(torch.tensor([7.0]), "count") == 7
    for wrong in (8, -1, True, 1.0, "7", None, 10**5000, torch.tensor(float("inf")), torch.tensor(1e30), torch.ones(2)):
        with pytest.raises(BadMessage, match="from 0 to 7"):
            whole_number(wrong, "count", most=7)
    assert short_text("\u00b2", "name") == short_text(torch.tensor([194, 178], dtype=torch.uint8), "name") == "\u00b2"
    for text in (
        "",
        "x" * 9,
        "\n",
        7,
        torch.tensor([255], dtype=torch.uint8),
        torch.zeros(3),
        torch.zeros(9**5).byte(),
    ):
        with pytest.raises(BadMessage, match="1 to 8 printable characters"):
            short_text(text, "name", most=8)


def test_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadMessage, match="at most 10 bytes"):
        decode(encode({}, {"x": torch.zeros(100)}), limit=10)


def test_a_request_without_its_parts_is_refused() -> None:
    with pytest.raises(BadMessage, match="needs 'work'"):
        Request.decode(encode({"work": "sgd"}, {}))


def test_types_that_do_not_travel_are_named() -> None:
    with pytest.raises(BadMessage, match=r"bfloat16.*; found torch\.complex64"):
        encode({}, {"x": torch.zeros(1, dtype=torch.complex64)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (5, 3)])
def test_half_precision_keeps_every_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """All kinds of bits, not a number and infinity among them, however the array lies in memory."""
    bits = torch.randint(-(2**15), 2**15, shape, generator=torch.Generator().manual_seed(0)).to(torch.int16)
    a = bits.view(dtype)
    data = Reply({"a": a.T if a.dim() == 2 else a}).encode()
    assert len(data) == Reply({"a": a.T if a.dim() == 2 else a}).nbytes
    back = Reply.decode(data).arrays["a"]
    assert back.dtype == dtype
    assert torch.equal((back.T if a.dim() == 2 else back).contiguous().view(torch.int16), bits)


def test_half_precision_is_no_count() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(BadMessage, match="whole number"):
            whole_number(torch.ones((), dtype=dtype), "count")
