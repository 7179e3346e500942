"""The HTTP connections of one listener: how many there may be, and how long a request head may take to come.

aiohttp closes a connection on which nothing was asked for a while, however many others there are, and waits as long
for a request head that comes a byte at a time (slowloris). Here each head has a deadline, the first one from the
beginning of the connection and further ones from their first byte; and of too many connections the one that has been
idle for longest goes. WebSockets are none of them: they were taken over, and the hub counts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

MakeConnection = Callable[["Connections"], "Connection"]


class Connections:
    """The connections of one listener.

    Args:
        make: makes aiohttp's side of one.
        head_s: how long a request head may take.
        most: so many may be open; one more closes the one that has been idle for longest.
    """

    def __init__(self, make: MakeConnection, *, head_s: float, most: int) -> None:
        self.head_s = head_s
        self._make = make
        self._most = most
        self._all: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._all)

    def open(self) -> Connection:
        """The protocol of a connection that was accepted (a factory as ``loop.create_server`` wants it).

        When requests are under way on all others, it is the new one that is closed.
        """
        connection = self._make(self)
        self._all.add(connection)
        self.rests(connection)
        connection.expect_head()
        if len(self._all) > self._most:
            next(iter(self._idle)).cut()
        return connection

    def rests(self, connection: Connection) -> None:
        """Nothing is under way on it any more, beside an answer that its client has to read."""
        if connection in self._all:
            self._idle[connection] = None

    def works(self, connection: Connection) -> None:
        """It has a request."""
        self._idle.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """It has ended."""
        self._all.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """No deadline counts any more."""
        for connection in self._all:
            connection.expect_nothing()


class Connection(web.RequestHandler):
    """aiohttp's side of one connection, with a deadline for each request head."""

    __slots__ = ("_body", "_connections", "_deadline", "_ended")

    def __init__(self, manager: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = (
            None  # of the request that was answered last; None while one is under way
        )
        self._ended = False

    def expect_head(self) -> None:
        """A request head has to be there within ``head_s``."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._connections.head_s, self.cut)

    def expect_nothing(self) -> None:
        """No head has to come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def arrived(self) -> None:
        """A request head is there."""
        self._body = None
        self.expect_nothing()
        self._connections.works(self)

    def cut(self) -> None:
        """Close it, without waiting for a client that does not read."""
        self._end()
        transport = self.transport
        self.force_close()
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()

    def _end(self) -> None:
        self._ended = True
        self.expect_nothing()
        self._connections.forget(self)

    # -- what asyncio and aiohttp call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection begins; one that was cut during its TLS handshake ends."""
        super().connection_made(transport)
        if self._ended:
            self.cut()

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has ended, or was taken over."""
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes behind the end of a request begin the next head."""
        if data and self._body is not None and self._deadline is None and self._body.is_eof():
            self.expect_head()
        super().data_received(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The answer is there and is written now."""
        self.expect_nothing()
        self._connections.rests(self)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._body = request.content
