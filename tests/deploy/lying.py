"""A SuperNode that lies: what its ClientApp answers is changed on the way out, as the environment says.

HOSTILE="crash,sketch"      what to do in rounds 1, 2, ...; then honest
HOSTILE="name:0"            say, when asked who it is, another's name (once that has been bound)
HOSTILE="endless"           never say who it is
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUGE = b'{"arrays":[["delta","float32",[0,9223372036854775808]]]}'
WEIGHTS = ("weight", "heard")
SILENCE = 100.0  # seconds


def _changed(reply: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    from polyfed.core.messages import Reply

    arrays = dict(Reply.decode(reply).arrays)
    change(arrays)
    return Reply(arrays).encode()


def _crash(reply: bytes) -> bytes:
    return b"PF01" + len(HUGE).to_bytes(4, "little") + HUGE


def _large(reply: bytes) -> bytes:
    return _changed(reply, lambda arrays: [a.fill_(1e30) for name, a in arrays.items() if name not in WEIGHTS])


def _sketch(reply: bytes) -> bytes:
    return _changed(reply, lambda arrays: [a[0].mul_(1e4) for a in arrays.values() if a.dim() == 2])


def _weight(reply: bytes) -> bytes:
    return _changed(reply, lambda arrays: [arrays[name].fill_(-19.0) for name in WEIGHTS if name in arrays])


def _silence(reply: bytes) -> bytes:
    time.sleep(SILENCE)
    return reply


ATTACKS = {"crash": _crash, "1e30": _large, "sketch": _sketch, "weight": _weight, "silence": _silence}


def answered(plan: str, to: Any, message: bytes, answer: Callable[[], bytes]) -> bytes:
    """What a hostile node says instead of an answer."""
    from polyfed.deploy.app import ASKED_WHO

    if to.client == ASKED_WHO:
        return _introduced(plan, answer)
    attacks = plan.split(",")
    from polyfed.core.messages import Request

    request = Request.decode(message)
    now = attacks[request.round - 1] if 0 < request.round <= len(attacks) else ""
    return ATTACKS[now](answer()) if now in ATTACKS and not request.work.startswith("evaluate") else answer()


def _introduced(plan: str, answer: Callable[[], bytes]) -> bytes:
    if plan == "endless":
        time.sleep(SILENCE)
    if not plan.startswith("name:"):
        return answer()
    while not Path(os.environ["HOSTILE_AFTER"]).is_file():  # the names are bound
        time.sleep(0.05)
    name = plan.partition(":")[2].encode()
    head = json.dumps({"arrays": [["name", "uint8", [len(name)]], ["examples", "int64", []], ["holds", "bool", [2]]]})
    return b"PF01" + len(head).to_bytes(4, "little") + head.encode() + name + (20).to_bytes(8, "little") + b"\1\1"


def be_hostile() -> None:
    """Have every app of this process answer so."""
    import polyfed.deploy.app as ours

    honest = ours.client_app
    plan = os.environ["HOSTILE"]
    ours.client_app = lambda answer: honest(
        lambda context, to, message: answered(plan, to, message, lambda: answer(context, to, message))
    )


if os.environ.get("HOSTILE"):
    be_hostile()
