"""A client that shares nothing with its server: bytes in, bytes out, and only work that it knows."""

from __future__ import annotations

import copy

from polyfed.client.memory import Memory
from polyfed.client.runner import ClientRunner, run_row
from polyfed.core.errors import PolyfedError, nearest
from polyfed.core.federation import Federation
from polyfed.core.layer import Layers
from polyfed.core.messages import BadMessage, Reply, Request
from polyfed.core.problem import Problem
from polyfed.core.work import works


class Node:
    """One client of one model.

    Args:
        client: its number.
        problem: the model and its objectives.
        federation: this client's data, a federation of one.
        layers: the layers around its work.
        memory: what it remembers; a new one by default.
    """

    def __init__(
        self, client: int, problem: Problem, federation: Federation, layers: Layers, memory: Memory | None = None
    ) -> None:
        self.client = client
        self.memory = memory or Memory()
        self._runner = ClientRunner(copy.deepcopy(problem), federation, layers, offset=client)

    def handle(self, message: bytes | memoryview) -> bytes:
        try:
            request = _check_known(Request.decode(message))
            return run_row(self._runner, self.memory, self.client, request)[1].encode()
        except PolyfedError as error:
            return Reply(error=f"refused: {error}").encode()


def _check_known(request: Request) -> Request:
    """Only registered work: a name such as 'package.module:function' would have the server choose what is run."""
    if request.work not in works:
        raise BadMessage(f"Unknown work {request.work!r}.{nearest(str(request.work), works)}")
    works[request.work].check(request.options)
    return request
