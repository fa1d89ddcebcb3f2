"""The release as strangers will meet it: built, listed, installed into clean environments, and used there.

make release-check        Leaves the wheel and the sdist in dist/; all else is in a temporary folder.

Installs with uv where there is one, told to look where pip looks, else with pip; always as constraints.txt says.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
NOT_RELEASED = (".ci/", ".gitignore")  # the rest of what git knows is in the sdist

ALL_NAMES = "import polyfed; print(len([getattr(polyfed, name) for name in polyfed.__all__]), 'public names')"
VOLUME = "from polyfed.metrics import hypervolume; assert hypervolume([[0.5, 0.5]], [1, 1]) == 0.25"
FETCH = """
import hashlib, http.server, os, pathlib, threading
from polyfed.data.fetch import fetch
from polyfed.data.store import File, Source
os.environ.update(POLYFED_DATA="data", NO_PROXY="127.0.0.1")
pathlib.Path("offered").write_bytes(b"rows")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url, checksum = f"http://127.0.0.1:{server.server_port}/offered", "sha256:" + hashlib.sha256(b"rows").hexdigest()
fetch(Source("offered", "here", (File("got", url=url, checksum=checksum),)))
assert pathlib.Path("data/here/got").read_bytes() == b"rows"
"""
RUN = ("polyfed", "run", "two-digits", "--rounds")
EXTRAS = {  # what needs each extra: works with it; without it, ends with a sentence that names it
    "data": ("python", "-c", FETCH),
    "flower": (*RUN, "1", "--engine", "flower"),
    "front": ("python", "-c", VOLUME),
    "ray": (*RUN, "1", "--engine", "ray", "--set", "engine.workers=1"),
    "report": ("polyfed", "data", "show", "two-digits", "--out", "split.png"),
    "torchjd": (*RUN, "1", "--set", "algorithm.weighting=upgrad"),
}


class Failed(Exception):
    """A step did not hold."""


@contextmanager
def step(name: str, times: dict[str, float]) -> Iterator[None]:
    print(f"{name:<46}", end="", flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        print("FAILED", flush=True)
        raise
    times[name] = time.monotonic() - start
    print(f"{times[name]:6.1f} s", flush=True)


def run(*command: str | Path, cwd: Path = ROOT, fails: bool = False, env: dict[str, str] | None = None) -> str:
    """What a command says; stdout comes last. Failed where its end is not the expected one."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("POLYFED_DATA", "PYTHONPATH")}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, env={**inherited, **(env or {})}
    )
    said = done.stderr + done.stdout
    if (done.returncode != 0) is not fails:
        raise Failed(f"{' '.join(map(str, command))}\nended with {done.returncode} in {cwd}:\n{said}")
    return said


def where_pip_looks() -> dict[str, str]:
    """pip's settings and variables in uv's words; of several indexes the best version counts, as with pip."""
    names = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_EXTRA_INDEX_URL"}
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        if uv_name := names.get(name.rpartition(".")[2]):
            words = str(ast.literal_eval(value)).split()
            found[uv_name] = ("," if uv_name == "UV_FIND_LINKS" else " ").join(words)
    return found


class Environment:
    """A clean virtual environment, and an empty folder and cache for what is run in it."""

    def __init__(self, place: Path, name: str) -> None:
        self.path, self.folder = place / name, place / f"{name}-folder"
        self.folder.mkdir()
        self.bin = self.path / ("Scripts" if os.name == "nt" else "bin")
        run(sys.executable, "-m", "venv", *(["--without-pip"] if UV else []), self.path)

    def install(self, what: str) -> None:
        python = self.bin / "python"
        constrained = ("install", "-q", "-c", ROOT / "constraints.txt")
        if UV:
            run(UV, "pip", *constrained, "--python", python, what, cwd=self.folder, env=where_pip_looks())
        else:
            run(python, "-m", "pip", *constrained, what, cwd=self.folder)

    def run(self, program: str, *arguments: str, cwd: Path | None = None, fails: bool = False) -> str:
        env = {"XDG_CACHE_HOME": str(self.folder / "cache"), "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": str(self.path)}
        env["PATH"] = os.pathsep.join([str(self.bin), os.environ["PATH"]])  # Flower starts its own programs
        return run(self.bin / program, *arguments, cwd=cwd or self.folder, fails=fails, env=env)


def released() -> set[str]:
    """What git knows, or would if it was told: nothing that it ignores."""
    known = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return {name for name in known if (ROOT / name).is_file()}


def same(found: set[str], wanted: set[str], what: str) -> None:
    if found != wanted:
        raise Failed(f"{what} lacks {sorted(wanted - found)} and should not have {sorted(found - wanted)}.")


def check_wheel(wheel: Path, tree: set[str]) -> None:
    """The package, whole; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    files = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    package = {name.removeprefix("src/") for name in tree if name.startswith("src/polyfed/")}
    same(found, package | {f"{about}/{name}" for name in files}, wheel.name)


def check_sdist(sdist: Path, tree: set[str]) -> None:
    """All that is in git, but for what serves git and our CI alone."""
    with tarfile.open(sdist) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in found if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    same(found - made, {name for name in tree if not name.startswith(NOT_RELEASED)}, sdist.name)


def check_core(env: Environment) -> None:
    """The command line and every public name, with nothing beside the wheel and what it needs."""
    env.run("polyfed", "list")
    env.run("python", "-c", ALL_NAMES)
    first = json.loads(env.run(*RUN, "2", "--json", "--out", "run").splitlines()[-1])
    (env.folder / "run" / "result.json").unlink()  # as after a crash in the last moment
    again = json.loads(env.run("polyfed", "resume", "run", "--json").splitlines()[-1])
    if again["rounds"] != 2 or again["model_sha256"] != first["model_sha256"]:
        raise Failed(f"A run and its resumption differ: {first}, {again}")
    for extra, command in EXTRAS.items():
        if f"polyfed[{extra}]" not in (said := env.run(*command, fails=True)):
            raise Failed(f"Without the extra {extra!r}, this should name it:\n{said}")


def main() -> None:
    times: dict[str, float] = {}
    with TemporaryDirectory(prefix="polyfed-release-") as folder:
        place = Path(folder)
        with step("build the sdist, and the wheel from it", times):
            shutil.rmtree(DIST, ignore_errors=True)
            tree = released()
            for name in tree:  # a copy: no leavings of earlier builds get in
                (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / "tree" / name)
            run(sys.executable, "-m", "build", "--outdir", DIST, place / "tree")
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        with step("twine check --strict", times):
            run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        with step(f"contents of {wheel.name}", times):
            check_wheel(wheel, tree)
        with step(f"contents of {sdist.name}", times):
            check_sdist(sdist, tree)
        with step("install the wheel", times):
            core = Environment(place, "core")
            core.install(str(wheel))
        with step("use it from an empty folder", times):
            check_core(core)
        for extra, command in EXTRAS.items():
            with step(f"install and use polyfed[{extra}]", times):
                env = Environment(place, extra)
                env.install(f"polyfed[{extra}] @ {wheel.as_uri()}")
                env.run(*command)
                shutil.rmtree(env.path)
        with step("unpack the sdist and install its [dev]", times):
            with tarfile.open(sdist) as archive:
                archive.extractall(place, filter="data")
            unpacked = place / sdist.name.removesuffix(".tar.gz")
            dev = Environment(place, "dev")
            dev.install(f"polyfed[dev] @ {unpacked.as_uri()}")
        with step("the tests of the sdist", times):
            marks = "not soak and not processes"
            last = dev.run("python", "-m", "pytest", "-n", "2", "-m", marks, cwd=unpacked).splitlines()[-1]
    size = f"{wheel.stat().st_size / 1e3:.0f} and {sdist.stat().st_size / 1e3:.0f} kB"
    print(f"\n{last}\n{len(times)} steps in {sum(times.values()):.0f} s; {wheel.name} and {sdist.name}: {size}.")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"\n{failure}")
