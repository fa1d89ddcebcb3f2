"""`polyfed flower init`: a Flower app that runs an experiment, ready for `flwr run`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput

PACKAGE = "federation"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "The experiment {experiment} as a Flower app."
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
out = '{out}'   # the run's directory, at the SuperLink; a run that stopped there goes on
rounds = 0                   # 0: as the experiment says
set = ""                     # changes to the experiment, KEY=VALUE; KEY=VALUE
timeout = 600.0              # seconds an exchange may take; who is late is missing from the round
min-replies = 1              # replies without which the run stops, to be resumed
wait = 120.0                 # seconds the clients have to appear in, at the start
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
Install `polyfed[flower]` on the server's machine and on every client's.

Each SuperNode opens its own data, which its `--node-config` names:

| node config | data |
|---|---|
| `name="clinic-a" data="/data/rows.npz"` | `x` and an array per objective; `test_x`, ...: rows kept aside |
| `name="clinic-a" data="package.module:function"` | a function that returns `(x, {{objective: target}})` |
| `partition-id=0` | for trials: a part of the experiment's own data |

A client keeps its number and its memory under its name; `state="/var/lib/polyfed"` says where that memory is kept
(default `~/.polyfed/clients`). The server waits for as many clients as the experiment has ({clients}).

## On one machine, to try it

Insecure, on loopback only. In `$FLWR_HOME/config.toml`:

```toml
[superlink]
default = "loop"
[superlink.loop]
address = "127.0.0.1:8000"
insecure = true
```

```
export FLWR_HOME=$PWD/.flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.05
flower-superlink --insecure --isolation subprocess --disable-runtime-dependency-installation \\
    --host 127.0.0.1 --port 8000 --database state.db &
{nodes}flwr run . loop --stream
```

## Across machines, with TLS and authenticated SuperNodes

Make a certificate for the SuperLink's host, signed by a CA of yours, and an ECDSA key for each SuperNode
(`ssh-keygen -t ecdsa -b 384 -N "" -f clinic-a`). At the server:

```
flower-superlink --isolation subprocess --disable-runtime-dependency-installation --database state.db \\
    --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key --enable-supernode-auth
flwr supernode register clinic-a.pub clinic-a       # once for each; who is not registered is refused
flwr run . --stream
```

with `root-certificates = "ca.crt"` instead of `insecure = true` in `config.toml`. At each client:

```
flower-supernode --superlink SERVER:8000 --root-certificates ca.crt --auth-supernode-private-key clinic-a \\
    --node-config 'name="clinic-a" data="/data/rows.npz"'
```

## When something stops

`flwr run .` again goes on from the last round in `out`. A SuperNode that was restarted is the same client again, by its
name. A SuperLink that was restarted with its `--database` knows its SuperNodes again.
"""


def init(folder: Path, experiment: str) -> None:
    """Write the app of an experiment into a new folder; the experiment is checked first."""
    from polyfed.experiment.building import plan as build_plan
    from polyfed.experiment.reading import builtin, read
    from polyfed.run.plan import pool_size

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists already; choose a directory that is new or empty.")
    name, settings = read(experiment)
    settings["engine"] = {"name": "flower"}
    plan, _ = build_plan(name, settings)
    source = builtin().get(experiment, Path(experiment))
    _write(folder, name, source, pool_size(plan.parts))
    for module in _modules(settings):
        if (source.parent / f"{module}.py").is_file():
            shutil.copy(source.parent / f"{module}.py", folder / PACKAGE)


def _write(folder: Path, name: str, source: Path, clients: int) -> None:
    app = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"
    out = folder.absolute() / "runs" / name
    names = {"name": app, "experiment": name, "package": PACKAGE, "out": out, "clients": clients}
    (folder / PACKAGE).mkdir(parents=True)
    _text(folder / "pyproject.toml", PYPROJECT.format(**names))
    _text(folder / "README.md", README.format(nodes=_commands(clients), **names))
    (folder / PACKAGE / "__init__.py").touch()
    _text(folder / PACKAGE / "server.py", SERVER)
    _text(folder / PACKAGE / "client.py", CLIENT)
    shutil.copy(source, folder / PACKAGE / "experiment.toml")


def _text(path: Path, text: str) -> None:
    """The same bytes on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


def _commands(clients: int, most: int = 3) -> str:
    line = "flower-supernode --insecure --superlink 127.0.0.1:8000 --port {} --node-config 'partition-id={}' &\n"
    shown = "".join(line.format(9094 + i, i) for i in range(min(clients, most)))
    return shown + (f"# and so on, {clients} in all, each with a port of its own\n" if clients > most else "")


def _modules(settings: dict[str, Any]) -> list[str]:
    """Modules of the user's own that an experiment names as 'module:function'."""
    values = [value for key, value in settings.items() if isinstance(value, str) and key == "name"]
    tables = [table for table in settings.values() if isinstance(table, dict)]
    found = [value.partition(":")[0] for value in values if ":" in value]
    return [*found, *(module for table in tables for module in _modules(table))]
