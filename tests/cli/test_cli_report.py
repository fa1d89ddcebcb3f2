"""`polyfed report`: what it writes, what it says, and that it does not wait for torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyfed.cli import app
from rundirs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", rounds=4)


def test_the_page_is_written_and_named(run: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(run)])
    assert (done.exit_code, done.stdout) == (0, "report.html\n")
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_figures_as_pictures_and_as_numbers_and_then_no_page(run: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(run), "--png", "png", "--pdf", "pdf", "--csv", "csv"])
    assert done.exit_code == 0
    names = {Path(kind, f"losses.{kind}") for kind in ("png", "pdf", "csv")}
    assert names <= set(map(Path, done.stdout.splitlines()))
    assert Path("png/losses.png").read_bytes().startswith(b"\x89PNG")
    assert Path("pdf/losses.pdf").read_bytes().startswith(b"%PDF")
    assert len(Path("csv/losses.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 4
    assert not Path("report.html").exists()


def test_what_is_no_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "nowhere", "-o", "x.html"])
    assert done.exit_code == 2
    assert done.stderr.startswith("polyfed: A report is of at least one run: 'nowhere' does not exist.")
    assert not Path("x.html").exists()


def test_a_report_does_not_wait_for_torch(run: Path) -> None:
    code = (
        "import sys; from polyfed.cli import app; app(['report', sys.argv[1]], standalone_mode=False); "
        "print([name for name in ('torch', 'matplotlib', 'scipy', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["report.html", "[]"]
