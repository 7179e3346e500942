"""Framed messages on a TLS connection. The link is the asyncio protocol of its connection: it needs no task."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Final

from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.transport.link import Link, Options
from broker.transport.outbox import PROTO_TYPE
from broker.wire.framing import Splitter
from broker.wire.message import Message
from headgate_tls.certificates import Certificate

HIGH_BYTES: Final = 256 << 10
"""What the connection may hold before forms are queued, where the limits of the outbox count them."""
WRITE_BYTES: Final = 256 << 10
"""Parked frames are joined up to this size for one write."""
SHUTDOWN_S: Final = 2.0
"""How long a connection that was closed may take to send the rest."""


class TlsLink(Link, asyncio.Protocol):
    """One connection, of either side.

    Args:
        address: for logs. options: as of ``listen`` or ``dial``.
        greeted: a dialer's: what is to resolve when the listener let us in.
    """

    __slots__ = ("_backlog", "_full", "_greeted", "_loop", "_paused", "_splitter", "_transport")

    def __init__(self, address: str, options: Options, greeted: asyncio.Future[None] | None = None) -> None:
        super().__init__(PeerInfo(address), options)
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter(options.max_bytes(self.peer))
        self._transport: asyncio.Transport | None = None
        self._backlog: list[Message] = []
        self._paused = True
        self._full = False
        self._greeted = greeted

    def certificate(self) -> Certificate:
        """What the peer has shown."""
        assert self._transport is not None
        shown: ssl.SSLObject = self._transport.get_extra_info("ssl_object")
        return Certificate(shown.getpeercert(binary_form=True) or b"", shown.getpeercert() or {})

    async def admitted(self) -> None:
        """A dialer's: wait for the listener's first byte.

        Raises:
            LinkRefused: it is an errno. LinkEnded, LinkBroken: there is none.
        """
        assert self._greeted is not None
        await self._greeted

    def admit(self, peer: PeerInfo, max_bytes: int) -> None:
        """A listener's: it is ``peer``, who may come in."""
        self.peer = peer
        self._splitter = Splitter(max_bytes)
        self.greet(0)

    def greet(self, errnum: int) -> None:
        """A listener's: the first byte on the connection; 0, or the errno of a refusal."""
        if self._transport is not None:
            self._transport.write(bytes((errnum & 0xFF,)))

    # -- the connection (asyncio.Protocol) -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done; messages are read once there is somebody who hears them."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._greeted is None:
            transport.pause_reading()
        transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer; what comes while we are paused was on its way."""
        if self._greeted is not None and not self._greeted.done():
            data = self._greeting(data, self._greeted)
        self._backlog += self._splitter.feed(data)
        if not self._paused:
            self._deliver()

    def _greeting(self, data: bytes, greeted: asyncio.Future[None]) -> bytes:
        errnum, rest = data[0], data[1:]
        if errnum:
            text = f"{self.peer.address} refused the connection: {os.strerror(errnum)}"
            greeted.set_exception(LinkRefused(text, errnum))
        else:
            greeted.set_result(None)
            if self._paused and self._transport is not None:
                self._transport.pause_reading()
        return rest

    def _deliver(self) -> None:
        """Hand over what was read; a frame that is none ends the link behind what stood before it."""
        messages, self._backlog = self._backlog, []
        if messages and self.receiver is not None and self.ended is None:
            self.receiver.received(self, messages)
        failure = self._splitter.failure
        if failure is not None and self.ended is None:
            self.flush()
            self.abort(LinkBroken(f"{self.peer.address}: {failure}", failure.errno))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over; what came before is delivered, paused or not."""
        self._transport = None
        address = self.peer.address
        if exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError):
            error: LinkError = LinkEnded(f"{address} closed the connection")
        else:
            error = LinkBroken(f"{address}: {exc}", exc.errno if isinstance(exc, OSError) else None)
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(error)
        if self.ended is None:
            if self.receiver is not None:
                self._deliver()
            self.finish(error)

    # -- reading -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading; TCP holds the peer back."""
        self._paused = True
        if self._transport is not None and self.ended is None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again, first what was on its way."""
        if self.ended is None:
            self._paused = False
            if self._backlog:
                self._loop.call_soon(self._rest)
            elif self._transport is not None:
                self._transport.resume_reading()

    def _rest(self) -> None:
        if not self._paused and self.ended is None:
            self._deliver()
            if not self._paused and self._transport is not None:
                self._transport.resume_reading()

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``."""
        outbox = self.outbox
        form = message.framed()
        if outbox.queue is None:
            if not outbox.unflushed:
                self.flusher.touch(self)
            outbox.unflushed.append(form)
        elif self.ended is None:
            outbox.enqueue(form, len(form), message.type)

    def flush(self) -> None:
        """Write what is queued in one call; queue it where the connection is full."""
        outbox = self.outbox
        unflushed = outbox.unflushed
        if not unflushed:
            return
        outbox.unflushed = []
        if self.ended is not None or self._transport is None:
            outbox.discarded += len(unflushed)
        elif self._full or sum(map(len, unflushed)) > WRITE_BYTES:
            for form in unflushed:
                outbox.enqueue(form, len(form), form[PROTO_TYPE])
            self._write_queue()
        else:
            self._transport.write(unflushed[0] if len(unflushed) == 1 else b"".join(unflushed))
            outbox.sent += len(unflushed)
            outbox.progressed()

    def pause_writing(self) -> None:
        """The connection is full (asyncio.Protocol)."""
        self._full = True

    def resume_writing(self) -> None:
        """The connection takes more (asyncio.Protocol)."""
        self._full = False
        self._write_queue()

    def _write_queue(self) -> None:
        """Write in pieces: what the connection has not sent yet is in nobody's limits."""
        outbox = self.outbox
        while outbox.queue and not self._full and self._transport is not None:
            forms = outbox.oldest(WRITE_BYTES)
            begun = len(forms[0]) - outbox.queue[0][1]
            data = memoryview(b"".join(forms))[begun : begun + WRITE_BYTES]
            self._transport.write(data)
            outbox.consume(len(data))
            outbox.progressed()
        outbox.settle()

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Send what is queued as far as the connection takes it, then end with LinkClosed."""
        if self.ended is None:
            self.flush()
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.close()
                self._loop.call_later(SHUTDOWN_S, transport.abort)
            self.finish(LinkClosed(reason or "closed"))

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        if self.ended is None:
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.abort()
            self.finish(error)
