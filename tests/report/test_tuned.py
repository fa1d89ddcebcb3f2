"""Figures of a search: its trials against each parameter, and the trade-off between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyfed.report import Study
from polyfed.report.drawing import draw
from polyfed.report.figures.tuned import searched, tuned


def trial(number: int, values: dict[str, Any], left: float, right: float, state: str = "done") -> dict[str, Any]:
    figures = {"left": left, "right": right}
    return {"trial": number, "values": values, "run": f"trial-{number}", "state": state, "figures": figures}


ABOUT: dict[str, Any] = {
    "kind": "tune",
    "parameters": {"lr": "log:0.01..1", "name": '"b","a"', "mu": "0.0..1.0"},
    "columns": ["left", "right"],
    "higher": False,
    "front": [0, 1],
    "trials": [
        trial(0, {"lr": 0.1, "name": "b", "mu": 0.5}, 1.0, 3.0),
        trial(1, {"lr": 0.5, "name": "a"}, 2.0, 2.0),
        trial(2, {"lr": 1.0, "name": "a"}, 4.0, 4.0),
        trial(3, {"lr": 0.01, "name": "a"}, 9.0, 9.0, "early"),
    ],
}


def test_a_panel_a_parameter_words_in_their_places() -> None:
    figure, _ = tuned(ABOUT)
    assert figure.panels == ("lr", "name", "mu")
    (left, _), (named, _), (own, _) = (figure.in_panel(panel) for panel in figure.panels)
    assert (list(left.x["value"]), list(left.y)) == ([0.1, 0.5, 1.0], [1.0, 2.0, 4.0]), "not the one that ended early"
    assert list(named.x["value"]) == [1, 0, 0]
    assert (list(own.x["value"]), own.ids) == ([0.5], ("trial-0",)), "not those that lack it"
    assert figure.panel_axes["lr"][0].log
    assert figure.panel_axes["name"][0].words == ("a", "b")
    assert figure.to_json()["panel_axes"]["name"][0]["words"] == ["a", "b"]
    labels = [text.get_text() for text in draw(figure).axes[1].get_xticklabels()]
    assert labels == ["a", "b"]


def test_the_trade_off_has_those_that_no_other_beats() -> None:
    _, figure = tuned(ABOUT)
    shown = {one.name: (list(one.x["first"]), list(one.y)) for one in figure.series}
    assert shown == {"not dominated": ([1.0, 2.0], [3.0, 2.0]), "dominated": ([4.0], [4.0])}
    (alone,) = tuned({**ABOUT, "columns": ["left"]})
    assert alone.key == "parameters"


def test_what_says_nothing_has_no_figures() -> None:
    assert tuned({**ABOUT, "trials": ABOUT["trials"][3:]}) == []
    studies = [Study(Path("a"), "compare", ABOUT), Study(Path("b"), "tune", {}), Study(Path("c"), "tune", ABOUT)]
    assert [figure.key for figure in searched(studies)] == ["parameters", "trials"]
    assert json.dumps([figure.to_json() for figure in searched(studies)])
