"""The pictures of docs/gallery.md, from real runs: trains what is missing, then draws all of them.

python tools/gallery.py --runs=/tmp/gallery/runs    # about ten minutes on two cores

Needs polyfed with the extras report, view and front, Debian's chromium (`make browser`) with Playwright, and
Fashion-MNIST in the folder that POLYFED_DATA names.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from polyfed.report.drawing import draw
from polyfed.report.figures import figures_of
from polyfed.report.records import find
from polyfed.report.thinning import thinned

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OUT = Path(__file__).parents[1] / "docs" / "gallery"
MEASURED = "--set evaluate.every=2 --set evaluate.per_client=true --set evaluate.improved=true"
CLOTHES = (
    "--set data.name=fashion-attributes --set data.objectives=nine --set model.hidden=[32] --set algorithm.lr=0.1 "
    "--set algorithm.server_lr=1 --set evaluate.every=10"
)
EIGHT = "--set model.hidden=[8] --set algorithm.batch_size=0 --set evaluate.every=5"
ATTACK = "attacks=[{name='misreport', clients=[3, 7], factor=1000.0}]"
RUNS = {  # by folder; the page shows the same commands
    "compare-two-digits": f"compare two-digits --algorithms fedcmoo,fsmgda,fedavg,fedmgda+ --seeds 5 {MEASURED}",
    "compare-clothes": f"compare two-digits --algorithms fedcmoo,fsmgda,fedavg --seeds 1 --rounds 80 {CLOTHES}",
    "front-two-digits": f"front two-digits --method both --first-rounds 150 {EIGHT}",
    "front-vlmop1": "front quadratic --method both --rounds 40 --set data.name=vlmop1",
    "many-tasks": "run many-tasks",
    "many-models": "run many-models",
    "attacked": f'run two-digits --rounds 40 --set data.clients=30 --set faults.drop=0.1 --set "{ATTACK}"',
}


class Picture(NamedTuple):
    """A figure of a run: its file, the run's folder, the figure's key, its horizontal axis, and how fine it is."""

    file: str
    run: str
    key: str
    x: str = ""
    dots: int = 220
    colours: int = 128


PICTURES = (
    Picture("losses-bytes", "compare-two-digits", "losses", "bytes_up"),
    Picture("compared", "compare-two-digits", "compared-accuracy"),
    Picture("clients", "compare-two-digits", "clients-accuracy-last"),
    Picture("radar", "compare-clothes", "radar"),
    Picture("weights", "compare-clothes", "weights", dots=150, colours=48),
    Picture("front-digits", "front-two-digits", "front"),
    Picture("front-vlmop1", "front-vlmop1", "front"),
    Picture("omega", "many-tasks", "omega", colours=255),
    Picture("models", "many-models", "losses"),
    Picture("failures", "attacked", "failures"),
)


def main() -> None:
    """Train, draw, open the pages, and say how large all of it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("gallery/runs"), help="where the runs are, or will be")
    parser.add_argument("--only", default="", help="pictures whose names begin so")
    asked = parser.parse_args()
    asked.runs = asked.runs.resolve()
    OUT.mkdir(exist_ok=True)
    for folder, words in RUNS.items():
        train(asked.runs / folder, words)
    for picture in PICTURES:
        if picture.file.startswith(asked.only):
            drawn(picture, asked.runs)
    if "page".startswith(asked.only) or asked.only.startswith("page"):
        screens(asked.runs)
    sizes = {path.name: path.stat().st_size for path in sorted(OUT.glob("*.png"))}
    for name, size in sizes.items():
        print(f"{size / 1000:7.1f} kB  {name}")
    print(f"{sum(sizes.values()) / 1000:7.1f} kB in all")


def train(folder: Path, words: str) -> None:
    """Run a command of the gallery, unless it is done."""
    done = ("result.json", "front.json", "study.json")
    if not any((folder / name).is_file() for name in done):
        subprocess.run([polyfed(), *shlex.split(words), "--out", str(folder)], check=True)


def polyfed() -> str:
    """The command of this Python's environment."""
    return str(Path(sys.executable).with_name("polyfed"))


def drawn(picture: Picture, runs: Path) -> None:
    """Write one figure as `polyfed report --png` draws it."""
    every = {figure.key: figure for figure in figures_of(find([runs / picture.run]).records)}
    data = io.BytesIO()
    draw(thinned(every[picture.key]), picture.x, title=False).savefig(data, format="png", dpi=picture.dots)
    save(data.getvalue(), picture.file, picture.colours)


def save(png: bytes, name: str, colours: int) -> None:
    """As a small file: few colours are enough for lines and letters."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    few = image.quantize(colours, method=Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE)
    few.save(OUT / f"{name}.png", optimize=True)


def screens(runs: Path) -> None:
    """The report and the live page, light and dark, as a browser shows them."""
    from playwright.sync_api import sync_playwright

    report = (runs / "report.html").resolve()
    subprocess.run([polyfed(), "report", str(runs / "compare-two-digits"), "-o", str(report)], check=True)
    path = shutil.which("chromium") or shutil.which("google-chrome")
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # chromium's sandbox refuses root
    with sync_playwright() as playwright, viewed(runs) as url:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        for scheme in ("light", "dark"):
            shot(browser, report.as_uri(), f"page-report-{scheme}", scheme, "#figure-losses", 1650)
            front = f"{url}#front=front-two-digits"
            shot(browser, front, f"page-front-{scheme}", scheme, "#front-plot")
            chosen = "&".join(f"run={run}" for run in compared(runs))
            shot(browser, f"{url}#{chosen}", f"page-view-{scheme}", scheme, "#figure-losses")
        browser.close()


def compared(runs: Path) -> list[str]:
    """The first seed's run of every method."""
    folder = runs / "compare-two-digits"
    return [f"{folder.name}/{path.name}".replace("+", "%2B") for path in sorted(folder.glob("*-seed0-*"))]


@contextmanager
def viewed(runs: Path) -> Iterator[str]:
    """`polyfed view`, and where it is."""
    words = [polyfed(), "view", runs.name, "--port", "0", "--no-open"]  # the page shows the folder as it was given
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=runs.parent) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def shot(browser: Browser, address: str, name: str, scheme: Any, wanted: str, height: int = 1000) -> None:
    """A picture of the top of a page once something is on it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": height})
    page: Page = context.new_page()
    page.goto(address)
    page.locator(wanted).first.wait_for(timeout=30_000)
    page.wait_for_timeout(4000)  # figures are drawn once they are in sight
    save(page.screenshot(), name, colours=256)
    context.close()


if __name__ == "__main__":
    main()
