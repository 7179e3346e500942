"""A WebSocket connection of the server's side as a Link: one read in, one joined write out.

Theory of operation. The link is the asyncio protocol of its connection (``endpoint`` takes it over from aiohttp after
the handshake), so that what one read holds goes through the whole gateway without a task switch. It is also the only
writer: data, pings, pongs and the close frame all leave through ``flush``, which joins the forms of one tick. Once the
transport takes no more, forms are *queued* as references that subscribers share: responses up to a cap that ends the
link, events up to ``outbox_bytes`` and then as the client's policy says.

What comes compressed may be much more than was read: so much of it is handled in one turn of the loop as of other
messages (``ReadBuffer``), the rest in later turns, and the socket is not read meanwhile.

The end has three steps: an error object and a close frame are written, reading goes on (what comes is thrown away) so
that the peer can read them before its kernel hears of the end, and after the peer's close frame or ``LINGER_S`` the
connection goes. The receiver is told at the first step.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from broker.errors import DecodeError, LinkBroken, LinkClosed, LinkEnded, LinkError, MessageTooLarge
from broker.rfc6455 import NORMAL, TOO_BIG
from broker.transport.link import Link, Options
from broker.wire.message import EVENT, Message
from gateway.closes import BAD_MESSAGE, INTERNAL, MEANINGS, SLOW
from gateway.codecs import control
from gateway.codecs.contract import Refused
from gateway.websocket import frames
from gateway.websocket.deflate import Deflated
from gateway.websocket.outbox import WebOutbox
from gateway.websocket.reader import Reader
from gateway.websocket.receiving import WebReceiver, shared_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.identity import PeerInfo
    from gateway.codecs.contract import Codec
    from gateway.events.run import Run
    from gateway.web.admission import Slot

log = logging.getLogger("headgate")

WRITE_BYTES: Final = 256 << 10
"""Forms are joined up to this size for one write, so that the transport never holds much more that nobody counts."""
LINGER_S: Final = 5.0
"""How long a peer may take to read the close frame and answer it."""

_PING: Final = frames.ping()


class WebSocketLink(Link, asyncio.BufferedProtocol):
    """One client's WebSocket after the handshake.

    Args:
        transport: connected already; ``begin`` makes the link its protocol.
        codec: the subprotocol.
        options: ``limits.event_bytes`` is what events may occupy while they wait, ``limits.cap_bytes`` what everything
            may, ``limits.event_policy`` what happens beyond the first: ``disconnect`` or ``drop``.
        max_bytes: cap on a message; see ``Reader.max_bytes``.
        deflates: permessage-deflate was agreed on.

    Attributes:
        code: the close code with which this side ended the connection; 0 until then, or when the other side did.
        reader: its ``max_bytes`` rises once the client is known.
        place: where ``Keepalive`` has it; the link takes itself out when it ends.
        slot: of a connection that is no session's; it leaves when the connection has gone, not at the end before that.
        lingers: counts the link from its end on until its connection has gone, unless it has a slot.
    """

    __slots__ = (
        "_buffer",
        "_deflates",
        "_full",
        "_held",
        "_late",
        "_linger",
        "_paused",
        "_pong",
        "_signs",
        "_transport",
        "_unsent",
        "code",
        "codec",
        "lingers",
        "place",
        "reader",
        "slot",
    )

    receiver: WebReceiver | None

    def __init__(
        self,
        transport: asyncio.Transport,
        codec: Codec,
        peer: PeerInfo,
        options: Options,
        *,
        max_bytes: int,
        deflates: bool = False,
    ) -> None:
        super().__init__(peer, options)
        self.outbox: WebOutbox = WebOutbox(self, options.limits, options.budget)
        self.code = 0
        self.codec: Codec = Deflated(codec) if deflates else codec
        self.reader = Reader(max_bytes, inflates=deflates)
        self._deflates = deflates
        self._held = False  # somebody wants nothing read
        self._late = False  # something was read that waits for its turn
        self._signs = 0  # of life
        self._unsent = 0  # bytes that a full transport held when somebody asked last
        self.place: set[Any] | None = None
        self.slot: Slot | None = None
        self.lingers: Callable[[WebSocketLink], None] | None = None
        self._transport: asyncio.Transport | None = transport
        self._buffer = shared_buffer()
        self._paused = False  # the transport takes no more
        self._full = False  # nothing goes to it: it is paused, something waits before us, or this is the end
        self._pong: bytes | None = None  # payload of the newest ping that waits for its pong
        self._linger: asyncio.TimerHandle | None = None
        if codec.greeting:
            self._queue(codec.greeting)

    def begin(self, tail: bytes = b"", *, full: bool = False) -> None:
        """Become the protocol of the transport.

        Args:
            tail: what the protocol before us has read behind the handshake.
            full: that protocol was told to pause writing and not yet to resume.
        """
        transport = self._transport
        if transport is None:
            return
        transport.set_protocol(self)
        if full:
            self.pause_writing()
        transport.set_write_buffer_limits(
            high=1, low=0
        )  # what the kernel does not take is queued and counted
        if tail:
            self._take(tail)

    # -- reading -------------------------------------------------------------------------------

    def resume(self) -> None:
        """Read again."""
        self._held = False
        if self.reader.rest:
            self._wait_for_turn()
        elif self._transport is not None:
            self._transport.resume_reading()

    def pause(self) -> None:
        """Stop reading; the kernel's buffer fills and the peer blocks."""
        self._held = True
        if self._transport is not None and self.ended is None:
            self._transport.pause_reading()

    def continue_reading(self) -> None:
        """Handle some of what was read and waits."""
        self._late = False
        if self._held and self.ended is None:
            return
        self._take(b"")
        if not (self.reader.rest or self._held) and self._transport is not None:
            self._transport.resume_reading()

    def _wait_for_turn(self) -> None:
        if not self._late:
            self._late = True
            self._buffer.later(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        return self._buffer.room(self.reader.missing_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        """A read of ``nbytes`` is in the buffer."""
        self._take(self._buffer.take(nbytes))

    def _take(self, data: bytes) -> None:
        self._signs += 1
        arrived = self._inflate(data) if self._deflates else self.reader.feed(data)
        if self.ended is not None:
            if self.reader.closed:
                self._shut()
            return
        try:
            self._deliver(arrived)
        except Exception:
            log.exception("%s: a fault while handling what it sent", self.peer.address)
            self.close_with(INTERNAL)

    def _inflate(self, data: bytes) -> list[tuple[int, bytes]]:
        """What the reader makes of ``data``, as far as this turn of the loop has room for it."""
        reader, spare = self.reader, 0 if self._held else self._buffer.spare
        reader.deaf = self.ended is not None
        arrived = reader.feed_some(data, spare)
        if not reader.deaf:
            self._buffer.made(spare - reader.spare)
        if reader.rest:
            if self._transport is not None:
                self._transport.pause_reading()
            if not self._held:
                self._wait_for_turn()
        return arrived

    def _deliver(self, arrived: list[tuple[int, bytes]]) -> None:
        """Hand over what one read completed, then end the link if it held what must not be."""
        batch: list[Message] = []
        decode = self.codec.decode
        failure: tuple[int, str] | None = self.reader.failure
        for opcode, payload in arrived:
            if opcode > frames.BINARY:
                if opcode == frames.CLOSE:
                    self._hand_over(batch)
                self._control_frame(opcode, payload)
                continue
            try:
                items = decode(payload, opcode == frames.TEXT)
            except (DecodeError, MessageTooLarge) as error:
                failure = (TOO_BIG if isinstance(error, MessageTooLarge) else BAD_MESSAGE, str(error))
                break
            batch = self._sort(items, batch)
        self._hand_over(batch)
        if failure is not None:
            self.close_with(*failure, error=LinkBroken(f"{self.peer.address}: {failure[1]}", errno.EPROTO))

    def replay(self, items: Sequence[Message | dict[str, Any] | Refused]) -> None:
        """Hand over what came while nobody could take it."""
        self._hand_over(self._sort(items, []))

    def _sort(
        self, items: Sequence[Message | dict[str, Any] | Refused], batch: list[Message]
    ) -> list[Message]:
        """Add messages to ``batch``; anything else is handed over at once, what came before it first."""
        for item in items:
            if isinstance(item, Message):
                batch.append(item)
                continue
            self._hand_over(batch)
            batch = []
            if self.ended is None and self.receiver is not None:
                if isinstance(item, Refused):
                    self.receiver.refused(item.message, item.text)
                else:
                    self.receiver.control(item)
        return batch

    def _hand_over(self, batch: list[Message]) -> None:
        if batch and self.ended is None and self.receiver is not None:
            self.receiver.received(self, batch)

    def _control_frame(self, opcode: int, payload: bytes) -> None:
        if opcode == frames.CLOSE:
            self._closed_by_peer(payload)
        elif opcode == frames.PING:
            if self._full:
                self._pong = payload  # the newest is answered, no other (5.5.3): a flood waits nowhere
            else:
                self._queue(frames.pong(payload))

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``."""
        form = self.codec.encode(message)
        if self._full and message.head[3] == EVENT:
            self._queue_events(form, 1, message.sequence, message.sequence)
        else:
            self._queue(form)

    def send_run(self, run: Run) -> None:
        """Queue a run of events; its form is made once for all links with this codec."""
        form = self.codec.encode_run(run)
        if self._full:
            self._queue_events(form, len(run.messages), run.first, run.last)
        else:
            fresh = self.outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)

    def tell(self, obj: dict[str, Any]) -> None:
        """Queue a control object; nothing where the subprotocol has no place for it."""
        form = self.codec.encode_control(obj)
        if form is not None:
            self._queue(form)

    def ping(self) -> None:
        """Ask for a sign of life, unless more waits for the peer than the transport takes: then ``life`` shows whether
        it drains.
        """
        if not self._full:
            self._queue(_PING)

    @property
    def life(self) -> int:
        """Grows with every sign of life: a read, or a full transport that has drained, or holds less than when this
        was asked last: one large message may take longer than anybody has patience for a pong.
        """
        unsent = self._transport.get_write_buffer_size() if self._full and self._transport is not None else 0
        if 0 < unsent < self._unsent:
            self._signs += 1
        self._unsent = unsent
        return self._signs

    def _queue(self, form: bytes) -> None:
        if not self._full:
            fresh = self.outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)
        elif self.ended is None:
            self.outbox.enqueue_form(form)
        else:
            self.outbox.discarded += 1

    def _queue_events(self, form: bytes, count: int, first: int, last: int) -> None:
        """The way of events while the link is full."""
        if self.ended is None:
            self.outbox.enqueue_events(form, count, first, last)
        else:
            self.outbox.discarded += 1

    def flush(self) -> None:
        """Hand what is queued to the transport in one write; queue what is beyond a full one."""
        outbox = self.outbox
        fresh = outbox.unflushed
        if not fresh:
            return
        outbox.unflushed = []
        transport = self._transport
        if self.ended is not None or transport is None:
            outbox.discarded += len(fresh)
            return
        data = fresh[0] if len(fresh) == 1 else b"".join(fresh)
        if len(data) <= WRITE_BYTES:
            self._write(data, len(fresh))
        else:
            self._flush_burst(deque(fresh))

    def _flush_burst(self, forms: deque[bytes]) -> None:
        """Write more than the transport should get at once: until it is full; the rest is queued."""
        while forms and not self._paused and self.ended is None:
            piece, size = [forms.popleft()], 0
            while forms and size + len(piece[-1]) + len(forms[0]) <= WRITE_BYTES:
                size += len(piece[-1])
                piece.append(forms.popleft())
            self._write(b"".join(piece), len(piece))
        for form in forms:
            self._queue(form)

    def _write(self, data: bytes, forms: int) -> None:
        assert self._transport is not None
        self.outbox.sent += forms
        self.outbox.progress += 1
        self._transport.write(data)

    def pause_writing(self) -> None:
        """The transport holds bytes that the kernel did not take: queue from now on."""
        self._paused = self._full = True
        outbox = self.outbox
        fresh, outbox.unflushed = outbox.unflushed, []
        for form in fresh:
            self._queue(form)

    def resume_writing(self) -> None:
        """The kernel took everything, so the peer has read something: go on with what is queued."""
        self._paused = False
        self._signs += 1
        if self.ended is None:
            self._drain()

    def _drain(self) -> None:
        outbox = self.outbox
        while not self._paused and (forms := outbox.take(WRITE_BYTES)):
            self._write(b"".join(forms), len(forms))
        if not self._paused:
            self._full = False
            if self._pong is not None:
                self._queue(frames.pong(self._pong))
                self._pong = None
        gap = outbox.take_gap()
        if gap is not None:
            self.tell(control.gap(*gap))
        outbox.settle()

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Send what is queued as far as the peer takes it without waiting, then a close frame with code 1000."""
        self.close_with(NORMAL, reason)

    def close_with(self, code: int, reason: str = "", *, error: LinkError | None = None) -> None:
        """End the link with a code of ``gateway.closes``; what is queued goes out as far as the peer takes it.

        Args:
            code: for every one but NORMAL an error object goes before the close frame.
            reason: for the client; empty says what the code means. Cut to 123 bytes in the close frame.
            error: what the receiver is told; by default LinkClosed (SLOW: LinkBroken) with code and reason.
        """
        if self.ended is None:
            self.flush()
        transport = self._transport
        if self.ended is not None or transport is None:
            return
        self.code = code
        reason = reason or MEANINGS[code].text
        kind = LinkBroken if code == SLOW else LinkClosed  # as on other links whose outbox overflows
        self._end(error or kind(f"{self.peer.address}: closed with {code}: {reason}"))
        said = None if code == NORMAL else self.codec.encode_control(control.error(code, reason))
        transport.write((said or b"") + frames.close(code, reason))
        if self.reader.failure is not None and transport.can_write_eof():
            transport.write_eof()  # its close frame cannot be found among what it sends; but it will see this end
        transport.resume_reading()  # whatever it still sends must be read, or the kernel would reset the connection
        if self.reader.rest:
            self._wait_for_turn()  # its close frame may be there
        self._expire_later()

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    def _closed_by_peer(self, payload: bytes) -> None:
        """Answer a close frame with the same code and close the connection, which is the server's to do (7.1.1)."""
        self.flush()
        transport = self._transport
        if self.ended is not None or transport is None:
            return
        code, reason = frames.close_meaning(payload)
        self._end(LinkEnded(f"{self.peer.address}: closed by the client with {code} {reason!r}"))
        transport.write(frames.close(code))
        self._shut()

    def _shut(self) -> None:
        """Close the connection once everything is written, or after ``LINGER_S`` in any case."""
        if self._transport is not None:
            self._transport.close()
            self._expire_later()

    def _expire_later(self) -> None:
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._expire)
            if self.slot is None and self.lingers is not None:
                self.lingers(self)

    def _expire(self) -> None:
        self._linger = None
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        """The peer will send no more; without a close frame before it, that is the end."""
        self._end(LinkEnded(f"{self.peer.address}: ended without a close frame"))
        self._expire_later()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone. Who ended may be part of a cycle, and be there for minutes: its bytes are not."""
        self._transport = None
        self.reader.forget()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        where = self.peer.address
        self._end(LinkBroken(f"{where}: {exc}") if exc else LinkEnded(f"{where}: the connection was lost"))
        if self.slot is not None:
            self.slot.release()

    def _end(self, error: LinkError) -> None:
        self._full = True
        self._pong = None
        if self.place is not None:
            self.place.discard(self)
        self.finish(error)
