"""The digits are read from scikit-learn's file, since importing it takes seconds; they are what it would give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from polyfed.data import two_digits


@pytest.mark.parametrize("there", [True, False])
def test_the_digits_are_scikit_learns(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_digits()
    if not there:
        monkeypatch.setattr(Path, "is_file", lambda path: False)
    images, labels = two_digits._digits()
    np.testing.assert_array_equal(images, (digits.images / 16).astype(np.float32))
    np.testing.assert_array_equal(labels, digits.target)
