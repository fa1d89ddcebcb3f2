"""Who is a client and who is not: introductions, names and keys, silence. Nobody who is refused costs anything."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fleets import LOCAL, MANY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed import FedAvg
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.layer import Layers
from polyfed.core.messages import BadMessage, Reply
from polyfed.core.part import Part
from polyfed.deploy.site import Site
from polyfed.experiment.building import plan as build_plan
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.testing import open_door
from small import small_federation, small_problem

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from polyfed.deploy.app import ASKED_WHO, To, client_app
from polyfed.deploy.engine import OverGrid
from polyfed.deploy.grid import InProcess as Grid
from polyfed.deploy.grid import context
from polyfed.deploy.identity import Names, Who, fingerprint, read_roster
from polyfed.deploy.payload import to_array
from polyfed.deploy.roster import Description, Roster


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.deploy.nodes.WATCH", 0.0)


TOLD = {"key": "public_key", "name": "name", "last_activated_at": "last_activated_at"}


class Keyed(Grid):
    """Nodes that Flower tells something of: the key, the operator's name and the time that their configuration has."""

    silent: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()  # nodes that never get what they are sent

    def get_nodes(self) -> Iterator[NodeInfo]:
        for i, at in self.contexts.items():
            told: Any = {new: at.node_config[old] for old, new in TOLD.items() if old in at.node_config}
            yield NodeInfo(node_id=i, **told)

    def _push(self, message: Message) -> str:
        if message.metadata.dst_node_id in self.lost:
            self._count += 1
            return str(self._count)
        return super()._push(message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if i in self._replies]
        if any(self._replies[i].metadata.src_node_id in self.broken for i in ready):
            for i in ready:
                del self._replies[i]  # as Flower does: pulled, so it is gone
            raise KeyError("inflatable_class_registry")
        return super().pull_messages(i for i in ready if self._replies[i].metadata.src_node_id not in self.silent)


def key(i: int) -> bytes:
    return public_key_to_bytes(ec.derive_private_key(1000 + i, ec.SECP384R1()).public_key())


Says = Callable[[Context, To, bytes], bytes | None]


def app(says: Says | None = None) -> Any:
    """Six clients' app; `says` may answer for a node instead."""
    problem, federation = small_problem(), small_federation()
    sites = {str(i): Site(str(i), problem, federation.alone(i), Layers()) for i in range(6)}

    def answer(at: Context, to: To, message: bytes) -> bytes:
        own = None if says is None else says(at, to, message)
        return sites[str(at.node_config["partition-id"])].answer(to, message) if own is None else own

    return client_app(answer)


def fleet(says: Says | None = None, **more: Any) -> tuple[Door, OverGrid, Keyed]:
    grid = Keyed(app(says), [{"partition-id": i, "key": key(i)} for i in range(6)])
    return *over(grid, **more), grid


def over(grid: Grid, **more: Any) -> tuple[Door, OverGrid]:
    problem, federation = small_problem(), small_federation()
    engine = OverGrid({"": Part(problem, federation)}, Layers(), grid, **more)
    return open_door(problem, federation, engine), engine


def trained(door: Door, t: int = 1) -> Tensor:
    door.begin(t)
    x: Tensor = FedAvg(**LOCAL).round(t, small_problem().initial(), door)[0]["x"]
    return x


# -- introductions


def introduction(name: Any = "9", examples: Any = 20, holds: Any = (True, True)) -> bytes:
    made = {
        "name": torch.from_numpy(np.frombuffer(str(name).encode(errors="surrogatepass"), np.uint8).copy()),
        "examples": torch.as_tensor(examples), "holds": torch.as_tensor(holds),
    }  # fmt: skip
    return Reply(made).encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "infinitely many examples": (introduction(examples=float("inf")), "whole number"),
    "1e300 examples": (introduction(examples=torch.tensor(1e300, dtype=torch.float64)), "whole number"),
    "minus one example": (introduction(examples=-1), "whole number"),
    "more examples than anybody has": (introduction(examples=1 << 62), "whole number"),
    "a list of examples": (introduction(examples=[1, 2]), "whole number"),
    "a digit that is no number": (introduction("²"), "NFKC"),
    "5,000 digits": (introduction("9" * 5000), "printable"),
    "a name that steers a terminal": (introduction("\x1b[2J"), "printable"),
    "no text": (introduction("\ud800"), "printable"),
    "no name": (introduction(""), "printable"),
    "too many objectives": (introduction(holds=[True] * 1000), "2 objectives"),
    "objectives as numbers": (introduction(holds=[1.0, float("nan")]), "2 objectives"),
    "nothing": (Reply({}).encode(), "printable"),
    "no message": (b"PF01\xff\xff\xff\xff", "head of a message"),
    "an array of 2^63": (b'PF01\x35\x00\x00\x00{"arrays":[["name","uint8",[0,9223372036854775808]]]}', "from 0 to"),
    "an error of a million characters": (Reply(error="x" * 10**6).encode(), "xxx"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_an_introduction_that_is_no_good_is_refused_and_told_and_costs_nothing(what: str) -> None:
    hostile, why = HOSTILE[what]
    honest = trained(fleet()[0])

    def says(at: Context, to: To, message: bytes) -> bytes | None:
        return hostile if at.node_config["partition-id"] == 9 else None

    grid = Keyed(
        app(says), [{"partition-id": 9, "key": key(9)}, *({"partition-id": i, "key": key(i)} for i in range(6))]
    )
    begun = time.monotonic()
    door, engine = over(grid, timeout=30.0)
    assert torch.equal(trained(door), honest)
    assert time.monotonic() - begun < 5
    assert door.failures == []
    (told,) = engine.refusals()
    assert told.startswith(f"node 1 (key {fingerprint(key(9))}) was refused: ")
    assert why in told
    assert len(told) < 400
    assert told.isprintable()
    assert engine.refusals() == []


@given(st.dictionaries(st.sampled_from(["name", "examples", "holds", "more"]), st.one_of(
    st.binary(max_size=600).map(lambda b: torch.tensor(list(b), dtype=torch.uint8)),
    st.floats().map(torch.tensor), st.lists(st.booleans(), max_size=4).map(lambda b: torch.tensor(b, dtype=torch.bool)),
    st.integers(-(2**63), 2**63 - 1).map(torch.tensor), st.text(max_size=20).map(
        lambda t: torch.tensor(list(t.encode(errors="surrogatepass")), dtype=torch.uint8)),
)))  # fmt: skip
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_introduction_raises_anything_but_our_refusal(arrays: dict[str, Tensor]) -> None:
    try:
        found = Description.of(arrays, 2)
    except BadMessage as error:
        text = str(error)
    else:
        text = found.name
        assert 0 <= found.examples < 1 << 41
    assert text.isprintable()
    assert len(text) < 400


def test_bytes_that_flower_cannot_unpack_are_their_own_clients_failure() -> None:
    door, _, grid = fleet(timeout=30.0)
    grid.broken = frozenset({3})
    trained(door)
    assert [client for client, _ in door.failures] == [2]
    assert "Flower cannot hand it over (KeyError: " in door.failures[0][1]


def test_a_message_without_our_record_is_its_clients_failure() -> None:
    good = app()

    def handle(message: Message, at: Context) -> Any:
        if at.node_id != 2 or "own" not in message.content:
            return good(message, at)
        return Message(RecordDict({"else": ArrayRecord({"bytes": to_array(b"")})}), reply_to=message)

    broken: Any = handle
    grid = Keyed(broken, [{"partition-id": i, "key": key(i)} for i in range(6)])
    door, _ = over(grid, timeout=30.0)
    trained(door)
    assert [client for client, _ in door.failures] == [1]
    assert "it holds no bytes of ours (KeyError: 'reply')" in door.failures[0][1]


class Blocking(Keyed):
    """As Flower's own: a reply that was announced and is not uploaded is waited for."""

    prompt = False
    stuck: frozenset[int] = frozenset()
    left = threading.Event()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if any(self._replies[i].metadata.src_node_id in self.stuck for i in ids if i in self._replies):
            self.left.wait(60)
        return super().pull_messages(ids)


def test_a_reply_that_is_announced_and_not_uploaded_costs_one_deadline() -> None:
    grid = Blocking(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    grid.contexts[77] = context(77, {"partition-id": 0, "key": key(77)})  # a stranger who does so
    grid.stuck = frozenset({77})
    door, _ = over(grid, timeout=2.0)
    grid.stuck = frozenset({2, 77})
    begun = time.monotonic()
    trained(door)
    assert 1.5 < time.monotonic() - begun < 6
    assert door.failures == [(1, "no reply within 2 s")]
    grid.stuck = frozenset()
    begun = time.monotonic()
    trained(door, 2)
    assert door.failures == []
    assert time.monotonic() - begun < 1.5
    grid.left.set()


def test_many_who_block_do_not_keep_the_others_waiting() -> None:
    grid = Blocking(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    strangers = range(100, 140)
    grid.contexts = {i: context(i, {"partition-id": 0, "key": key(i)}) for i in strangers} | grid.contexts
    grid.stuck = frozenset(strangers)
    begun = time.monotonic()
    door, _ = over(grid, timeout=20.0, wait=60.0)
    trained(door)
    assert door.failures == []
    assert time.monotonic() - begun < 15
    grid.left.set()


class Answering(Keyed):
    """A SuperLink that answers with a status of HTTP when it is asked for the replies of some."""

    prompt = False
    status, of = 500, frozenset({3})

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if any(self._replies[i].metadata.src_node_id in self.of for i in ids if i in self._replies):
            asked = httpx.Request("POST", "http://superlink/v1/runtime/pull-messages")
            raise httpx.HTTPStatusError("no", request=asked, response=httpx.Response(self.status, request=asked))
        return super().pull_messages(ids)


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_reply_that_the_superlink_fails_over_is_its_clients_failure(status: int) -> None:
    grid = Answering(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    grid.of = frozenset()
    door, _ = over(grid, timeout=30.0)
    grid.of, grid.status = frozenset({3}), status
    trained(door)
    assert [client for client, _ in door.failures] == [2]
    assert "Flower cannot hand it over (HTTPStatusError: no" in door.failures[0][1]


def test_a_superlink_that_refuses_the_run_ends_it() -> None:
    grid = Answering(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    grid.status = 401
    with pytest.raises(httpx.HTTPStatusError):
        over(grid, timeout=30.0)


def test_what_the_superlink_raises_is_raised() -> None:
    class Down(Grid):
        prompt = False

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        over(Down(app(), [{"partition-id": 0}]))


# -- names and keys


def test_a_late_node_does_not_take_a_clients_name() -> None:
    """R6: it took 44 of 60 requests, unreported."""
    asked: list[int] = []

    def says(at: Context, to: To, message: bytes) -> bytes | None:
        asked.extend([at.node_id] if to.client != ASKED_WHO else [])
        return None

    door, engine, grid = fleet(says)
    grid.contexts[77] = context(77, {"partition-id": 1, "key": key(77)})
    assert torch.equal(trained(door), trained(fleet()[0]))
    (told,) = engine.refusals()
    assert f"it says that it is '1'; that name belongs to the key {fingerprint(key(1))}" in told
    assert 77 not in asked


def test_in_a_trial_without_keys_a_name_goes_over_and_that_is_told() -> None:
    door, engine, grid = fleet(names=Names(bind=False))
    grid.contexts[77] = context(77, {"partition-id": 1, "key": key(77)})
    trained(door)
    assert engine.refusals() == [f"node 77 (key {fingerprint(key(77))}) has the name '1' now, which node 2 had"]


def test_a_name_stays_with_its_key_when_its_node_has_left_and_after_a_restart(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"rosters": [tmp_path / "clients.json"]}
    _, _, grid = fleet(**kept, names=Names(tmp_path / "names.json"))
    own = grid.contexts.pop(3)
    grid.contexts[77] = context(77, {**own.node_config, "key": key(77)})
    door, engine = over(grid, **kept, names=Names(tmp_path / "names.json"), wait=0.2)  # the server starts again
    trained(door)
    assert door.failures == [(2, "its node is not connected")]
    assert "that name belongs to the key" in engine.refusals()[0]
    grid.contexts[78] = own  # the key again, behind another number
    trained(door, 2)
    assert door.failures == []
    assert json.loads((tmp_path / "names.json").read_text())["2"] == fingerprint(key(2))


def test_a_key_has_one_name() -> None:
    names = Names()
    assert names.claim("a", Who(1, "k")) == ""
    assert names.claim("b", Who(1, "k")) == "its key has the name 'a'"


def test_the_operators_names_are_the_only_ones() -> None:
    names = Names()
    assert names.claim("b", Who(1, "k", "a")) == "its key was registered under the name 'a'"
    assert names.claim("a", Who(1, "k", "a")) == ""
    assert not names.may_be("a", Who(2, "l", "b"))


def test_a_name_that_the_operator_gave_is_nobody_elses_to_say_first() -> None:
    names = Names()
    names.see([Who(1, "k", "a"), Who(2, "l")])
    assert names.claim("a", Who(2, "l")) == "that name was registered for the key k"
    assert not names.may_be("a", Who(2, "l"))
    assert names.claim("a", Who(1, "k", "a")) == ""
    assert names.claim("a", Who(3, "m", "a")) == "that name was registered for the key k"  # the first keeps it


def test_who_was_registered_under_a_name_takes_it_from_who_said_it_first() -> None:
    """The SuperLink tells of nodes that are connected: of a name whose owner is still to come, nobody knows."""
    door, engine, grid = fleet()
    impostor = grid.contexts[3]  # says that it is '2'
    grid.contexts[77] = context(77, {**impostor.node_config, "key": key(77), "name": "2"})
    asked: list[int] = []
    grid.app = app(lambda at, to, m: asked.append(at.node_id) if to.client != ASKED_WHO else None)
    trained(door)
    assert door.failures == []
    assert sorted(asked) == [1, 2, 4, 5, 6, 77]
    assert engine.names.key["2"] == fingerprint(key(77))
    assert any("has the name '2' now, which node 3 had" in told for told in engine.refusals())


def test_a_name_that_goes_over_is_kept(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.json")
    assert names.claim("a", Who(1, "k")) == ""
    names.close(["a"])
    assert names.claim("a", Who(2, "l", "a")) == ""
    assert Names(tmp_path / "names.json").key == {"a": "l"}


def test_a_crash_while_clients_are_kept_loses_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it lost, another key could have the name at the next start."""
    kept: dict[str, Any] = {"rosters": [tmp_path / "clients.json"], "wait": 0.3}
    grid = Keyed(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    with monkeypatch.context() as patched:
        patched.setattr(Roster, "save", lambda self, path: None)  # the power fails
        over(grid, **kept, names=Names(tmp_path / "names.json"))
    assert not (tmp_path / "clients.json").exists()
    grid.contexts[3] = context(3, {"partition-id": 2, "key": key(77)})
    with pytest.raises(RunStopped, match=r"5 of 6 clients .* it says that it is '2'; that name belongs to the key"):
        over(grid, **kept, names=Names(tmp_path / "names.json"))


# -- several models


def test_a_client_of_one_model_only_does_not_stop_the_others() -> None:
    """It said who it is for the first model and not for the second, and no run ever started."""
    plan, resolved = build_plan("many", copy.deepcopy(MANY))
    sites = {
        (m, i): Site(str(i), part.problem, part.federation.alone(i), Layers())
        for m, part in enumerate(plan.parts.values())
        for i in range(6)
    }
    asked: set[tuple[int, int]] = set()

    def answer(at: Context, to: To, message: bytes) -> bytes:
        i = int(at.node_config["partition-id"])
        if to.client != ASKED_WHO:
            asked.add((to.model, i))
        if (to.model, i) == (1, 2):
            return Reply(error="refused: no rows for it").encode()
        return sites[to.model, i].answer(to, message)

    grid = Keyed(client_app(answer), [{"partition-id": i, "key": key(i)} for i in range(6)])
    kept = [Path("a.json"), Path("b.json")]
    engine = partial(OverGrid, grid=grid, rosters=kept, wait=0.3)
    result = execute(replace(plan, engine=engine), RunDirectory.create(Path("run"), "many", resolved))
    told = [[f["why"] for f in line["failures"]] for line in result.history]
    assert told == [["client '2' is left out of the model 'b': refused: no rows for it"], [], []]
    assert {(0, 2), (1, 1)} <= asked
    assert (1, 2) not in asked
    assert [Roster.load(path).examples[2] > 0 for path in kept] == [True, False]
    begun = time.monotonic()
    engine(plan.parts, Layers(), wait=30.0)  # goes on without waiting for it
    assert time.monotonic() - begun < 5


def test_a_model_that_nobody_has_is_a_sentence() -> None:
    def says(at: Context, to: To, message: bytes) -> bytes | None:
        return Reply(error="refused: no such model").encode() if to.model else None

    parts = {m: Part(small_problem(), small_federation()) for m in ("a", "b")}
    grid = Keyed(app(says), [{"partition-id": i, "key": key(i)} for i in range(6)])
    with pytest.raises(RunStopped, match=r"0 of 6 clients .* A node was refused: refused: no such model\."):
        OverGrid(parts, Layers(), grid, wait=0.2)


def test_who_is_not_in_the_run_is_refused() -> None:
    door, engine, grid = fleet(lambda at, to, m: introduction("stranger") if at.node_id == 77 else None)
    grid.contexts[77] = context(77, {"partition-id": 0, "key": key(77)})
    trained(door)
    assert door.failures == []
    assert "no client of this run has that name" in engine.refusals()[0]


ROSTER = """
[0]
key = "0.pub"
examples = 20
[1]
key = "{1}"
[2]
node = 3
[3]
key = "{3}"
examples = 19
"""


def test_a_roster_decides_who_takes_part(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    line = load_pem_public_key(key(0)).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "0.pub").write_bytes(line + b" clinic-a")
    text = ROSTER.replace("{1}", fingerprint(key(1))).replace("{3}", fingerprint(key(3)))
    (tmp_path / "roster.toml").write_text(text)
    entries = read_roster(tmp_path / "roster.toml")
    assert [entry.key for entry in entries.values()] == [
        *map(fingerprint, (key(0), key(1))),
        "node 3",
        fingerprint(key(3)),
    ]
    grid = Keyed(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    with pytest.raises(RunStopped, match=r"3 of 6 clients .* it has 20 examples; the roster allows 19"):
        over(grid, names=Names(roster=entries), wait=0.3)


@pytest.mark.parametrize("text", ["[a", "a = 1", "[a]", "[a]\nkey = 1", "[a]\nnode = true", "[a]\nkey = 'no.pub'",
                                  "[a]\nkey = 'ecdsa x'", "[a]\nkey = 'SHA256:x'\nshare = 1"])  # fmt: skip
def test_a_roster_that_is_none_is_a_sentence(text: str) -> None:
    Path("roster.toml").write_text(text)
    with pytest.raises(BadInput, match="roster"):
        read_roster(Path("roster.toml"))


def test_more_nodes_than_clients_are_strangers() -> None:
    grid = Keyed(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    problem, federation = small_problem(), small_federation(clients=4)
    engine = OverGrid({"": Part(problem, federation)}, Layers(), grid)
    assert len(engine.population[""].examples) == 4
    assert len(engine.names.key) == 4


# -- deadlines


def test_a_stranger_that_says_nothing_delays_nobody() -> None:
    """R7: it made every client that had left cost the whole timeout."""
    door, _, grid = fleet(timeout=30.0)
    del grid.contexts[3]
    grid.contexts[77] = context(77, {"partition-id": 0, "key": key(77)})
    grid.silent = frozenset({77})
    begun = time.monotonic()
    trained(door)
    assert time.monotonic() - begun < 3
    assert door.failures == [(2, "its node is not connected")]


def test_strangers_in_a_trial_cost_no_more_than_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.deploy.nodes.GRACE", 0.4)
    door, engine, grid = fleet(timeout=30.0, names=Names(bind=False))
    del grid.contexts[3]

    class Endless(dict[int, Context]):
        """A stranger more each time somebody looks."""

        def items(self) -> Any:
            i = 1000 + len(self)
            self[i] = context(i, {"partition-id": 0, "key": key(i)})
            grid.silent |= {i}
            return super().items()

    grid.contexts = Endless(grid.contexts)
    begun = time.monotonic()
    trained(door)
    assert 0.3 < time.monotonic() - begun < 5
    assert door.failures == [(2, "its node is not connected")]
    told: list[str] = []
    for t in range(2, 12):  # on a busy machine the first round may end before a stranger's time is up
        door.begin(t)
        told += engine.refusals()
        if any("it has not said who it is for 0.4 s" in why for why in told):
            return
        trained(door)
    pytest.fail(f"no stranger was refused for its silence: {told}")


def test_silent_strangers_do_not_keep_clients_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.deploy.nodes.UNANSWERED", 3)
    monkeypatch.setattr("polyfed.deploy.nodes.GRACE", 0.2)
    grid = Keyed(app(), [{"partition-id": i, "key": key(i)} for i in range(6)])
    strangers = {i: context(i, {"partition-id": 0, "key": key(i)}) for i in range(20, 30)}
    grid.contexts = {1000 + i: at for i, at in grid.contexts.items()} | strangers
    grid.silent = frozenset(strangers)
    door, _ = over(grid, timeout=20.0, wait=20.0)
    trained(door)
    assert door.failures == []


def test_a_silent_client_is_asked_again_after_growing_pauses() -> None:
    door, engine, grid = fleet(timeout=0.3)
    grid.silent = frozenset({3})
    why = {}
    for t in range(1, 12):
        trained(door, t)
        assert [client for client, _ in door.failures] == [2]
        why[t] = door.failures[0][1]
    late = [t for t, text in why.items() if text == "no reply within 0.3 s"]
    assert late == [1, 2, 3, 5, 9]
    assert why[10] == "missed too many exchanges; asked again in round 17"
    assert engine.tree()[""]["missed"].tolist() == [[2, 10, 17]]
    grid.silent = frozenset()
    for t in range(17, 28):
        trained(door, t)
        assert door.failures == []
    assert engine.tree() == {"": {}}


def test_a_supernode_that_was_restarted_is_sent_its_request_again() -> None:
    """With a key of its own it has the same number as before, and Flower counts what it had been sent as delivered."""
    door, _, grid = fleet(timeout=10.0)
    grid.lost = frozenset({3})

    class Restarting(dict[int, Context]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            if self.looks == 3:
                self[3].node_config["last_activated_at"] = "now"
                grid.lost = frozenset()
            return super().items()

    grid.contexts = Restarting(grid.contexts)
    trained(door)
    assert door.failures == []
