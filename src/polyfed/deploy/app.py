"""The clients' Flower app: takes our bytes out of a message, has them answered, and puts the answer into the reply.

Every message starts a fresh process on a SuperNode, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from polyfed.deploy.payload import BadPayload, join, to_array

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

KIND = "query.polyfed"  # the type of all our messages
ASKED_WHO = -1  # the number of a client that has none yet: it is asked who it is and what it has
LIMIT = 1 << 32


class To(NamedTuple):
    """Whom a message is for: our run's id, the place of the model in the experiment, the client's number."""

    run: str
    model: int
    client: int


Answer = Callable[["Context", To, bytes], bytes]  # a request's bytes -> the reply's


def client_app(answer: Answer) -> ClientApp:
    """A ClientApp that answers with the given function."""
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query("polyfed")
    def handle(message: Message, context: Context) -> Message:
        try:
            reply = answer(context, *_taken(message.content))
        except BadPayload as error:
            reply = _refusal(str(error))
        return Message(RecordDict({"reply": ArrayRecord({"bytes": to_array(reply)})}), reply_to=message)

    return app


def _taken(content: RecordDict) -> tuple[To, bytes]:
    try:
        head = content.config_records["to"]
        to = To(str(head["run"]), int(str(head["model"])), int(str(head["client"])))
        return to, b"" if to.client == ASKED_WHO else join(content, LIMIT)
    except (KeyError, TypeError, ValueError) as error:
        raise BadPayload(f"a message needs 'to', 'own' and 'shared'; {error!r}") from error


def _refusal(why: str) -> bytes:
    from polyfed.core.messages import Reply

    return Reply(error=f"refused: {why}").encode()
