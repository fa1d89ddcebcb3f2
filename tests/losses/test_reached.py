"""The package's losses are reached without an import of their own, in a process that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys


def test_losses_and_metrics_need_no_import_of_their_own() -> None:
    said = "import polyfed; print(polyfed.losses.l2().name, polyfed.metrics.auc().better)"
    found = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["l2", "higher"], found.stderr
