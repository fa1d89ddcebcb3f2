"""Engine `flower` over the in-process Grid: the same models as `local`, bytes counted as sent, bad replies named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from fleets import LOCAL, NEURAL, TASKS, many, trained

from polyfed import FedAvg
from polyfed.algorithms import State
from polyfed.core.door import Door, PartView
from polyfed.core.errors import BadInput, NobodyAnswered, RunStopped
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Part
from polyfed.testing import open_door
from small import small_federation, small_problem

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict  # noqa: E402

from polyfed.deploy.app import To, client_app  # noqa: E402
from polyfed.deploy.engine import InProcess, OverGrid  # noqa: E402
from polyfed.deploy.grid import InProcess as Grid  # noqa: E402
from polyfed.deploy.grid import context  # noqa: E402
from polyfed.deploy.identity import Names  # noqa: E402
from polyfed.deploy.nodes import read  # noqa: E402
from polyfed.deploy.payload import to_array  # noqa: E402
from polyfed.deploy.site import Site  # noqa: E402


@pytest.mark.parametrize(("name", "settings"), [*NEURAL, TASKS])
def test_the_same_model_as_local(name: str, settings: dict[str, Any]) -> None:
    local, grid = (trained(name, settings, engine) for engine in ("local", "flower"))
    assert local.summary["model_sha256"] == grid.summary["model_sha256"]
    assert grid.summary["failures"] == 0
    for count in ("bytes_up", "bytes_down"):
        assert local.summary[count] == grid.summary[count]


def test_many_models_as_local() -> None:
    local, grid = many({"name": "local"}, "local"), many({"name": "flower"}, "grid")
    assert all(np.array_equal(local[name], grid[name]) for name in local)


def sites() -> Callable[[Context, To, bytes], bytes]:
    problem, federation = small_problem(), small_federation()
    made = {str(i): Site(str(i), problem, federation.alone(i), Layers()) for i in range(len(federation))}
    return lambda context, to, message: made[str(context.node_config["partition-id"])].answer(to, message)


def over(grid: Grid, **settings: Any) -> tuple[Door, OverGrid]:
    problem, federation = small_problem(), small_federation()
    engine = OverGrid({"": Part(problem, federation)}, Layers(), grid, **settings)
    door = open_door(problem, federation, engine)
    door.begin(1)
    return door, engine


def six(app: Any = None, kind: type[Grid] = Grid) -> Grid:
    return kind(app or client_app(sites()), [{"partition-id": i} for i in range(6)])


def test_bytes_counted_are_payload_bytes_sent() -> None:
    problem, federation = small_problem(), small_federation()
    engine = InProcess({"": Part(problem, federation)}, Layers())
    door = open_door(problem, federation, engine)
    assert isinstance(door.inner, PartView)
    meter = door.inner.inner
    assert isinstance(meter, Metered)
    state: State = dict(problem.initial())
    for t in (1, 2):
        door.begin(t)
        state, _ = FedAvg(local_steps=1).round(t, state, door)
        list(door.ask([0, 1], Request("toy-add", each={"amount": torch.ones(2)})))
        list(door.ask(range(6), Request("evaluate", state, {"x": state["x"].expand(6, -1)}, {"split": "train"})))
    assert meter.up + meter.down + meter.measuring == engine.up + engine.down
    assert min(meter.up, meter.down, meter.measuring) > 0


def test_the_model_is_one_record_of_all_messages() -> None:
    records: list[ArrayRecord] = []

    class Noting(Grid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            records.extend(m.content.array_records["shared"] for m in messages if "shared" in m.content)
            return super().push_messages(messages)

    door, _ = over(six(kind=Noting))
    list(door.ask(range(6), Request("evaluate", small_problem().initial(), options={"split": "train"})))
    assert len(records) == 6
    assert len({id(record) for record in records}) == 1


def test_the_clients_say_what_they_have() -> None:
    problem, holds = small_problem(), {"right": [True, False, True, True, False, True]}
    population = InProcess({"": Part(problem, small_federation(holds=holds))}, Layers()).population[""]
    assert population.examples.tolist() == [20] * 6
    assert population.holds[:, 1].tolist() == holds["right"]
    assert population.holds[:, 0].all()


# -- replies that were tampered with


def npy_of(claim: int) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (claim,)})
    return stream.getvalue() + b"PF01"


def arrays(reply: bytes, **changed: Any) -> bytes:
    found = dict(Reply.decode(reply).arrays)
    return Reply({**found, **changed}).encode()


HUGE = b'{"arrays":[["delta","float32",[250000000]]]}'
TAMPERED: dict[str, tuple[Callable[[bytes], Array], str]] = {
    "shape": (lambda r: to_array(arrays(r, delta=torch.zeros(3))), "should be torch.float32 of shape"),
    "type": (lambda r: to_array(arrays(r, delta=torch.zeros(102, dtype=torch.int64))), "should be torch.float32"),
    "name": (lambda r: to_array(arrays(r, more=torch.zeros(1))), "the reply should hold"),
    "nan": (lambda r: to_array(arrays(r, delta=Reply.decode(r).arrays["delta"] * float("nan"))), "NaN or infinity"),
    "claim in our head": (lambda r: to_array(b"PF01" + len(HUGE).to_bytes(4, "little") + HUGE), "claims 1000000000"),
    "claim in the record": (lambda r: Array("uint8", (10**9,), "numpy.ndarray", npy_of(10**9)), "claims 1000000000"),
    "oversized": (lambda r: to_array(bytes(1 << 20)), "a message may have at most"),
    "not ours": (lambda r: to_array(b"hello world"), "starts with the mark"),
    "not uint8": (lambda r: Array(np.zeros(4)), "one row of uint8; found"),
    "not an array": (lambda r: Array("uint8", (4,), "numpy.ndarray", b"\x80\x04junk"), "arrays travel as .npy"),
}


def tampering(who: int, change: Callable[[bytes], Array]) -> Any:
    app = client_app(sites())

    def handle(message: Message, at: Context) -> Message:
        reply = app(message, at)
        if at.node_id != who or "own" not in message.content:
            return reply
        bad = change(bytes(reply.content.array_records["reply"]["bytes"].numpy()))
        return Message(RecordDict({"reply": ArrayRecord({"bytes": bad})}), reply_to=message)

    return handle


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_reply_is_rejected_and_named_and_the_round_goes_on(what: str) -> None:
    change, why = TAMPERED[what]
    door, _ = over(six(tampering(3, change)))
    state, _ = FedAvg(**LOCAL).round(1, small_problem().initial(), door)
    assert [client for client, _ in door.failures] == [2]
    assert why in door.failures[0][1]
    assert torch.isfinite(state["x"]).all()


def test_an_app_that_fails_is_a_failure_of_its_client() -> None:
    def failing(context: Context, to: To, message: bytes) -> bytes:
        if to.client == 4:
            raise OSError("the disk is full")
        return sites()(context, to, message)

    door, _ = over(six(client_app(failing)))
    FedAvg(**LOCAL).round(1, small_problem().initial(), door)
    assert door.failures == [(4, "Flower's error 2: OSError: the disk is full")]


@pytest.mark.parametrize("code", [3, 4, 5])
def test_an_error_of_flowers_that_means_a_lost_node_says_so(code: int) -> None:
    reply, size = read(Message(error=Error(code, "not found"), reply_to=Message(RecordDict(), 1, "query")), 1000)
    assert (reply.error, size) == (f"its node left or was too late (Flower's error {code}: not found)", 0)


@pytest.mark.parametrize("work", ["no-such-work", "os:system", "polyfed.run.directory:write"])
def test_work_that_is_not_known_is_refused_by_the_client(work: str) -> None:
    answer = Reply.decode(sites()(context(1, {"partition-id": 0}), To("0" * 32, 0, 0), Request(work).encode()))
    assert answer.error.startswith(f"refused: Unknown work {work!r}")


def test_a_request_that_is_no_message_is_refused_by_the_client() -> None:
    answer = Reply.decode(sites()(context(1, {"partition-id": 0}), To("0" * 32, 0, 0), b"rm -rf"))
    assert answer.error.startswith("refused: A message starts with the mark")


# -- order, deadlines, nodes that leave and come back


class Slow(Grid):
    """One reply a pull, the last first; some nodes never answer what is not 'who are you'."""

    silent: tuple[int, ...] = ()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        mute = [i for i, m in self._replies.items() if m.metadata.src_node_id in self.silent and self._count > 6]
        came = [i for i in message_ids if i in self._replies and i not in mute]
        return super().pull_messages(came[-1:])


def test_stacks_come_in_cohort_order_whoever_is_first() -> None:
    door, _ = over(six(kind=Slow))
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})
    stacks = list(door.ask([4, 1, 3], request))
    assert [c for stack in stacks for c in stack.clients] == [4, 1, 3]


def test_a_late_node_is_missing_and_the_round_goes_on() -> None:
    grid = six(kind=Slow)
    door, engine = over(grid, timeout=0.5)
    assert isinstance(grid, Slow)
    grid.silent = (2,)
    FedAvg(**LOCAL).round(1, small_problem().initial(), door)
    assert door.failures == [(1, "no reply within 0.5 s")]
    engine.min_replies = 6
    with pytest.raises(NobodyAnswered, match=r"5 of 6 clients answered 'sgd'; engine.min_replies asks for 6"):
        FedAvg(**LOCAL).round(2, small_problem().initial(), door)


def test_a_node_that_left_is_missing_and_one_that_came_back_is_the_same_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With names that are not bound, as in a trial: a SuperNode without a key of its own has a new one each time."""
    monkeypatch.setattr("polyfed.deploy.nodes.WATCH", 0.0)
    grid = six()
    door, engine = over(grid, names=Names(bind=False))
    left = grid.contexts.pop(3)
    FedAvg(**LOCAL).round(1, small_problem().initial(), door)
    assert door.failures == [(2, "its node is not connected")]
    grid.contexts[77] = left  # a SuperNode that restarts has a new number
    door.begin(2)
    FedAvg(**LOCAL).round(2, small_problem().initial(), door)
    assert door.failures == []
    assert engine.reached[""].nodes.node("2") == 77


def test_too_few_clients_is_a_sentence() -> None:
    with pytest.raises(RunStopped, match=r"6 of 7 clients were there after 0.1 s"):
        OverGrid({"": Part(small_problem(), small_federation(clients=7))}, Layers(), six(), wait=0.1)


def test_a_deployments_run_is_not_resumed_in_process() -> None:
    with pytest.raises(BadInput, match="flwr run DIR"):
        trained("fedavg", LOCAL, {"name": "flower", "address": "superlink"})
