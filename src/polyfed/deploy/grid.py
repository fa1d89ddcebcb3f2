"""A Flower Grid without Flower's deployment: every node's app is called in this process, as the message is pushed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcess(Grid):
    """Nodes are contexts, numbered from 1; `app` is what each of them runs."""

    prompt = True  # what is pulled is there or not; nothing is waited for

    def __init__(self, app: ClientApp, node_configs: Iterable[Mapping[str, Any]]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages ask who makes them
        self.app = app
        self.contexts = {i: context(i, config) for i, config in enumerate(node_configs, 1)}
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self._count += 1
        number = message.metadata.__dict__["_message_id"] = str(self._count)
        try:
            self._replies[number] = self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does with an app that fails
            self._replies[number] = Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def context(node_id: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any] | None = None) -> Context:
    return Context(1, node_id, dict(node_config), RecordDict(), dict(run_config or {}))
