"""Sums by place: in order, the same in every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from polyfed.compress.sketch import sketch
from polyfed.core.segments import column_sums, in_order, segment_sums

GPU = ["cuda"] if torch.cuda.is_available() else []
DEVICES = pytest.mark.parametrize("device", ["cpu", *GPU])


@DEVICES
@pytest.mark.parametrize("rows", [0, 1, 700])
def test_few_rows_are_added_one_after_another(rows: int, device: str) -> None:
    """Some places have no row, some rows no place."""
    d, places = torch.randn(rows, 4), torch.randint(0, 12, (rows,))
    places[places == 3] = 4
    wanted = torch.zeros(10, 4)
    for row, place in zip(d, places, strict=True):
        if place < 10:
            wanted[place] += row
    assert torch.equal(segment_sums(d.to(device), places.to(device), 10).cpu(), wanted)


@DEVICES
def test_many_rows_go_in_pieces_in_the_same_order_in_every_run(device: str) -> None:
    d, places = torch.randn(50_000, 3, device=device), torch.randint(0, 12, (50_000,), device=device)
    first = segment_sums(d, places, 10)
    wanted = torch.zeros(12, 3, dtype=torch.float64, device=device).index_add(0, places, d.double())[:10]
    torch.testing.assert_close(first.double(), wanted, atol=2e-3, rtol=0)
    assert all(torch.equal(segment_sums(d, places, 10), first) for _ in range(5))


def test_rows_of_one_place_beside_each_other_are_cut_into_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an embedding's are, client after client; one thread would add all of them."""
    longest: list[int] = []

    def watched(rows: Tensor, how: str, *, offsets: Tensor, **more: Any) -> Tensor:
        longest.append(int(offsets.diff().max()))
        return reduce(rows, how, offsets=offsets, **more)

    reduce = torch.segment_reduce
    monkeypatch.setattr(torch, "segment_reduce", watched)
    places = torch.arange(20).repeat_interleave(640)
    assert segment_sums(torch.ones(12_800, 2), places, 20).eq(640).all()
    assert longest == [64]


@DEVICES
def test_columns_of_all_clients_at_once(device: str) -> None:
    H, places = torch.randn(5, 2, 900, dtype=torch.float64), torch.randint(0, 16, (900,))
    wanted = torch.stack([column_sums(h, places, 16) for h in H])
    own, at = H.to(device), places.to(device)
    for found in (vmap(lambda h: in_order(h, at, 16))(own),  # the same places for all clients, or their own
                  vmap(lambda h, p: in_order(h, p, 16))(own, at.expand(5, -1)),
                  vmap(lambda h: column_sums(h, at, 16))(own)):  # fmt: skip
        torch.testing.assert_close(found.cpu(), wanted)
    for found in vmap(lambda p: in_order(own[0], p, 16))(at.expand(3, -1)):
        torch.testing.assert_close(found.cpu(), wanted[0])


@DEVICES
def test_a_sketch_has_the_same_bits_in_every_run(device: str) -> None:
    H = torch.randn(3, 40_000, device=device)
    first = sketch(H, 256, 7)
    assert all(torch.equal(sketch(H, 256, 7), first) for _ in range(5))
    torch.testing.assert_close(first.cpu(), sketch(H.cpu(), 256, 7), atol=1e-3, rtol=0)
