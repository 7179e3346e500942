"""``headgate pub``: publish an event."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import content, options
from broker.cli.exits import OK
from broker.cli.session import Session
from broker.client import Handle

EXAMPLES = (
    "headgate pub hello.world",
    """headgate pub hello.world '{"from": "me"}'""",
    "headgate pub --private mine.only             for this user and the owner",
    "date | headgate pub --raw clock.tick -",
)


def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="[JSON|-|@FILE]", help="A JSON object; - reads stdin, @FILE a file."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", "-p", help="For this user and the owner only.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The payload is bytes, not JSON.")] = False,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Publish an event and print its number, which counts all events of the instance."""
    data = content.payload_of(payload, raw)
    session = Session(uri, as_json, timeout)

    async def publish(handle: Handle) -> int:
        number = await session.within(handle.publish(topic, data, private=private), "event.publish")
        text = f"{topic} is event {number}" if session.screen.rich else str(number)
        session.screen.record({"seq": number, "topic": topic}, text)
        return OK

    return session.run(publish)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pub", pub, EXAMPLES, argv)
