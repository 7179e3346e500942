"""``headgate rpc``: call a method of a service."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import content, options
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Handle

EXAMPLES = (
    """headgate rpc attr.get '{"name": "size"}'""",
    """headgate rpc --rank 3 broker.stats-get        ask the broker of rank 3""",
    """headgate rpc --anywhere calc.add '{"numbers": [1, 2]}'    the nearest client that provides it""",
    """headgate rpc --stream log.dmesg '{"follow": true}'""",
    """echo '{"name": "rank"}' | headgate rpc attr.get -""",
)

OFFERS_TOPICS = True
"""For ``completion``: the first argument is a topic."""

Payload = Annotated[
    str | None,
    typer.Argument(
        metavar="[JSON|-|@FILE]", help="A JSON object; - reads stdin, @FILE a file. Default: no payload."
    ),
]


class Calling:
    """One call as the options describe it."""

    def __init__(
        self, topic: str, payload: bytes | None, nodeid: int, upstream: bool, anywhere: bool
    ) -> None:
        self._topic = topic
        self._payload = payload
        self._nodeid = nodeid
        self._upstream = upstream
        self._anywhere = anywhere

    async def once(self, handle: Handle, screen: Screen, timeout_s: float | None, raw: bool) -> int:
        """One request, one response."""
        answer = await handle.rpc(
            self._topic,
            self._payload,
            nodeid=self._nodeid,
            upstream=self._upstream,
            anywhere=self._anywhere,
            timeout_s=timeout_s,
        )
        content.show(screen, answer.payload, raw=raw)
        return OK

    async def send(self, handle: Handle) -> int:
        """One request that nobody answers."""
        await handle.rpc(
            self._topic,
            self._payload,
            nodeid=self._nodeid,
            upstream=self._upstream,
            anywhere=self._anywhere,
            noresponse=True,
        )
        return OK

    async def stream(self, handle: Handle, session: Session, raw: bool) -> int:
        """One request, a line for each response until the service ends the stream."""
        nodeid = await handle.rank() if self._upstream else self._nodeid
        async with handle.stream(
            self._topic, self._payload, nodeid=nodeid, upstream=self._upstream, anywhere=self._anywhere
        ) as answers:
            async for answer in session.each(answers, self._topic):
                content.show(session.screen, answer.payload, raw=raw)
        return OK


def rpc(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="SERVICE.METHOD")],
    payload: Payload = None,
    rank: options.Rank = None,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Ask above the broker we are connected to.")
    ] = False,
    anywhere: Annotated[
        bool,
        typer.Option("--anywhere", "-a", help="Ask the nearest client that provides it, wherever it is."),
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", "-s", help="Many responses, until the service ends them.")
    ] = False,
    noresponse: Annotated[bool, typer.Option("--no-response", "-n", help="Send only.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Payloads are bytes, not JSON.")] = False,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Call a method of a service and print its answer.

    Exit code 1 when the service answers with an error, 4 when it does not answer in time.
    """
    if anywhere and (upstream or rank is not None):
        raise UsageError("--anywhere chooses the rank: give neither --rank nor --upstream beside it")
    call = Calling(topic, content.payload_of(payload, raw), options.nodeid(rank), upstream, anywhere)
    session = Session(uri, as_json, timeout)
    if noresponse:
        return session.run(call.send)
    if stream:
        return session.run(lambda handle: call.stream(handle, session, raw))
    return session.run(lambda handle: call.once(handle, session.screen, session.timeout_s, raw))


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("rpc", rpc, EXAMPLES, argv)
