"""``headgate sub``: print events as they come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from broker.cli import content, options
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Event, Handle
from broker.client.subscriptions import Since
from broker.times import seconds_of
from broker.wire.event_history import NUMBERS

EXAMPLES = (
    "headgate sub                        every event, until Ctrl-C",
    "headgate sub hello. job.            events whose topic begins with one of these",
    "headgate sub --count 1 hello.       wait for one",
    "headgate sub --since 5m job.        those of the last five minutes first, then what comes",
    "headgate sub --since 1234           those behind number 1234 first",
    "headgate sub --since EPOCH:1234     the same; EPOCH is the attribute headgate.event-epoch",
)


LONGEST_NUMBER: Final = 10
"""Digits of the largest number of an event."""
LONGEST_S: Final = timedelta.max // timedelta(seconds=1)
"""What a ``timedelta`` holds."""


def as_json_value(event: Event) -> dict[str, Any]:
    """An event as ``--json`` shows it."""
    return {
        "seq": event.sequence,
        "topic": event.topic,
        "payload": content.as_value(event.payload),
        "private": event.private,
        "userid": event.userid,
        "rolemask": event.rolemask,
    }


def show(screen: Screen, event: Event) -> None:
    """Print one event; a gap in front of it goes to stderr."""
    if event.lost:
        screen.note("sub", f"{event.lost} events were lost here: printing is too slow")
    text = f"{event.sequence} {event.topic} {content.as_text(event.payload)}".rstrip()
    if event.missed:
        screen.note("sub", f"events may be missing here: {event.missed}")
    screen.record(as_json_value(event), text)


def since_of(word: str | None) -> Since | None:
    """What ``--since`` says: a number, EPOCH:NUMBER, or how long ago.

    Raises:
        UsageError: it is none of these.
    """
    if word is None:
        return None
    ago_s = seconds_of(word)
    if ago_s is not None and ago_s < LONGEST_S:
        return timedelta(seconds=ago_s)
    epoch, _, number = word.strip().rpartition(":")
    if not (
        number.isascii() and number.isdecimal() and len(number) <= LONGEST_NUMBER and int(number) <= NUMBERS
    ):
        raise UsageError(
            f"--since {word[:64]!r}: expected how long ago: 30s, 10m, 2h; or the number of an event, or EPOCH:NUMBER"
        )
    return (epoch, int(number)) if epoch else int(number)


async def follow(
    handle: Handle, session: Session, prefixes: Sequence[str], count: int, since: Since | None
) -> int:
    """Print events until ``count`` have come (0: for ever)."""
    async with handle.subscribe(*prefixes, since=since, overflow="mark") as events:
        left = count
        async for event in session.each(events, "event"):
            show(session.screen, event)
            left -= 1
            if left == 0:
                break
    return OK


def sub(
    prefix: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PREFIX]...", help="Plain beginnings of topics; none: every event."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="AGO|[EPOCH:]NUMBER",
            help="Those of before first, which rank 0 keeps: of the last 30s, 10m, 2h, or behind a number.",
        ),
    ] = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = 0.0,
) -> int:
    """Print events as they come: number, topic, payload.

    A topic prefix is plain text, not a pattern: job matches jobs.new, too.
    """
    session = Session(uri, as_json, timeout)
    begin = since_of(since)
    return session.run(lambda handle: follow(handle, session, prefix or [], count, begin))


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("sub", sub, EXAMPLES, argv)
