"""`polyfed view`: runs as a page that is alive."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.common import errors_as_sentences
from polyfed.core.errors import BadInput

if TYPE_CHECKING:
    from polyfed.view.access import Door

PORT = 8181
HOST = "The address to listen at; for another than this machine's own, who has no token does not get in."


def view(
    folder: Annotated[Path, typer.Argument(help="A folder that holds runs, at any depth.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Where the page is; 0 for a free one.", min=0, max=65535)] = PORT,
    host: Annotated[str, typer.Option(help=HOST)] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Look at runs in a browser while they go on, compare them, explore a front. The page only reads."""
    with errors_as_sentences():
        _check_extra()
        from polyfed.view.serving import serve

        serve(folder, host, port, lambda door: _ready(folder, door, open_))


def _check_extra() -> None:
    missing = [name for name in ("starlette", "uvicorn", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInput(f"polyfed view needs {' and '.join(missing)}: pip install 'polyfed[view]'.")


def _ready(folder: Path, door: Door, open_: bool) -> None:
    print(f"polyfed view of {folder}: {door.url}", flush=True)
    if door.token:
        print(
            "Whoever has this address with its token can read the runs of the folder; nobody else can.", file=sys.stderr
        )
    print("Ctrl-C ends it; runs go on.", file=sys.stderr)
    if open_ and _has_screen():
        import threading
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(door.url,), daemon=True).start()  # it may take its time


def _has_screen() -> bool:
    """Whether a browser has windows; on a server it would be one of text, in this very terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
