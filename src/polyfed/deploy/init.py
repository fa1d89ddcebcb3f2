"""`polyfed flower init`: a Flower app that runs an experiment, ready for `flwr run`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from polyfed.core.errors import BadInput
from polyfed.deploy.proxy import NEAR, SUPERLINK, Address, write_proxy

PACKAGE = "federation"
ADDRESS = "federation.example.org:9092"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
{description}
dependencies = ["polyfed[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "polyfed"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]       # flwr run . -c 'rounds=5 set="algorithm.lr=0.1; seed=1"'
experiment = "experiment.toml"
{out}   # the run's directory, at the SuperLink; a run that stopped there goes on
rounds = 0                   # 0: as the experiment says
set = ""                     # changes to the experiment, KEY=VALUE; KEY=VALUE
{allow}              # installed packages whose code the server may use; a node's own list is in its --node-config
timeout = 600.0              # seconds an exchange may take; who is late is missing from the round
min-replies = 1              # replies without which the run stops, to be resumed
wait = 120.0                 # seconds the clients have to appear in, at the start
bind = true                  # a name stays with the key that had it first; false for trials without keys
roster = ""                  # a file at the SuperLink that says who may take part: see README.md
"""

SERVER = '''"""The server: starts the run, or goes on with it."""

from polyfed.deploy.server import app as server_app

app = server_app(__file__)
'''

CLIENT = '''"""A client: opens its own data and does the work that it is asked for."""

from polyfed.deploy.client import app as client_app

app = client_app(__file__)
'''

README = """\
# {name}

The experiment `{package}/experiment.toml` as a Flower app, made by `polyfed flower init`.
Install `polyfed[flower]` on the server's machine and on every client's. Commands are for this directory.

Each SuperNode opens its own data, which its `--node-config` names:

| node config | data |
|---|---|
| `name="clinic-a" data="/data/rows.npz"` | `x` and an array per objective; `test_x`, ...: rows kept aside |
| `name="clinic-a" data="package.module:function"` | a function that returns `(x, {{objective: target}})` |
{trial_row}
A client keeps its number and its memory under its name; `state="/var/lib/polyfed"` says where that memory is kept
(default `~/.polyfed/clients`). The server waits for as many clients as the experiment has ({clients}).

## On one machine, to try it

Insecure, on loopback only; `.flwr/config.toml` knows the SuperLink as `loop`. SuperNodes have no keys of their own
here that names could be bound to (`bind=false`).

```
export FLWR_HOME="$PWD/.flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.05
flower-superlink --insecure --isolation subprocess --disable-runtime-dependency-installation \\
    --host 127.0.0.1 --port {superlink} --database trial.db &
{nodes}flwr run . loop --stream -c 'bind=false'
```

## Across machines

The SuperLink has one port for SuperNodes, for `flwr run` and for `flwr supernode register`, and no passwords: whoever
reaches it can run code at the server. So it stays on loopback, and nginx forwards to it the calls that SuperNodes make
at {address}, and no other. You work on the server's machine (or over `ssh`). At the server, once:

```
apt-get install nginx openssl openssh-client     # Debian's packages
sh proxy/certificates.sh                          # a CA and a certificate for {host}
```

then, each time:

```
export FLWR_HOME="$PWD/.flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.05
flower-superlink --isolation subprocess --disable-runtime-dependency-installation --database state.db \\
    --host 127.0.0.1 --port {superlink} --enable-supernode-auth --ssl-ca-certfile proxy/ca.crt \\
    --ssl-certfile proxy/server.pem --ssl-keyfile proxy/server.key &
nginx -p "$PWD/proxy" -c nginx.conf
```

{node_files}. At each client, once:
{node_request}.

```
ssh-keygen -q -t ecdsa -b 384 -N "" -f clinic-a
{node_make}```

The operator registers each key under the client's name. No other key can have that name, and who is not registered
is refused:

```
flwr supernode register clinic-a.pub federation --name clinic-a
{node_sign}```

Each client:

```
{node_proxy}flower-supernode --superlink {reached} --root-certificates {root} --auth-supernode-private-key clinic-a \\
    --node-config 'name="clinic-a" data="/data/rows.npz"'
```

And the operator:

```
flwr run . federation --stream
polyfed flower check .                            # from outside: is anything open that should not be?
```

Who may take part can also be a file at the server, `-c 'roster="/path/roster.toml"'`: a table for each client, with its
key (a `.pub` file, or what `ssh-keygen -lf` shows) or its number at Flower, and the most examples it may say it has:

```toml
[clinic-a]
key = "clinic-a.pub"
examples = 1200
```

Flower brings this app's code to the clients, who run it: they trust you with that. docs/security.md of polyfed says who
sees what, and what is not protected.

## When something stops

`flwr run .` again goes on from the last round in `out`. A SuperNode that was restarted with its key is the same client
again; one that was killed is let in again after a minute, when Flower has missed it. A SuperLink that was restarted
with its `--database` knows its SuperNodes again. Which key has which name is in `names.json` of the run; a client that
got a new key can be given its name there.
"""

TRIAL_ROW = """\
| `partition-id=0` | for trials: a part of the experiment's own data |
"""

CONFIG = """\
[superlink]
default = "federation"

[superlink.loop]
address = "127.0.0.1:{superlink}"
insecure = true

[superlink.federation]
address = "127.0.0.1:{superlink}"
{ca}

[superlink.outside]        # as SuperNodes reach it, for polyfed flower check
address = "{address}"
{ca}
"""

IGNORED = """\
# not for the clients, whom Flower sends all the rest
.flwr/
proxy/
runs/
roster.toml
*.db
*.pub
*.csr
*.pem
*.npz
"""


@dataclass(frozen=True)
class Shape:
    """What the README depends on: how many clients there are, and whether the data are only theirs."""

    clients: int
    own_data: bool


def init(
    folder: Path,
    experiment: str,
    allow_code: Sequence[str] = (),
    *,
    address: str = ADDRESS,
    client_certificates: bool = False,
) -> None:
    """Write the app of an experiment into a new folder; the experiment is checked first.

    Args:
        folder: new, or empty.
        experiment: a file, or a built-in name.
        allow_code: installed packages whose code the experiment may name.
        address: HOST:PORT at which SuperNodes find the federation's proxy.
        client_certificates: whether that proxy asks for certificates, too.
    """
    from polyfed.experiment.building import plan as build_plan
    from polyfed.experiment.reading import builtin, read
    from polyfed.run.plan import pool_size

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists already; choose a directory that is new or empty.")
    name, settings = read(experiment, allow_code)
    settings["engine"] = {"name": "flower", "address": "superlink"}
    reached = Address.of(address)
    plan, resolved = build_plan(name, settings)
    source = builtin().get(experiment, Path(experiment))
    own = any(table["data"]["name"] == "nodes" for table in resolved.get("models", {"": resolved}).values())
    _write(folder, name, source, allow_code)
    _write_around(folder, Shape(pool_size(plan.parts), own), reached, client_certificates)
    for module in _modules(settings):
        if (source.parent / f"{module}.py").is_file():
            shutil.copy(source.parent / f"{module}.py", folder / PACKAGE)


def _write(folder: Path, name: str, source: Path, allow_code: Sequence[str]) -> None:
    """The app itself, which Flower brings to the clients."""
    lines = {
        "description": f"The experiment {name} as a Flower app.", "out": str(folder.absolute() / "runs" / name),
        "allow-code": ",".join(allow_code),
    }  # fmt: skip
    table = {key.removesuffix("-code"): tomli_w.dumps({key: value}).strip() for key, value in lines.items()}
    (folder / PACKAGE).mkdir(parents=True)
    _text(folder / "pyproject.toml", PYPROJECT.format(name=_name(folder), package=PACKAGE, **table))
    (folder / PACKAGE / "__init__.py").touch()
    _text(folder / PACKAGE / "server.py", SERVER)
    _text(folder / PACKAGE / "client.py", CLIENT)
    shutil.copy(source, folder / PACKAGE / "experiment.toml")


def _write_around(folder: Path, shape: Shape, address: Address, client_certificates: bool) -> None:
    """What the operator needs: the README, Flower's connections, the proxy."""
    if client_certificates:
        more = {
            "node_files": "Send each client `proxy/ca.crt`, `proxy/node.conf` and `proxy/node.sh`",
            "node_request": "make a key and the request for a certificate, and send `clinic-a.pub` and `clinic-a.csr` "
            "to the\noperator, who sends `clinic-a.pem` back: keep it as `node.pem`. Private keys stay where they are",
            "node_make": "sh node.sh clinic-a\n", "node_sign": "sh proxy/certificates.sh clinic-a.csr\n",
            "node_proxy": 'nginx -p "$PWD" -c node.conf\n', "reached": f"127.0.0.1:{NEAR}", "root": "near.pem",
        }  # fmt: skip
    else:
        more = {
            "node_files": "Send each client `proxy/ca.crt`",
            "node_request": "make a key, and send `clinic-a.pub` to the operator",
            "node_make": "", "node_sign": "", "node_proxy": "", "reached": str(address), "root": "ca.crt",
        }  # fmt: skip
    text = README.format(
        name=_name(folder), package=PACKAGE, clients=shape.clients, nodes=_commands(shape),
        trial_row="" if shape.own_data else TRIAL_ROW, address=address, host=address.host, superlink=SUPERLINK, **more,
    )  # fmt: skip
    _text(folder / "README.md", text)
    _text(folder / ".gitignore", IGNORED)
    (folder / ".flwr").mkdir()
    ca = tomli_w.dumps({"root-certificates": str(folder.absolute() / "proxy" / "ca.crt")}).strip()
    _text(folder / ".flwr" / "config.toml", CONFIG.format(superlink=SUPERLINK, address=address, ca=ca))
    write_proxy(folder / "proxy", address, client_certificates)


def _name(folder: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"


def _text(path: Path, text: str) -> None:
    """The same bytes on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


def _commands(shape: Shape, most: int = 3) -> str:
    line = "flower-supernode --insecure --superlink 127.0.0.1:{} --port {} --node-config '{}' &\n"
    own = 'name="{0}" data="/data/{0}.npz"' if shape.own_data else "partition-id={0}"
    shown = "".join(line.format(SUPERLINK, 9094 + i, own.format(i)) for i in range(min(shape.clients, most)))
    return shown + (
        f"# and so on, {shape.clients} in all, each with a port of its own\n" if shape.clients > most else ""
    )


def _modules(settings: dict[str, Any]) -> list[str]:
    """Modules of the user's own that an experiment names as 'module:function'."""
    values = [value for key, value in settings.items() if isinstance(value, str) and key == "name"]
    tables = [table for table in settings.values() if isinstance(table, dict)]
    found = [value.partition(":")[0] for value in values if ":" in value]
    return [*found, *(module for table in tables for module in _modules(table))]
