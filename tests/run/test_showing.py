"""Results in a notebook: a table and a picture, escaped and never a traceback; figures and frames on demand."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import polyfed
from polyfed import FedAvg, Federation, Objective, Problem, Result, load, train
from polyfed.core.errors import BadInput
from polyfed.models import Headed
from polyfed.run.history import History
from polyfed.study.comparison import Comparison
from polyfed.study.front import Front

NASTY = "<script>alert(1)</script>"


def trained(name: str = "left", **more: Any) -> Result:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    federation = Federation.from_arrays(x, {name: (x[:, 0] > 0).astype(int)}, clients=3)
    problem = Problem(Headed(nn.Identity(), {name: nn.Linear(3, 2)}), [Objective(name, "cross-entropy")])
    return train(problem, federation, FedAvg(), rounds=3, **more)


def test_a_result_shows_its_last_figures_and_its_losses() -> None:
    result = trained()
    page = result._repr_html_()
    assert f"<td>{result.summary['objectives']['left']['loss']:.4f}</td>" in page
    assert page.count("<svg") == 1
    assert "aria-label" in page
    again = load(result.run, model=result.model)
    assert f"<td>{result.summary['objectives']['left']['loss']:.4f}</td>" in again._repr_html_()
    assert "<svg" in result.history._repr_html_()
    passing = trained(keep=False)
    assert "<svg" in passing._repr_html_(), "from what is in memory"


def test_names_are_text_and_no_markup() -> None:
    result = trained(NASTY)
    for page in (result._repr_html_(), result.history._repr_html_()):
        assert NASTY not in page
        assert html.escape(NASTY) in page


def test_without_matplotlib_there_is_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(keep=False)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    page = result._repr_html_()
    assert "<svg" not in page
    assert "<td>left</td>" in page
    with pytest.raises(BadInput, match=r"needs matplotlib: pip install 'polyfed\[report\]'"):
        result.plot()


def test_what_cannot_be_shown_is_shown_plainly() -> None:
    broken = Result(nn.Identity(), History(), None, {"objectives": {"a": 3}})
    assert broken._repr_html_() == "<pre>&lt;Result&gt;</pre>"
    assert History()._repr_html_().startswith("<p>0 rounds</p>")


def test_a_run_that_is_not_finished_and_one_that_is_gone(tmp_path: Path) -> None:
    result = trained(out="r")
    Path("r/result.json").unlink()
    loaded = load("r", model=result.model)
    assert "3 rounds, not finished" in loaded._repr_html_()
    Path("r").rename("elsewhere")
    assert "<td>left</td>" in result._repr_html_()
    assert result.plot() is not None


def test_figures_by_their_names() -> None:
    result = trained()
    figure = result.plot()
    assert type(figure).__name__ == "Figure"
    (axes,) = [axes for axes in figure.axes if axes.lines]
    wanted = [line["losses"]["left"] for line in result.history]
    assert any(list(line.get_ydata()) == pytest.approx(wanted) for line in axes.lines)
    assert result.plot("metric-accuracy", x="bytes_up") is not None
    assert result.history.plot("losses") is not None
    with pytest.raises(BadInput, match=r"no figure 'lossses'\. Did you mean 'losses'\?"):
        result.plot("lossses")
    with pytest.raises(BadInput, match="is drawn against round"):
        result.plot("losses", x="nothing")


def test_rounds_as_a_frame() -> None:
    result = trained()
    frame = result.to_pandas()
    assert list(frame["round"]) == [1, 2, 3]
    assert list(frame["losses.left"]) == [line["losses"]["left"] for line in result.history]
    assert load(result.run, model=result.model).to_pandas().equals(frame)


def test_a_result_in_a_line() -> None:
    said = repr(trained(keep=False))
    assert said.startswith("Result(fedavg, 3 rounds, left: loss 0.")
    assert "\n" not in said
    assert polyfed.Result is Result


def test_a_table_without_pandas_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    tables: list[tuple[Any, str]] = [
        (History(), "rounds"),
        (Front(Path(), {"objectives": ["left"], "points": []}), "points"),
        (Comparison(Path(), {"cells": [], "rows": []}), "runs"),
    ]
    for table, rows in tables:
        with pytest.raises(BadInput, match=f"A table of the {rows} needs pandas: pip install pandas"):
            table.to_pandas()
