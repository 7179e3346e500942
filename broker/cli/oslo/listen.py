"""``headgate oslo listen``: print notifications as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from broker.cli import options
from broker.cli.exits import OK, UsageError
from broker.cli.oslo import sending
from broker.cli.screen import Screen
from broker.nesting import read_json
from broker.oslo.bodies import plain
from broker.oslo.names import DEFAULT_EXCHANGE, PRIORITIES

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ReceivedMessage
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo listen notifications",
    "headgate oslo listen notifications versioned_notifications --exchange nova --priority error",
    "headgate oslo listen notifications --count 1 | jq .message.event_type",
)
_LOOK_S = 0.5
"""Between two looks whether Ctrl-C came."""


def told(item: ReceivedMessage) -> dict[str, Any]:
    """A notification as one JSON value; the envelope of version 2.0 is unwrapped."""
    topic, _, priority = item.address.topic.rpartition(".")
    said: dict[str, Any] = {"exchange": item.address.exchange, "topic": topic, "priority": priority}
    try:
        body = read_json(plain(item.body))
        message = body["message"]
        if "oslo.version" in message:
            message = read_json(message["oslo.message"])
        said |= {"ctxt": body.get("ctxt", {}), "message": message}
    except (ValueError, KeyError, TypeError, AttributeError):
        said["unreadable"] = item.body[:64].decode("utf-8", "replace")
    return said


def show(screen: Screen, item: ReceivedMessage) -> None:
    """Print it, whatever is in it."""
    screen.value(told(item))


def topics_of(
    exchange: str, topics: Sequence[str], priorities: Sequence[str] | None
) -> list[tuple[str, str]]:
    """What is subscribed to.

    Raises:
        UsageError: a name or a priority that cannot be.
    """
    chosen = [each.lower() for each in priorities or PRIORITIES]
    if wrong := [each for each in chosen if each not in PRIORITIES]:
        raise UsageError(f"--priority {wrong[0][:64]!r}: expected one of {', '.join(PRIORITIES)}")
    place = sending.named(exchange, "exchange")
    return [
        (place, sending.named(f"{sending.topic_named(topic)}.{each}", "topic"))
        for topic in topics
        for each in chosen
    ]


@sending.command("listen")
def listen(
    sender: sending.Sender,
    *,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Without the priority.", show_default=False)
    ],
    exchange: sending.Exchange = DEFAULT_EXCHANGE,
    priority: Annotated[
        list[str] | None,
        typer.Option(
            "--priority", "-p", metavar="P", help="Only of this one; may be given again. Default: all."
        ),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            "--pool", metavar="NAME", help="Share with others of this pool. Default: one of our own."
        ),
    ] = "",
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
) -> int:
    """Print notifications at TOPIC as JSON, one a line, until Ctrl-C. Other listeners still get theirs.

    Exit codes: 0 done, 2 wrong options or no proxy here, 130 Ctrl-C.
    """
    wanted = topics_of(exchange, topics, priority)
    own = sending.named(pool, "pool") or f"headgate-listen-{os.getpid()}-{uuid4().hex[:6]}"
    screen = Screen(as_json=True)

    def work(session: ClientSession) -> int:
        intake = session.listen_notifications(wanted, own)
        print(f"headgate oslo listen: {len(topics)} topic(s) of {exchange}", file=sys.stderr, flush=True)
        left = count
        try:
            while True:
                item = intake.get(_LOOK_S)
                if item is None:
                    continue
                show(screen, item)
                left -= 1
                if left == 0:
                    return OK
        finally:
            intake.close()

    return sender.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo listen", listen, EXAMPLES, argv)
