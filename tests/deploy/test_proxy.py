"""A federation behind nginx, by the commands of the app's own README: clients train, strangers are refused.

The server is 127.0.0.2 to everybody, the SuperLink is on 127.0.0.1, and everybody has a home of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import BIN, Loopback, answers, free_port, loopback
from typer.testing import CliRunner

from polyfed.cli import app as cli

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx here: make nginx"),
    pytest.mark.skipif(not shutil.which("openssl") or not shutil.which("ssh-keygen"), reason="no openssl or OpenSSH"),
]

from polyfed.deploy import proxy  # noqa: E402
from polyfed.deploy.init import init  # noqa: E402

EXPERIMENT = """
rounds = 1
cohort = "all"
[data]
name = "nodes"
clients = 1
shape = [4]
objectives = {click = "binary"}
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""


class Federation:
    """A server's directory, clients' and strangers' homes, and the README's commands."""

    def __init__(self, folder: Path, flower: Loopback, **settings: Any) -> None:
        self.folder, self.flower, self.outside = folder, flower, f"127.0.0.2:{free_port()}"
        (folder / "experiment.toml").write_text(EXPERIMENT)
        self.app = folder / "server" / "app"
        init(self.app, str(folder / "experiment.toml"), address=self.outside, **settings)
        text = (self.app / "README.md").read_text().partition("## Across machines")[2]
        joined = text.replace("\\\n", " ")
        blocks = re.findall(r"```\n(.*?)```", joined, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        self.commands = [line.partition(" #")[0].removesuffix(" &") for line in lines]

    def command(self, start: str) -> str:
        """The README's one command that begins so."""
        found: list[str] = [line.strip() for line in self.commands if line.startswith(start)]
        found = [line for line in found if line == start] or found
        assert len(found) == 1, self.commands
        return found[0]

    def home(self, name: str) -> Path:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return home

    def env(self, name: str) -> dict[str, str]:
        home = str(self.home(name))
        return {
            **self.flower.env,
            "PATH": f"{BIN}:/usr/sbin:{os.environ['PATH']}",
            "HOME": home,
            "FLWR_HOME": f"{home}/.flwr",
        }

    def at(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, at the server or in somebody's home."""
        own = {"env": {**self.env("operator"), "FLWR_HOME": str(self.app / ".flwr")}, "cwd": self.app}
        where: Any = own if name == "server" else {"env": self.env(name), "cwd": self.home(name)}
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, **where)

    def done(self, name: str, command: str) -> str:
        ended = self.at(name, command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def start(self, name: str, what: str, command: str) -> subprocess.Popen[bytes]:
        server = name == "server"
        env = {**self.env("operator"), "FLWR_HOME": str(self.app / ".flwr")} if server else self.env(name)
        cwd = self.app if server else self.home(name)
        return self.flower.start(what, "bash", "-c", f"cd {shlex.quote(str(cwd))}; exec {command}", env=env)

    def serve(self) -> None:
        self.done("server", self.command("sh proxy/certificates.sh"))
        self.start("server", "superlink", self.command("flower-superlink"))
        self.start("server", "nginx", self.command('nginx -p "$PWD/proxy"') + " -g 'daemon off;'")
        shutil.copy(self.app / "proxy" / "ca.crt", self.flower.folder / "ca.crt")
        health = f"https://127.0.0.1:{proxy.SUPERLINK}/health"
        self.flower.until(lambda: answers(health, self.flower.folder), 60, "the SuperLink")

    def client(self, name: str, *, registered: bool = True) -> subprocess.Popen[bytes]:
        """A machine of its own: its key, its rows, the CA's certificate; its SuperNode is started."""
        home = self.home(name)
        rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
        np.savez(home / "rows.npz", x=rows, click=rows[:, 0] > 0)
        shutil.copy(self.app / "proxy" / "ca.crt", home)
        self.done(name, self.command("ssh-keygen"))
        if registered:
            shutil.copy(home / "clinic-a.pub", self.app)
            self.done("server", self.command("flwr supernode register"))
        return self.supernode(name)

    def supernode(self, name: str) -> subprocess.Popen[bytes]:
        command = self.command("flower-supernode").replace("/data/rows.npz", str(self.home(name) / "rows.npz"))
        return self.start(name, f"node-{name}", f"{command} --port {free_port()}")

    def trained(self) -> dict[str, Any]:
        self.done("server", self.command("flwr run").removesuffix(" --stream") + " -c 'timeout=100.0'")
        out = self.app / "runs" / "experiment"
        self.flower.until(lambda: (out / "result.json").is_file(), 120, "the run")
        return {
            "names": json.loads((out / "names.json").read_text()),
            "result": json.loads((out / "result.json").read_text()),
        }


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    port = free_port()
    for module in ("proxy", "init"):
        monkeypatch.setattr(f"polyfed.deploy.{module}.SUPERLINK", port)
    return port


@pytest.fixture
def federation(tmp_path: Path, port: int) -> Iterator[Federation]:
    with loopback(tmp_path / "loop") as flower:
        yield Federation(tmp_path, flower)


def test_clients_train_and_strangers_are_refused(federation: Federation, port: int) -> None:
    federation.serve()
    stranger = federation.client("stranger", registered=False)
    federation.client("clinic")
    found = federation.trained()
    assert found["result"]["failures"] == 0
    assert found["names"] == {"clinic-a": federation.done("clinic", "ssh-keygen -lf clinic-a.pub").split()[1]}
    assert stranger.wait(timeout=60) != 0
    home = federation.home("stranger")
    (home / ".flwr").mkdir(exist_ok=True)
    (home / ".flwr/config.toml").write_text(
        f'[superlink.s]\naddress = "{federation.outside}"\nroot-certificates = "{home}/ca.crt"\n'
    )
    tries = ("supernode register clinic-a.pub s", f"run {federation.app} s", "ls s", "supernode list s")
    with ThreadPoolExecutor(2) as two:
        for refused in two.map(lambda command: federation.at("stranger", f"flwr {command}"), tries):
            assert refused.returncode != 0, refused.args
            assert "403" in refused.stdout + refused.stderr, refused.stdout + refused.stderr
    assert federation.done("server", "flwr supernode list federation --format json").count("node-id") == 1
    assert len(json.loads(federation.done("server", "flwr ls federation --format json"))["runs"]) == 1
    done = CliRunner().invoke(cli, ["flower", "check", str(federation.app)])
    assert done.exit_code == 0, done.output
    assert "BAD" not in done.output
    ca = str(federation.app / "proxy" / "ca.crt")
    bare = CliRunner().invoke(
        cli, ["flower", "check", str(federation.app), "--address", f"127.0.0.1:{port}", "--ca", ca]
    )
    assert bare.exit_code == 1
    assert "BAD  OPEN: /v1/control/list-runs (answered with 200)" in bare.output


@pytest.mark.soak
def test_with_client_certificates(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    near = free_port()
    for module in ("proxy", "init"):
        monkeypatch.setattr(f"polyfed.deploy.{module}.NEAR", near)
    with loopback(tmp_path / "loop") as flower:
        federation = Federation(tmp_path, flower, client_certificates=True)
        federation.serve()
        home = federation.home("clinic")
        for name in ("ca.crt", "node.conf", "node.sh"):
            shutil.copy(federation.app / "proxy" / name, home)
        federation.done("clinic", federation.command("sh node.sh"))
        shutil.copy(home / "clinic-a.csr", federation.app)
        federation.done("server", federation.command("sh proxy/certificates.sh clinic-a.csr"))
        shutil.copy(federation.app / "clinic-a.pem", home / "node.pem")
        (own,) = [line for line in federation.commands if line.endswith("node.conf")]
        federation.start("clinic", "near", own + " -g 'daemon off;'")
        federation.client("clinic")
        assert federation.trained()["result"]["failures"] == 0
        done = CliRunner().invoke(cli, ["flower", "check", str(federation.app)])
        assert done.exit_code == 0, done.output
        assert "client certificates: asked for" in done.output


def test_both_configurations_are_nginxs(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    init(tmp_path / "app", str(tmp_path / "experiment.toml"), address="127.0.0.2:9092", client_certificates=True)
    proxy = tmp_path / "app" / "proxy"
    for command in ("sh certificates.sh", "sh node.sh node", "sh certificates.sh node.csr"):
        subprocess.run(command.split(), cwd=proxy, check=True)
    for name in ("nginx.conf", "node.conf"):
        words = [str(NGINX), "-p", str(tmp_path / "app" / "proxy"), "-c", name, "-t"]
        found = subprocess.run(words, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
    assert "ssl_verify_client on;" in (tmp_path / "app/proxy/nginx.conf").read_text()
