"""The report in a real browser: what is drawn, what is said, and that nothing else happens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Open, Opened
from polyfed.report.figure import PALETTE, PALETTE_DARK
from polyfed.report.page import policy, web
from polyfed.report.writing import write_report
from rundirs import line_of, write_run

EVIL = "</script><img src=x onerror=\"window.broken=1\"><svg onload='window.broken=1'>&lt;b&gt; %{y} ${policy} 'q'"
LINK = '<a href="http://x">o</a>'  # plotly takes some markup for its own
DRAWN = "Promise.resolve(polyfedFigures.drawAll()).then(() => document.querySelectorAll('.card').length)"
SERIES = """key => document.querySelector(`#figure-${key} .plot`).data.filter(t => t.hoverinfo !== "skip").map(
  t => ({name: t.name, x: [...t.x], y: [...t.y], panel: t.xaxis}))"""
NAMELESS = "[...document.querySelectorAll('select,input')].filter(e => !e.labels.length).length"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, one with failures."""
    folder = tmp_path_factory.mktemp("report")
    first = write_run(folder / "first", rounds=30)
    write_run(folder / "second", rounds=30, ends=(0.5, 0.3), algorithm={"name": "fsmgda", "lr": 0.1})
    failure = {"client": 3, "name": "clinic three", "why": "its update is not finite"}
    with (first / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line_of(31) | {"failures": [failure]}) + "\n")
    write_report([folder], folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def opened(report: Path, open_once: Open) -> Opened:
    """The page with all figures drawn; tests that use it leave it as it was."""
    found = open_once(report / "report.html")
    assert found.page.evaluate(DRAWN) > 3
    return found


def series(opened: Opened, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opened.page.evaluate(SERIES, key)
    return found


def test_figures_render_and_the_console_is_silent(opened: Opened, report: Path) -> None:
    plots = opened.page.locator(".plot .main-svg").first
    assert plots.is_visible()
    drawn = opened.page.evaluate(
        "[...document.querySelectorAll('.card')].map(c => c.querySelectorAll('.plot path').length)"
    )
    assert min(drawn) > 3
    assert opened.said == []


def test_nothing_is_asked_of_the_network(opened: Opened, report: Path) -> None:
    page = (report / "report.html").as_uri()
    assert [url for url in opened.asked if not url.startswith(("data:", "blob:"))] == [page]


def test_the_points_drawn_are_those_of_the_metrics(opened: Opened, report: Path) -> None:
    lines = [json.loads(line) for line in (report / "first" / "metrics.jsonl").read_text().splitlines()]
    drawn = {(one["panel"], one["name"]): one for one in series(opened, "losses")}
    for panel, objective in (("x", "left"), ("x2", "right")):
        one = drawn[panel, "lr=0.3"]
        assert one["x"] == [line["round"] for line in lines]
        assert one["y"] == pytest.approx([line["losses"][objective] for line in lines], rel=1e-6)


def test_the_lines_on_the_screen_go_through_the_points(opened: Opened) -> None:
    """Places on the screen, taken back by the axes, are points of the series."""
    corners = opened.page.evaluate("""() => {
      const plot = document.querySelector("#figure-losses .plot");
      const {xaxis, yaxis} = plot._fullLayout;
      const path = plot.querySelector(".subplot.xy .scatterlayer .js-line").getAttribute("d");
      const places = path.slice(1).split(/[ML]/).map(place => place.split(",").map(Number));
      return places.map(([x, y]) => [xaxis.p2c(x), yaxis.p2c(y)]);
    }""")
    first = series(opened, "losses")[0]
    points = dict(zip(first["x"], first["y"], strict=True))
    assert len(corners) > 10
    for x, y in corners:
        assert points[round(x)] == pytest.approx(y, abs=0.01)


def test_the_horizontal_axis_is_chosen_for_all_figures(opened: Opened) -> None:
    opened.page.get_by_role("combobox", name="Against").select_option("bytes_up")
    opened.page.evaluate(DRAWN)
    assert series(opened, "losses")[0]["x"][:3] == [1000, 2000, 3000]
    assert series(opened, "weights")[0]["x"][:3] == [1000, 2000, 3000]
    opened.page.get_by_role("combobox", name="Against").select_option("round")
    opened.page.evaluate(DRAWN)
    assert series(opened, "losses")[0]["x"][:3] == [1, 2, 3]
    assert opened.said == []


def test_the_key_hides_a_series_by_keyboard(opened: Opened) -> None:
    button = opened.page.locator("#figure-losses").get_by_role("button", name="lr=0.1")
    button.focus()
    for state, names in (("false", {"lr=0.3"}), ("true", {"lr=0.3", "lr=0.1"})):
        opened.page.keyboard.press("Enter")
        opened.page.evaluate(DRAWN)
        assert {one["name"] for one in series(opened, "losses")} == names
        assert button.get_attribute("aria-pressed") == state
        assert opened.page.evaluate("document.activeElement.textContent") == "lr=0.1"


def test_what_has_the_focus_is_seen_to_have_it(opened: Opened) -> None:
    opened.page.locator("body").click(position={"x": 2, "y": 2})
    seen = []
    for _ in range(12):
        opened.page.keyboard.press("Tab")
        seen.append(opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert set(seen) == {"solid"}


def test_everything_has_a_name_for_who_does_not_see_it(opened: Opened) -> None:
    tree = opened.page.locator("body").aria_snapshot()
    assert re.search(r'img "Losses\. The loss of each objective', tree)
    for role in ("button", "link", "img", "combobox", "region", "table", "article", "columnheader", "rowheader"):
        assert re.search(rf"- '?{role} \S", tree), role
        assert not re.search(rf"^\s*- {role}( \[.*\])?:?$", tree, re.MULTILINE), role
    assert opened.page.locator("h1").count() == 1
    assert opened.page.evaluate(NAMELESS) == 0
    assert opened.page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == (
        opened.page.evaluate("document.querySelectorAll('[id]').length")
    )


def test_a_figure_is_there_as_a_table(opened: Opened) -> None:
    card = opened.page.locator("#figure-losses")
    card.get_by_text("Data as a table").click()
    rows = card.locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 31
    assert card.locator("thead th").first.inner_text() == "round"
    assert rows.first.locator("td").first.inner_text() == f"{line_of(1)['losses']['left']:.5g}"
    card.get_by_text("Data as a table").click()


def test_tables_say_what_was_reached_who_failed_and_what_differs(opened: Opened) -> None:
    best = opened.page.locator("#results td.best").all_inner_texts()
    assert len(best) == 4  # of two objectives, the loss and the accuracy
    assert "clinic three" in opened.page.locator("#failures").inner_text()
    assert "its update is not finite" in opened.page.locator("#failures").inner_text()
    assert "algorithm.lr" in opened.page.locator("#differences").inner_text()
    assert opened.page.locator("#experiments details").count() == 2


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_light_and_dark_and_the_choice_is_remembered(scheme: Any, other: str, report: Path, open_page: Open) -> None:
    found = open_page(report / "report.html", scheme=scheme)
    found.page.evaluate(DRAWN)
    look = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.plot').data[0].line.color]"
    before = found.page.evaluate(look)
    assert _bright(before[0]) == (scheme == "light")
    button = found.page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
    button.click()
    after = found.page.evaluate(look)
    assert _bright(after[0]) == (other == "light")
    assert before[1] != after[1]
    found.page.reload()
    found.page.evaluate(DRAWN)
    assert found.page.evaluate(look) == after
    assert found.said == []


def _bright(rgb: str) -> bool:
    return sum(map(int, re.findall(r"\d+", rgb)[:3])) > 384


def test_the_first_tab_leads_past_the_head_and_figures_are_drawn_when_they_come_into_sight(
    report: Path, open_page: Open
) -> None:
    found = open_page(report / "report.html", height=400)
    found.page.keyboard.press("Tab")
    assert found.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    found.page.keyboard.press("Enter")
    assert found.page.url.endswith("#content")
    found.page.locator("#figures").scroll_into_view_if_needed()
    found.page.wait_for_selector(".card[data-drawn]")
    assert found.page.locator(".card:not([data-drawn])").count() > 0
    found.page.locator(".card").last.scroll_into_view_if_needed()
    found.page.wait_for_selector(".card:last-child[data-drawn]")
    assert found.said == []


def test_a_narrow_screen_scrolls_one_way_only_and_paper_has_all_figures(
    report: Path, open_page: Open, tmp_path: Path
) -> None:
    found = open_page(report / "report.html", scheme="dark", height=400)
    found.page.set_viewport_size({"width": 360, "height": 400})
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 360
    found.page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert found.page.locator(".card:not([data-drawn])").count() == 0
    assert not found.page.evaluate("document.documentElement.classList.contains('paper')")
    assert found.said == []


def test_many_objectives_are_searched_and_paged(tmp_path: Path, open_page: Open) -> None:
    names = tuple(f"attribute-{place:02}" for place in range(20))
    for seed in (0, 1):
        write_run(
            tmp_path / f"run-{seed}", rounds=4, objectives=names, ends=[0.1] * 20, algorithm={"name": "x", "lr": seed}
        )
    write_report([tmp_path], tmp_path / "report.html")
    found = open_page(tmp_path / "report.html")
    found.page.evaluate(DRAWN)
    card = found.page.locator("#figure-losses")
    panels = "card => card.plot.layout.annotations.map(note => note.text.replace(/<.?b>/g, ''))"
    assert card.evaluate(panels) == ["mean of all objectives", "worst objective"]
    card.get_by_role("button", name="further panels").click()
    found.page.evaluate(DRAWN)
    assert card.evaluate(panels) == list(names[:6])
    found.page.get_by_role("combobox", name="Objective").fill("BUTE-1")
    found.page.evaluate(DRAWN)
    assert card.evaluate(panels) == list(names[10:16])
    assert "1–6 of 10" in card.get_by_role("status").inner_text()  # noqa: RUF001
    found.page.get_by_role("combobox", name="Objective").fill("nothing")
    assert card.get_by_role("status").inner_text() == "none of that name"
    assert found.said == []


def test_names_cannot_inject_script(tmp_path: Path, open_page: Open) -> None:
    run = write_run(
        tmp_path / "run", rounds=4, objectives=(EVIL, LINK), name=EVIL, algorithm={"name": EVIL, "note": EVIL}
    )
    write_run(tmp_path / "run<img src=x onerror=window.broken=1>", rounds=4, objectives=(EVIL, LINK), name="other")
    failure = {"client": 3, "name": EVIL, "why": EVIL}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line_of(5, (EVIL, LINK)) | {"failures": [failure]}) + "\n")
    write_report([tmp_path], tmp_path / "report.html")
    found = open_page(tmp_path / "report.html")
    found.page.evaluate(DRAWN)
    for summary in found.page.locator("summary").all():
        summary.click()
    assert found.page.evaluate("window.broken") is None
    assert found.page.locator("main img, .plot a, main svg[onload]").count() == 0
    assert LINK in found.page.locator("#figure-losses .plot text").all_text_contents()
    assert found.said == []
    assert EVIL in found.page.locator("#failures").inner_text()
    assert found.page.locator("#figure-losses").evaluate("card => card.figure.panels[0]") == EVIL


def test_curves_that_stay_where_they_are_fill_their_axis_and_rounds_are_whole(tmp_path: Path, open_page: Open) -> None:
    run = write_run(tmp_path / "run", rounds=3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line | {"losses": {"left": 0.5, "right": 0.5}} for line in lines]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in told))
    write_report([tmp_path], tmp_path / "report.html")
    found = open_page(tmp_path / "report.html")
    found.page.evaluate(DRAWN)
    layout = found.page.locator("#figure-losses .plot").evaluate("plot => plot._fullLayout.yaxis.range")
    assert layout == pytest.approx([0.4, 0.6])
    assert found.page.locator("#figure-losses .xtick text").all_text_contents() == ["1", "2", "3"]


def test_the_policy_alone_would_stop_a_script(report: Path, open_page: Open, tmp_path: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    extra = (
        "<script>window.broken = 1</script><img src='x' onerror='window.broken = 2'><img src='http://127.0.0.1:9/x'>"
    )
    (tmp_path / "page.html").write_text(page.replace("<main", extra + "<main", 1), encoding="utf-8")
    found = open_page(tmp_path / "page.html")
    assert found.page.evaluate(DRAWN) > 3
    assert found.page.evaluate("window.broken") is None
    assert any("Content Security Policy" in line for line in found.said)
    assert "'unsafe-eval'" not in policy([])


def test_the_sheet_has_the_palette_of_the_figures() -> None:
    told = re.findall(r"--c(\d): light-dark\((#\w+), (#\w+)\)", web("page.css"))
    assert [(int(place), light.upper(), dark.upper()) for place, light, dark in told] == [
        (place, *pair) for place, pair in enumerate(zip(PALETTE, PALETTE_DARK, strict=True))
    ]
    assert np.unique(PALETTE).size == len(PALETTE)
