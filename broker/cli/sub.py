"""``headgate sub``: print events as they come."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

import typer

from broker.cli import content, options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Event, Handle
from broker.client.subscriptions import Subscription

EXAMPLES = (
    "headgate sub                        every event, until Ctrl-C",
    "headgate sub hello. job.            events whose topic begins with one of these",
    "headgate sub --count 1 hello.       wait for one",
)


def distinct(prefixes: Sequence[str]) -> list[str]:
    """The prefixes without those that another one covers: an event then matches one of them only.

    >>> distinct(["job.new", "job", "log", "log"])
    ['job', 'log']
    """
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


async def merged(subscriptions: Sequence[Subscription]) -> AsyncGenerator[list[Event], None]:
    """What several subscriptions have got, in order of sequence; never ends by itself.

    One read of the link fills all of them before anybody runs, so what is there at one time is in order once sorted.
    """
    loop = asyncio.get_running_loop()
    waiting: dict[asyncio.Future[Event], Subscription] = {}
    try:
        while True:
            for each in set(subscriptions) - set(waiting.values()):
                waiting[loop.create_task(_following(each), name=f"events {each.prefix!r}")] = each
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            found = [task.result() for task in done]
            for task in done:
                each = waiting.pop(task)
                found += [await anext(each) for _ in range(each.ready)]
            yield sorted(found, key=lambda event: event.sequence)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _following(subscription: Subscription) -> Event:
    return await anext(subscription)


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
        print(f"headgate sub: {event.lost} events were lost here: printing is too slow", file=sys.stderr)
    text = f"{event.sequence} {event.topic} {content.as_text(event.payload)}".rstrip()
    screen.record(as_json_value(event), text)


async def follow(handle: Handle, session: Session, prefixes: Sequence[str], count: int) -> int:
    """Print events until ``count`` have come (0: for ever)."""
    async with contextlib.AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(handle.subscribe(prefix, overflow="mark")) for prefix in prefixes
        ]
        batches = await stack.enter_async_context(contextlib.aclosing(merged(subscriptions)))
        left = count
        while True:
            for event in await session.within(anext(batches), "event"):
                show(session.screen, event)
                left -= 1
                if left == 0:
                    return OK


def sub(
    prefix: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PREFIX]...", help="Plain beginnings of topics; none: every event."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = 0.0,
) -> int:
    """Print events as they come: number, topic, payload.

    A topic prefix is plain text, not a pattern: job matches jobs.new, too.
    """
    session = Session(uri, as_json, timeout)
    return session.run(lambda handle: follow(handle, session, distinct(prefix or [""]), count))


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("sub", sub, EXAMPLES, argv)
