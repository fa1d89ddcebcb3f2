"""The clients' Flower app of an experiment: opens the node's own data and answers with the work every engine does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.deploy.app import To, client_app
from polyfed.deploy.warm import IDLE, Warm, possible

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    from polyfed.deploy.site import Site


def app(file: str) -> ClientApp:
    """The ClientApp of an app whose experiment lies beside `file`."""
    folder = Path(file).parent

    def answer(context: Context, to: To, message: bytes) -> bytes:
        run, node = context.run_config, context.node_config
        if possible() and node.get("keep-warm", IDLE):
            return Warm(folder, run, node).ask(to, message)
        return Sites(folder).answer(run, node, to, message)

    return client_app(answer)


class Sites:
    """A node's sites, one for each model of the experiment, opened when they are first asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: tuple[dict[str, Any], list[Site]] | None = None

    def answer(self, run: Mapping[str, Any], node: Mapping[str, Any], to: To, message: bytes) -> bytes:
        """Whatever is wrong here, a missing file, a bad setting, is an answer, too."""
        from polyfed.core.errors import PolyfedError
        from polyfed.core.messages import Reply

        try:
            return self._site(run, node, to.model).answer(to, message)
        except PolyfedError as error:
            return Reply(error=f"refused: {error}").encode()

    def _site(self, run: Mapping[str, Any], node: Mapping[str, Any], model: int) -> Site:
        from polyfed.core.errors import BadInput

        if self._opened is None or self._opened[0] != dict(run):
            self._opened = dict(run), open_sites(self.folder, run, node)
        sites = self._opened[1]
        if not 0 <= model < len(sites):
            raise BadInput(f"The experiment has {len(sites)} models; there is none at {model}.")
        return sites[model]


def open_sites(folder: Path, run: Mapping[str, Any], node: Mapping[str, Any]) -> list[Site]:
    """What the experiment and the node's configuration make of this client."""
    import torch

    from polyfed.deploy.data import own_data, who
    from polyfed.deploy.memory import DiskMemory
    from polyfed.deploy.settings import experiment
    from polyfed.deploy.site import Site
    from polyfed.experiment.building import plan as build_plan

    torch.set_num_threads(1)
    name, settings = experiment(folder, run, node)
    settings.pop("callbacks", None)  # the server's
    plan, resolved = build_plan(name, settings)
    home = Path(str(node.get("state", "~/.polyfed/clients"))).expanduser()
    tables = [table["data"] for table in resolved.get("models", {"": resolved}).values()]
    sites = []
    for i, (part, shares) in enumerate(zip(plan.parts.values(), tables, strict=True)):
        data = own_data(node, part.federation, part.problem.names, shares, plan.seed)
        memory = partial(DiskMemory.of, home, model=i)
        sites.append(Site(who(node), part.problem, data, plan.layers, memory))
    return sites
