"""Messages of every size come through, in both directions, as often as may be under way."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from polyfed import FedAvg, train
from polyfed.engines.local.channel import SLOT, SMALL, Channel
from small import small_federation, small_problem, vector

SIZES = [0, 1, SMALL, SMALL + 1, SLOT, SLOT + 1]


def echo(channel: Channel) -> None:
    while message := channel.receive():
        channel.send(message[::-1])


def test_messages_of_every_size_come_back() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = Channel.pair(context, 3, 3)
    process = context.Process(target=echo, args=(theirs,), daemon=True)
    process.start()
    for size in SIZES[1:]:
        message = (bytes(range(251)) * (size // 251 + 1))[:size]
        ours.send(message)
        assert ours.receive() == message[::-1]
    for i in range(20):  # three at a time, round and round the slots
        sent = [bytes([i, k]) * SMALL for k in range(3)]
        for message in sent:
            ours.send(message)
        assert [ours.receive() for _ in sent] == [message[::-1] for message in sent]
    ours.send(b"")
    process.join(timeout=10)
    assert process.exitcode == 0
    theirs.pipe.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_models_larger_than_a_slot_are_trained_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.engines.local.channel.SMALL", 100)
    monkeypatch.setattr("polyfed.engines.local.channel.SLOT", 8192)

    def trained(workers: int, out: str) -> torch.Tensor:
        engine = {"name": "local", "workers": workers}
        return vector(train(small_problem(), small_federation(), FedAvg(), rounds=3, engine=engine, out=out))

    alone = trained(1, "one")
    assert torch.equal(alone, trained(2, "two"))
    monkeypatch.setattr("polyfed.engines.local.channel.SLOT", 200)  # every model through the pipe
    assert torch.equal(alone, trained(2, "pipe"))
