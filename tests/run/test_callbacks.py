"""Callbacks that fail: the round is kept, and the run goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from polyfed import Callback, FedAvg, RunStopped, train
from polyfed.run.callbacks import RunView
from polyfed.run.directory import RunDirectory
from small import small_federation, small_problem


class Failing(Callback):
    fail = True

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        if self.fail and run.round == 2:
            raise ValueError("no disk")


def test_the_round_in_which_a_callback_fails_is_done() -> None:
    callback = Failing()
    with pytest.raises(RunStopped, match=r"failed in round 2 \(ValueError: no disk\)\. Continue with: polyfed\.train\(\.\.\., out='r', resume=True\)$"):
        train(small_problem(), small_federation(), FedAvg(), rounds=4, out="r", callbacks=[callback])
    found = RunDirectory.open(Path("r")).load()
    assert found is not None
    assert found[0] == 2
    callback.fail = False
    result = train(small_problem(), small_federation(), FedAvg(), rounds=4, out="r", callbacks=[callback], resume=True)
    whole = train(small_problem(), small_federation(), FedAvg(), rounds=4)
    assert [line["round"] for line in result.history] == [1, 2, 3, 4]
    assert result.summary["model_sha256"] == whole.summary["model_sha256"]
