"""``headgate oslo notify``: send a notification, as a service's notifier does."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from broker.cli import options
from broker.cli.content import keywords, object_of
from broker.cli.exits import UsageError
from broker.cli.oslo import sending
from broker.oslo.contract import Address
from broker.oslo.names import DEFAULT_EXCHANGE, PRIORITIES, Pipeline

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo notify notifications compute.instance.create.end id=7 host=a1",
    "headgate oslo notify notifications disk.full host=a1 --priority error --publisher volume.a1",
)


def body_of(event_type: str, payload: Any, priority: str, publisher: str, context: dict[str, Any]) -> bytes:
    """The body of a notification in the envelope of version 2.0.

    Raises:
        UsageError: as of ``sending.encoded``.
    """
    message = {
        "message_id": str(uuid4()),
        "publisher_id": publisher,
        "event_type": event_type,
        "priority": priority.upper(),
        "payload": payload,
        "timestamp": str(datetime.now(timezone.utc).replace(tzinfo=None)),  # noqa: UP017 - as notifiers write it
    }
    inner = sending.encoded(message).decode()
    return sending.encoded({"ctxt": context, "message": {"oslo.version": "2.0", "oslo.message": inner}})


@sending.command("notify")
def notify(
    sender: sending.Sender,
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Without the priority.", show_default=False)],
    event_type: Annotated[
        str, typer.Argument(metavar="EVENT_TYPE", help="What happened.", show_default=False)
    ],
    words: sending.Words = None,
    exchange: sending.Exchange = DEFAULT_EXCHANGE,
    priority: Annotated[
        str, typer.Option("--priority", "-p", metavar="P", help=f"One of {', '.join(PRIORITIES)}.")
    ] = "info",
    publisher: Annotated[
        str, typer.Option("--publisher", metavar="ID", help="Who says so. Default: headgate.HOST.")
    ] = "",
    ctxt: sending.Context = "{}",
) -> int:
    """Send a notification of EVENT_TYPE with the arguments as its payload to one listener of each pool at TOPIC.

    Exit codes: 0 sent, 1 a proxy refused, 2 wrong options or no proxy here, 3 nobody listens there
    or no directory answers.
    """
    if priority.lower() not in PRIORITIES:
        raise UsageError(f"--priority {priority[:64]!r}: expected one of {', '.join(PRIORITIES)}")
    who = publisher or f"headgate.{os.uname().nodename}"
    body = body_of(event_type, keywords(words or ()), priority, who, object_of(ctxt, "--ctxt"))
    full = sending.named(f"{sending.topic_named(topic)}.{priority.lower()}", "topic")
    where = Address(sending.named(exchange, "exchange"), full)

    def work(session: ClientSession) -> None:
        session.notify(where.exchange, where.topic, body, retry=0)

    return sender.send((Pipeline.NOTIFY,), where, work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo notify", notify, EXAMPLES, argv)
