"""How a replay uses a connection: each message in order, its answer awaited apart."""

from __future__ import annotations

import asyncio

from broker.client import Handle
from broker.client.calls import Stream
from broker.errors import Overrun, RpcError
from broker.journal.replay import Sent
from broker.wire.message import EVENT, NODEID_ANY, NORESPONSE, STREAMING, UPSTREAM, Message


class Sender:
    """The ``send`` of a replay over one handle."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._rank: int | None = None

    async def __call__(self, message: Message) -> Sent:
        """Send it, once the link takes more.

        Raises:
            LinkError: the link has ended. HeadgateError: EAGAIN, too many calls wait.
        """
        handle = self._handle
        await handle.writable()
        if handle.ended is not None:
            raise handle.ended
        flags = message.flags
        if flags & UPSTREAM and message.nodeid == NODEID_ANY and message.type != EVENT:
            if self._rank is None:
                self._rank = await handle.rank()
            message.set_aux1(self._rank)
        if message.type == EVENT or flags & NORESPONSE:
            handle.send(message)
            return Sent(0, None)
        if flags & STREAMING:
            return await self._stream(message)
        answer = handle.request(message)
        return Sent(message.matchtag, _errnum(answer))

    async def _stream(self, message: Message) -> Sent:
        stream = self._handle.stream(
            message.topic or "",
            message.payload,
            nodeid=message.nodeid,
            upstream=bool(message.flags & UPSTREAM),
        )
        stream.request.set_credentials(message.userid, message.rolemask)
        await stream.__aenter__()  # sends it, without waiting
        return Sent(stream.request.matchtag, _last(stream))


async def _errnum(answer: asyncio.Future[Message]) -> int:
    return (await answer).errnum


async def _last(stream: Stream) -> int:
    """Read a stream to its end; cancelled, it cancels the stream."""
    try:
        async for _response in stream:
            pass
    except RpcError as error:
        return error.errno
    except Overrun:
        return 0  # it answered, more than was asked for
    finally:
        await stream.__aexit__(None, None, None)
    return 0
