"""A scripted gateway, written with an independent library, and what becomes of dialling it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from broker.errors import LinkBroken, LinkEnded, LinkRefused
from broker.testing.harness import Recorder
from broker.transport.link import Options
from broker.transport.registry import dial
from broker.wire.framing import Splitter
from broker.wire.message import Message

WELCOME = {
    "type": "welcome",
    "session": "1",
    "limits": {"message_bytes": 4096},
    "ping_s": 25,
    "expires": None,
}
PATIENCE_S = 40.0


def options(**extra) -> Options:
    return Options(extra={"token": "s3cret"} | extra, connect_timeout_s=PATIENCE_S)


@asynccontextmanager
async def gateway(script, *, answer=None, context=None):
    """A gateway that runs ``script(connection)`` for each WebSocket; ``answer`` may refuse the upgrade."""
    async with serve(
        script,
        "127.0.0.1",
        0,
        process_request=answer,
        subprotocols=["flux.v1"],
        ssl=context,
        compression=None,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'wss' if context else 'ws'}://127.0.0.1:{port}"


def say(obj: dict) -> str:
    return json.dumps(obj)


async def read_all(connection: ServerConnection) -> list[Message]:
    splitter, found = Splitter(), []
    try:
        async for data in connection:
            assert isinstance(data, bytes)
            found += splitter.feed(data)
    except ConnectionClosed:
        pass
    return found


async def welcome_and_wait(connection):
    await connection.send(say(WELCOME))
    await connection.wait_closed()


async def soon(queue: asyncio.Queue):
    async with asyncio.timeout(PATIENCE_S):
        return await queue.get()


def failing(script=welcome_and_wait, *, answer=None, **extra):
    """Why dialling such a gateway fails."""

    async def main():
        async with gateway(script, answer=answer) as uri:
            with pytest.raises((LinkRefused, LinkBroken, LinkEnded)) as caught:
                await dial(uri, options(**extra))
            return caught.value

    return asyncio.run(main())


def talking(script, then, **extra):
    """Dial, start with a recorder, run ``then(link, recorder)``."""

    async def main():
        async with gateway(script) as uri:
            link = await dial(uri, options(**extra))
            recorder = Recorder()
            link.start(recorder)
            try:
                return await then(link, recorder)
            finally:
                link.close()

    return asyncio.run(main())
