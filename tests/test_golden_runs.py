"""The recorded runs come out the same: `tests/golden/runs.json`, written by `tests/golden_runs.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from golden_runs import FILE, cases, differences, fingerprint, run

SAVED = json.loads(FILE.read_text())
CASES = dict(cases())


def test_every_case_is_recorded() -> None:
    assert list(CASES) == list(SAVED["runs"])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*runs client by client:RuntimeWarning")
def test_recorded_run(name: str, tmp_path: Path) -> None:
    was: dict[str, Any] = dict(SAVED["runs"][name])
    now = run(CASES[name], tmp_path)
    if SAVED["machine"] != fingerprint():  # rounding differs between machines, checksums with it
        was.pop("sha256")
        now.pop("sha256")
    assert list(differences(was, now)) == []
