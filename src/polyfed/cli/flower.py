"""`polyfed flower`: a federation across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import AllowCode, errors_as_sentences

flower_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Deploy an experiment on Flower, across machines."
)


@flower_app.callback()
def flower() -> None:
    """Deploy an experiment on Flower, across machines."""


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory for the app.")],
    experiment: Annotated[str, typer.Option(help="A TOML file, or a built-in name.")] = "two-digits",
    allow_code: AllowCode = None,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where SuperNodes find the federation: the proxy's address.")
    ] = "federation.example.org:9092",
    client_certificates: Annotated[
        bool, typer.Option("--client-certificates", help="Have the proxy ask SuperNodes for certificates, too.")
    ] = False,
) -> None:
    """Write a Flower app that runs an experiment: 'flwr run DIR' takes it, and its README says the rest."""
    from polyfed.deploy.init import init as write

    with errors_as_sentences():
        write(folder, experiment, allow_code or (), address=address, client_certificates=client_certificates)
        print(f"{folder} is ready: its README.md says how to start SuperLink, SuperNodes and the run.")


@flower_app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of 'polyfed flower init'.")],
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Instead of the one in DIR.")] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The CA certificate, instead of the one in DIR.")
    ] = None,
) -> None:
    """Try what a stranger could at a running federation; exit code 1 where something is open that should not be."""
    with errors_as_sentences():
        from polyfed.deploy.check import check as tried

        found = list(tried(folder, address, ca))
        for one in found:
            print(f"{'ok ' if one.good else 'BAD'}  {one.text}")
    bad = sum(not one.good for one in found)
    print(f"{bad} of {len(found)} are not as they should be." if bad else f"All {len(found)} are as they should be.")
    raise typer.Exit(1 if bad else 0)
