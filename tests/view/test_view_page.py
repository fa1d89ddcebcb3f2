"""The live page in a real browser: it follows a run, compares, explores a front, and lets no name become script."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import PATIENCE, Open, Opened
from rundirs import add_round, line_of, write_front, write_run
from served import Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror=window.broken=1>"
MARKS = "document.querySelector('#front-plot').data.filter(one => one.mode === 'markers').length"
LOSSES = "document.querySelector('#figure-losses .plot')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two complete runs, one that goes on, one that is broken, and a front."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "done", rounds=6)
    write_run(root / "other", rounds=6, ends=(0.5, 0.3), seed=1, algorithm={"name": "fedavg", "lr": 0.1})
    write_run(root / "broken", rounds=2)
    (root / "broken" / "experiment.toml").write_text("= no")
    write_front(root / "front", points=5, rounds=10)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def tab(server: Served, open_once: Open) -> Opened:
    """One page for the tests that leave no mark on it: plotly takes its time to load."""
    return open_once(server.url, permissions=["clipboard-read", "clipboard-write"])


def shown(tab: Opened, place: str) -> Page:
    """What the address names, anew."""
    tab.page.evaluate("location.hash = ''")
    tab.page.locator("#detail").wait_for(state="hidden")
    tab.said.clear()
    tab.page.evaluate("place => { location.hash = place; }", place)
    return tab.page


def drawn(page: Page, key: str) -> list[dict[str, Any]]:
    """The series of a figure, as the browser has drawn them."""
    page.locator(f"#figure-{key}[data-drawn]").wait_for()
    told: list[dict[str, Any]] = page.evaluate(
        "key => document.querySelector(`#figure-${key} .plot`).data.map(({name, y}) => ({name, y: [...y]}))", key
    )
    return told


def until(page: Page, expression: str) -> None:
    """Wait for a condition; Playwright's own way evaluates texts, which the page's policy forbids."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(30)


def chosen(opened: Opened, *names: str) -> Page:
    page = opened.page
    for name in names:
        page.get_by_role("checkbox", name=f"Choose {name}", exact=True).check()
    return page


# the list


def test_it_lists_searches_filters_and_sorts(server: Served, open_page: Open) -> None:
    opened = open_page(server.url)
    page = opened.page
    rows = page.locator("#list tbody tr[data-run]")
    rows.first.wait_for()
    assert rows.count() == 8
    assert page.locator("#live").text_content() == "live"
    assert "experiment.toml is broken" in (page.locator('tr[data-run="broken"] .why').text_content() or "")
    page.get_by_label("Search runs").fill("algorithm:fedavg")
    assert [row.get_attribute("data-run") for row in rows.all()] == ["other"]
    assert page.locator("#count").text_content() == "1 of 8 runs"
    page.get_by_label("Search runs").fill("")
    page.get_by_role("button", name="fedcmoo-pref").click()
    assert rows.count() == 5
    page.get_by_role("button", name="fedcmoo-pref").click()
    page.get_by_role("button", name="Mean loss").click()
    assert page.locator("th[data-key=loss]").get_attribute("aria-sort") == "ascending"
    loose = [row.get_attribute("data-run") for row in rows.all() if "/" not in (row.get_attribute("data-run") or "")]
    assert loose == ["other", "done", "broken"]  # what is not known is last
    page.get_by_role("button", name="front", exact=True).click()  # folds the study
    assert rows.count() == 3
    assert opened.said == []


def test_a_run_appears_and_goes_without_reload(server: Served, folder: Path, open_page: Open) -> None:
    opened = open_page(server.url)
    opened.page.locator('tr[data-run="done"]').wait_for()
    write_run(folder / "late", rounds=1)
    opened.page.locator('tr[data-run="late"]').wait_for()
    shutil.rmtree(folder / "late")
    opened.page.locator('tr[data-run="late"]').wait_for(state="detached")
    assert opened.said == []


# figures


def test_the_page_follows_a_run_as_it_writes(tab: Opened, folder: Path) -> None:
    run = write_run(folder / "going", rounds=3, done=False)
    try:
        page = shown(tab, "run=going")
        assert [len(one["y"]) for one in drawn(page, "losses")] == [3, 3]
        page.evaluate("window.here = 1")  # it would go with a reload
        page.get_by_role("button", name="Copy: Go on with it").focus()
        for round in (4, 5):
            add_round(run, round)
        until(page, f"{LOSSES}.data[0].y.length === 5")
        add_round(run, 6)
        until(page, f"{LOSSES}.data[0].y.length === 6")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for one in drawn(page, "losses"):
            assert one["y"] == pytest.approx([line["losses"][one["name"]] for line in lines], rel=1e-6)
        assert page.evaluate("window.here") == 1
        until(page, "document.querySelector('#detail dl').textContent.includes('6 of')")
        assert page.evaluate("document.activeElement.ariaLabel") == "Copy: Go on with it"  # who types stays there
        assert page.locator("code", has_text="polyfed resume").count() == 1
        assert tab.said == []
    finally:
        shutil.rmtree(run)


def test_a_selection_is_compared(server: Served, open_page: Open) -> None:
    opened = open_page(server.url)
    page = chosen(opened, "done", "other")
    page.get_by_role("heading", name="2 runs compared").wait_for()
    assert len({one["name"] for one in drawn(page, "losses")}) == 2
    table = page.get_by_role("region", name="The settings that differ")
    assert {"algorithm.name", "algorithm.lr", "seed"} <= set(table.locator("tbody th").all_text_contents())
    page.locator("#detail .tools select").select_option("bytes_up")
    until(page, f"{LOSSES}.data[0].x[1] === 2000")
    page.reload()  # the address holds the selection
    page.get_by_role("heading", name="2 runs compared").wait_for()
    chosen(opened).get_by_role("checkbox", name="Choose other", exact=True).uncheck()
    page.get_by_role("heading", name="done", exact=True).wait_for()
    page.get_by_role("button", name="Close").click()
    page.locator("#detail").wait_for(state="hidden")
    assert opened.said == []


def test_a_command_is_copied_and_a_figure_saved(tab: Opened) -> None:
    page = shown(tab, "run=done")
    page.get_by_role("button", name="Copy: Use its model on new rows").click()
    assert page.evaluate("navigator.clipboard.readText()").endswith("done rows.csv")
    page.locator("#figure-losses[data-drawn]").wait_for()
    with page.expect_download() as saved:
        page.locator("#figure-losses").get_by_role("button", name="SVG").click()
    assert saved.value.suggested_filename == "losses.svg"
    assert tab.said == []


def test_links_lead_the_focus_and_leave_what_is_shown(tab: Opened) -> None:
    page = shown(tab, "")
    page.locator('tr[data-run="done"] a').focus()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'detail'")
    for name, place in (("To the runs", "runs"), ("To what was chosen", "detail")):
        page.get_by_role("link", name=name).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == place
        assert page.evaluate("location.hash") == "#run=done"
    page.get_by_role("button", name="Close").press("Enter")
    assert page.evaluate("document.activeElement.id") == "runs"
    page.locator("#detail").wait_for(state="hidden")
    assert tab.said == []


def test_accuracies_are_percentages_as_in_a_terminal(tab: Opened) -> None:
    cell = tab.page.locator('tr[data-run="done"] td').nth(7)
    assert re.fullmatch(r"accuracy \d+\.\d %", cell.text_content() or "")


# the front


def value_at(page: Page, run: str) -> list[float]:
    """Where a point of the front is drawn."""
    told: str = page.evaluate(
        "run => JSON.stringify(document.querySelector('#front-plot').data.filter(one => one.mode === 'markers')"
        ".flatMap(one => one.customdata.map((id, i) => [id, one.x[i], one.y[i]])).find(([id]) => id === run).slice(1))",
        run,
    )
    return [float(value) for value in json.loads(told)]


def test_a_slider_replays_the_front(tab: Opened) -> None:
    page = shown(tab, "")
    page.get_by_role("link", name="Explore the front").click()
    page.locator("#front-plot .point").first.wait_for()
    slider = page.get_by_role("slider", name="Round")
    assert slider.input_value() == "50"  # along the path: each of five points begins where the one before it ended
    ends = (0.45, 0.45)  # of the point in the middle
    assert value_at(page, "preference-2") == pytest.approx(list(line_of(10, ends=ends)["losses"].values()), rel=1e-4)
    slider.fill("25")
    slider.press("ArrowLeft")
    until(page, "document.querySelector('#front-plot').dataset.round === '24'")  # the fourth round of the third point
    assert value_at(page, "preference-2") == pytest.approx(list(line_of(4, ends=ends)["losses"].values()), rel=1e-4)
    assert page.locator("#front-said").text_content() == "24 of 50"
    assert page.evaluate(MARKS) == 3  # the other two have not begun
    page.get_by_role("button", name="Replay").click()
    until(page, "document.querySelector('#front-plot').dataset.round === '50'")
    assert page.evaluate(MARKS) == 5
    page.get_by_role("button", name="Replay").wait_for()  # it has stopped by itself
    assert tab.said == []


def test_a_click_shows_a_point_with_its_weights_clients_and_model(tab: Opened) -> None:
    page = shown(tab, "front=front")
    page.locator("#front-plot .point").first.wait_for()
    place = page.evaluate(
        "run => { const plot = document.querySelector('#front-plot'); const {xaxis, yaxis} = plot._fullLayout;"
        " const trace = plot.data.find(one => one.mode === 'markers' && one.customdata.includes(run));"
        " const i = trace.customdata.indexOf(run); const box = plot.getBoundingClientRect();"
        " return [box.x + xaxis._offset + xaxis.d2p(trace.x[i]), box.y + yaxis._offset + yaxis.d2p(trace.y[i])]; }",
        "preference-1",
    )
    page.mouse.move(*place)
    page.mouse.click(*place)
    point = page.locator("#front-point")
    point.get_by_role("link", name="preference-1").wait_for()
    assert (page.locator("#front-model").text_content() or "").endswith("front/preference-1/model.safetensors")
    assert point.locator("code", has_text="polyfed predict").count() == 1
    weights = point.get_by_role("region", name="After its round 10").locator("tbody tr").all_text_contents()
    assert [text.startswith(name) for text, name in zip(weights, ("left0.250.5", "right0.750.5"), strict=True)] == [
        True,
        True,
    ]
    point.get_by_text("7 clients were asked").wait_for()
    assert page.get_by_role("slider", name="left").input_value() == "33"  # the preferences follow
    assert tab.said == []


def test_preferences_lead_to_the_nearest_point(tab: Opened) -> None:
    page = shown(tab, "front=front")
    point = page.locator("#front-point")
    point.get_by_role("link", name="preference-2").wait_for()  # both alike: the middle
    page.get_by_role("slider", name="right").fill("0")
    point.get_by_role("link", name="preference-4").wait_for()
    assert "--pick left=1" in (point.locator("code", has_text="--pick").text_content() or "")
    page.get_by_role("slider", name="right").fill("100")
    page.get_by_role("slider", name="left").fill("0")
    point.get_by_role("link", name="preference-0").wait_for()
    page.get_by_text("All points as a table").click()
    page.get_by_role("button", name="left 0.75, right 0.25").click()  # without a mouse
    point.get_by_role("link", name="preference-3").wait_for()
    assert tab.said == []


def test_objectives_may_be_called_as_what_every_object_has(tmp_path: Path, open_page: Open) -> None:
    write_front(tmp_path / "runs" / "f", points=3, rounds=3, objectives=("constructor", "__proto__"))
    with served(tmp_path / "runs") as server:
        opened = open_page(f"{server.url}#front=f")
        until(opened.page, "(document.querySelector('#front-plot')?.data || []).length >= 3")
        opened.page.get_by_role("slider", name="constructor").fill("0")
        assert opened.page.locator("#front-point").get_by_role("link", name="preference-0").count() == 1
        opened.page.evaluate(
            "location.hash = new URLSearchParams([['run', 'f/preference-0'], ['run', 'f/preference-1']])"
        )
        assert len(drawn(opened.page, "losses")) == 4
        assert opened.said == []


def test_a_front_of_many_objectives_is_drawn_by_all_of_them_or_two(tmp_path: Path, open_page: Open) -> None:
    write_front(tmp_path / "runs" / "f", points=4, rounds=3, objectives=("a", "b", "c", "d", "e"))
    with served(tmp_path / "runs") as server:
        opened = open_page(f"{server.url}#front=f")
        page = opened.page
        until(page, "(document.querySelector('#front-plot')?.data || []).length === 4")
        page.get_by_role("button", name="All objectives at once").click()
        page.get_by_label("across").select_option("c")
        until(page, "document.querySelector('#front-plot').layout.xaxis.title.text === 'loss: c'")
        assert opened.said == []


# what must not happen


def test_names_cannot_inject_script(tmp_path: Path, open_page: Open) -> None:
    root = tmp_path / "runs"
    names = (HOSTILE, "</script><script>window.broken=1</script>")
    run = write_run(
        root / f"a{HOSTILE}".replace("/", "-"), 3, True, names, name=HOSTILE, algorithm={"name": HOSTILE, HOSTILE: 1}
    )
    failure = {"client": 1, "name": HOSTILE, "why": HOSTILE}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line_of(4, names), "failures": [failure]}) + "\n")
    clients = {"round": 4, "split": HOSTILE, "names": [HOSTILE], "clients": {HOSTILE: {"loss": [0.5]}}}
    (run / "clients.jsonl").write_text(json.dumps(clients) + "\n")
    broken = write_run(root / "b", 1, data={"name": HOSTILE}, engine={"name": HOSTILE})
    (broken / "result.json").write_text(f'{{"{HOSTILE}')
    front = write_front(root / "f<b onmouseover=window.broken=1>", 3, 2, names)
    told = json.loads((front / "front.json").read_text())
    told["points"][0] |= {"state": "failed", "why": HOSTILE, "kind": HOSTILE, "metrics": {HOSTILE: {HOSTILE: 1}}}
    (front / "front.json").write_text(json.dumps({**told, "state": HOSTILE, "split": HOSTILE}))
    with served(root) as server:
        opened = open_page(server.url)
        page = opened.page
        rows = page.locator("#list tbody tr[data-run]")
        rows.first.wait_for()
        for box in page.locator("#list tbody tr[data-run] input").all():
            box.check()
        page.get_by_role("heading", name="runs compared").wait_for()
        page.locator("#figure-losses[data-drawn]").wait_for()
        page.evaluate("polyfedFigures.drawAll()")
        page.locator("#list tbody tr[data-run] a").first.click()
        page.locator("#figure-losses[data-drawn]").wait_for()
        page.evaluate("polyfedFigures.drawAll()")
        page.get_by_role("link", name="Explore the front").click()
        page.locator("#front-plot .point").first.wait_for()
        page.get_by_text("All points as a table").click()
        page.locator("#front-point table").first.wait_for()
        assert page.evaluate("window.broken") is None
        assert page.locator("img").count() == 0
        assert page.locator("b[onmouseover]").count() == 0
        assert opened.said == []


def test_another_sites_page_gets_nothing(server: Served, tmp_path: Path, open_page: Open) -> None:
    (tmp_path / "evil").mkdir()
    opened = open_page("about:blank")
    page = opened.page
    page.route("http://evil.example/**", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html"))
    page.goto("http://evil.example/")
    told = page.evaluate(
        "async url => { try { return await (await fetch(url)).text(); } catch (error) { return 'refused'; } }",
        f"{server.url}api/runs?run=done",
    )
    assert told == "refused"
    frame = "url => document.body.append(Object.assign(document.createElement('iframe'), {src: url}))"
    page.evaluate(frame, server.url)
    page.wait_for_timeout(300)
    assert not any("Runs" in frame.content() for frame in page.frames[1:] if "chrome-error" not in frame.url)


def test_a_token_opens_the_page_once_for_all(tmp_path: Path, open_page: Open) -> None:
    write_run(tmp_path / "runs" / "a", rounds=2)
    with served(tmp_path / "runs", host="0.0.0.0") as server:
        stranger = open_page(server.url)
        assert "token is needed" in (stranger.page.locator("body").text_content() or "")
        opened = open_page(f"{server.url}?token={server.view.door.token}")
        opened.page.locator('tr[data-run="a"]').wait_for()
        assert "token" not in opened.page.url
        assert opened.page.evaluate("document.cookie") == ""  # no script reads it
        assert opened.said == []  # before the next page ends this one's stream of events, of which a browser may speak
        opened.page.goto(server.url)
        opened.page.locator('tr[data-run="a"]').wait_for()


# for everybody


def test_everything_has_a_name_and_the_keyboard_is_enough(server: Served, open_page: Open) -> None:
    opened = open_page(f"{server.url}#run=done")
    page = opened.page
    page.locator("#figure-losses[data-drawn]").wait_for()
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, a[href], input, select, [role=img], [role=region], progress')]
        .filter(one => one.offsetParent && !(one.getAttribute('aria-label') || one.textContent.trim() || one.title
            || (one.labels && [...one.labels].some(label => label.textContent.trim())))).map(one => one.outerHTML)"""
    )
    assert nameless == []
    tree = page.locator("body").aria_snapshot()
    assert 'img "Losses. ' in tree
    assert 'region "List of runs"' in tree
    assert 'checkbox "Choose done" [checked]' in tree
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the runs"
    page.get_by_label("Search runs").focus()
    page.keyboard.type("other")
    page.get_by_role("checkbox", name="Choose other", exact=True).focus()
    page.keyboard.press("Space")
    page.get_by_role("heading", name="2 runs compared").wait_for()


def test_light_and_dark(server: Served, open_page: Open) -> None:
    opened = open_page(f"{server.url}#run=done")
    page = opened.page
    page.locator("#figure-losses[data-drawn]").wait_for()
    inked = f"{LOSSES}.layout.font.color"

    def dark() -> bool:
        told: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in told[4:-1].split(",")) < 300

    assert not dark()
    ink = page.evaluate(inked)
    page.emulate_media(color_scheme="dark")
    assert dark()
    until(page, f"{inked} !== '{ink}'")  # the figures follow
    page.get_by_role("button", name="Dark").click()
    assert not dark()
    page.reload()  # the choice is kept
    page.locator("#figure-losses[data-drawn]").wait_for()
    assert not dark()
    assert opened.said == []


def test_a_hidden_page_does_not_listen(server: Served, open_page: Open) -> None:
    opened = open_page(server.url)
    page = opened.page
    page.locator('tr[data-run="done"]').wait_for()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert page.locator("#live").text_content() == "paused"


def test_a_server_that_went_is_said(tmp_path: Path, open_page: Open) -> None:
    write_run(tmp_path / "runs" / "a", rounds=1)
    with served(tmp_path / "runs") as server:
        opened = open_page(server.url)
        opened.page.locator('tr[data-run="a"]').wait_for()
    opened.page.locator("#live[data-state=lost]").wait_for()
    assert opened.page.locator('tr[data-run="a"]').count() == 1
