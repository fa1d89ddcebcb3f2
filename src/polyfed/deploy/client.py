"""The clients' Flower app of an experiment: opens the node's own data and answers with the work every engine does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.deploy.app import To, client_app

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    from polyfed.deploy.site import Site


def app(file: str) -> ClientApp:
    """The ClientApp of an app whose experiment lies beside `file`."""
    sites = Sites(Path(file).parent)

    def answer(context: Context, to: To, message: bytes) -> bytes:
        return sites.answer(context.run_config, context.node_config, to, message)

    return client_app(answer)


class Sites:
    """A node's sites, one for each model of the experiment, opened when they are first asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: tuple[dict[str, Any], list[Site]] | None = None

    def answer(self, run: Mapping[str, Any], node: Mapping[str, Any], to: To, message: bytes) -> bytes:
        """Whatever is wrong here, a missing file, a bad setting, is an answer, too."""
        from polyfed.errors import PolyfedError
        from polyfed.messages import Reply

        try:
            return self._site(run, node, to.model).answer(to, message)
        except PolyfedError as error:
            return Reply(error=f"refused: {error}").encode()

    def _site(self, run: Mapping[str, Any], node: Mapping[str, Any], model: int) -> Site:
        from polyfed.errors import BadInput

        if self._opened is None or self._opened[0] != dict(run):
            self._opened = dict(run), open_sites(self.folder, run, node)
        sites = self._opened[1]
        if not 0 <= model < len(sites):
            raise BadInput(f"The experiment has {len(sites)} models; there is none at {model}.")
        return sites[model]


def open_sites(folder: Path, run: Mapping[str, Any], node: Mapping[str, Any]) -> list[Site]:
    """What the experiment and the node's configuration make of this client."""
    import torch

    from polyfed import experiment as ex
    from polyfed.deploy.data import own_data, who
    from polyfed.deploy.here import Client, standing
    from polyfed.deploy.memory import DiskMemory
    from polyfed.deploy.settings import experiment
    from polyfed.deploy.site import Site

    torch.set_num_threads(1)
    name, settings = experiment(folder, run)
    plan, _ = ex.plan(name, settings)
    place = Client()
    with standing(place):
        plan.engine()
    home = Path(str(node.get("state", "~/.polyfed/clients"))).expanduser()
    sites = []
    for i, part in enumerate(place.parts):
        data = own_data(node, part.federation, part.problem.names, plan.seed)
        memory = lambda run, name, model=i: DiskMemory.of(home, run, f"{name}.{model}")  # noqa: E731
        sites.append(Site(who(node), part.problem, data, part.wrappers, memory))
    return sites
