"""Shared by all tests: one torch thread, a fresh directory, data in it, and both engines of every toy algorithm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from polyfed.core.code import hold_to
from polyfed.engines.local.nursery import forks_train

pytest_plugins = ["browser"]  # the fixtures of pages in a browser
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: its kernels are run by Python

FORKS = {  # tests that start workers, or kill processes, as Windows cannot
    "test_channel", "test_check_engine", "test_compare", "test_equivalences", "test_experiment", "test_local",
    "test_loop", "test_mocha_federated", "test_outside_layers", "test_pool", "test_process", "test_quantise",
    "test_runner", "test_together",
}  # fmt: skip


def starts_workers(item: pytest.Item) -> bool:
    """Whether a test, or one of its parameters, is of those above."""
    return item.path.stem in FORKS or item.get_closest_marker("forks") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if not hasattr(os, "fork") else ():
        if starts_workers(item):
            item.add_marker(pytest.mark.skip(reason="needs a system that can fork"))


@pytest.fixture(autouse=True)
def _forks(request: pytest.FixtureRequest) -> None:
    """On a machine with a GPU, tests with workers come first, or in a process of their own."""
    if torch.cuda.is_available() and starts_workers(request.node) and not forks_train():
        pytest.skip("torch cannot train in processes that are forked from this one, as it has trained")


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a fresh directory, never into the working tree; what a trial has chosen there is no other test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("polyfed.core.choices.cache", lambda: tmp_path / ".choices")


@pytest.fixture(autouse=True)
def _no_rule() -> None:
    """Each test is a process that has read no experiment yet."""
    hold_to(None)


@pytest.fixture(params=["local", "wire"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty POLYFED_DATA; what is built from its files never goes to the user's cache."""
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"
