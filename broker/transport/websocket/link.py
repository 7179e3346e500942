"""A WebSocket to a gateway as a Link: framed Flux messages in binary messages, on a sans-I/O protocol.

The link is the asyncio protocol of its connection, so what one read holds goes to the receiver without a task. What
is queued is joined into few WebSocket messages per flush; once the transport is full, forms are queued, as on UNIX
sockets.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, Final

from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State

from broker.awake import Deadline
from broker.errors import (
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkError,
    LinkRefused,
    MessageTooLarge,
    ProtocolError,
    Untranslatable,
)
from broker.transport.link import Link, Options, Receiver
from broker.transport.outbox import PROTO_TYPE
from broker.transport.websocket import refusal
from broker.wire import message as wire
from broker.wire.framing import Splitter
from broker.wire.payload import encode_text

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

    from broker.identity import PeerInfo
    from broker.transport.websocket.control import Conversation
    from broker.wire.message import Message

JOIN_BYTES: Final = 64 << 10
"""Framed messages are joined into one WebSocket message up to this size: a write is a system call and a masking."""
HIGH_BYTES: Final = 256 << 10
"""What the transport may hold before forms are queued, where limits count them."""
SILENCE: Final = 3.0
"""A gateway that pings every ``ping_s`` and was not heard for this many times as long is gone."""
REASON_BYTES: Final = 123
"""A close frame's reason (RFC 6455, 5.5)."""


class ClientLink(Link, asyncio.Protocol):
    """One connection to a gateway, from its upgrade on.

    Attributes:
        talk: the control objects of this link: ``talk.welcome``, ``talk.lost`` ...
    """

    __slots__ = (
        "_backlog",
        "_full",
        "_heard",
        "_loop",
        "_partial",
        "_paused",
        "_protocol",
        "_splitter",
        "_transport",
        "_watch",
        "talk",
    )

    talk: Conversation

    def __init__(self, peer: PeerInfo, options: Options, protocol: ClientProtocol) -> None:
        super().__init__(peer, options)
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._splitter = Splitter(options.max_bytes(peer))
        self._transport: asyncio.Transport | None = None
        self._backlog: list[Message] = []
        self._partial: list[bytes] | None = None
        self._paused = True
        self._full = False
        self._heard = False
        self._watch: Deadline | None = None

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The upgrade request leaves (``asyncio.Protocol``)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._write_out()

    def eof_received(self) -> None:
        """No more comes: the body of a refusal may end so; otherwise the connection does (``asyncio.Protocol``)."""
        if self.ended is None and self._protocol.state is State.CONNECTING:
            self._protocol.receive_eof()
            self._process()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; a no-op when a close frame has told so before (``asyncio.Protocol``)."""
        self._transport = None
        said = f": {self.talk.said}" if self.talk.said else ""
        if exc is None or isinstance(exc, ConnectionResetError):
            self._shut(LinkEnded(f"{self.peer.address} closed the connection without a close frame{said}"))
        else:
            number = exc.errno if isinstance(exc, OSError) else None
            self._shut(LinkBroken(f"{self.peer.address}: {exc}{said}", number))

    def pause_writing(self) -> None:
        """The transport is full: queue what follows (``asyncio.Protocol``)."""
        self._full = True

    def resume_writing(self) -> None:
        """The transport takes more: go on with the queue (``asyncio.Protocol``)."""
        self._full = False
        self._flush_queue()

    def watch(self, ping_s: float) -> None:
        """Break the link when nothing, not even a ping, comes for three times ``ping_s``; 0 never does. Nor does time
        in which we were stopped ourselves: then it begins anew.
        """
        if ping_s > 0 and self.ended is None:
            self._heard = False
            patience_s = ping_s * SILENCE
            due = self._loop.time() + patience_s
            self._watch = Deadline(self._loop, due, patience_s, lambda: self._silence(ping_s))

    def _silence(self, ping_s: float) -> None:
        if self._heard or self._paused:
            self.watch(ping_s)
        else:
            text = f"{self.peer.address}: nothing heard for {ping_s * SILENCE:g} s"
            self.abort(LinkBroken(text, errno.ETIMEDOUT))

    # -- reading -------------------------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        """See ``Link.start``; the end of a link that did not live so long is told then."""
        super().start(receiver)
        if self.ended is not None:
            self._loop.call_soon(self._told_late, self.ended)

    def _told_late(self, error: LinkError) -> None:
        assert self.receiver is not None
        if self._backlog:
            batch, self._backlog = self._backlog, []
            self.receiver.received(self, batch)
        self.receiver.link_ended(self, error)

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self.ended is None and self._transport is not None:
            if self._backlog:
                self._loop.call_soon(self._deliver, [])
            self._transport.resume_reading()

    def pause(self) -> None:
        """Stop reading; the gateway will feel it."""
        self._paused = True
        if self.ended is None and self._transport is not None:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """What one read holds: answers, messages, control objects, the end (``asyncio.Protocol``)."""
        if self.ended is not None:
            return
        self._heard = True
        self._protocol.receive_data(data)
        self._write_out()
        self._process()

    def _process(self) -> None:
        """Take what the protocol made of the bytes; what stood in front of an end is delivered first."""
        protocol = self._protocol
        messages: list[Message] = []
        failure: ProtocolError | None = None
        close: LinkError | None = None
        try:
            for event in protocol.events_received():
                close = self._take(event, messages)
                if close is not None:
                    break
        except ProtocolError as error:
            failure = error
        if messages:
            self._deliver(messages)
        if close is not None:
            self._shut(close)
        elif failure is not None or protocol.parser_exc is not None:
            self._fail(failure or ProtocolError(str(protocol.parser_exc)))

    def _take(self, event: Any, messages: list[Message]) -> LinkError | None:
        """Take one event; the error is the end that it means.

        Raises:
            ProtocolError: it breaks the subprotocol.
        """
        if isinstance(event, Response):
            return self._upgraded(event)
        assert isinstance(event, Frame)
        if event.opcode is Opcode.CLOSE:
            return self._closed()
        if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._data(event, messages)
        return None

    def _upgraded(self, response: Response) -> LinkError | None:
        error = self._protocol.handshake_exc
        if error is None and self._protocol.subprotocol is not None:
            return None
        if response.status_code == 101:
            text = error or "it chose no subprotocol"
            refused = LinkRefused(f"{self.peer.address} is no gateway: {text}", errno.EPROTONOSUPPORT)
            refused.final = True
            return refused
        return refusal.of_status(self.peer.address, response.status_code, bytes(response.body or b""))

    def _closed(self) -> LinkError:
        close = self._protocol.close_rcvd
        assert close is not None
        text = refusal.close_text(self.peer.address, close.code, close.reason, self.talk.said)
        kind = LinkEnded if self.talk.welcome else LinkRefused
        error = kind(text, refusal.of_close(close.code))
        error.final = refusal.is_final(close.code)
        return error

    def _data(self, frame: Frame, messages: list[Message]) -> None:
        """One data frame; fragments, which a proxy may make, are put together."""
        if frame.opcode is Opcode.CONT or not frame.fin:
            if self._partial is None:
                self._partial = [b"\1" if frame.opcode is Opcode.TEXT else b"\0"]
            self._partial.append(bytes(frame.data))
            if frame.fin:
                parts, self._partial = self._partial, None
                self._message(b"".join(parts[1:]), parts[0] == b"\1", messages)
        else:
            self._message(bytes(frame.data), frame.opcode is Opcode.TEXT, messages)

    def _message(self, data: bytes, text: bool, messages: list[Message]) -> None:
        if text:
            if messages:  # what stands in front of it is told before it
                self._deliver(messages)
                messages.clear()
            self.talk.received(data)
            return
        splitter = self._splitter
        messages += splitter.feed(data)
        if splitter.failure is not None:
            raise splitter.failure
        if splitter.pending_bytes:
            raise ProtocolError("a binary message that ends inside a frame")

    def _deliver(self, messages: list[Message]) -> None:
        """Hand over, or keep what came before ``start``."""
        self._backlog += messages
        if self._backlog and self.receiver is not None and not self._paused and self.ended is None:
            batch, self._backlog = self._backlog, []
            self.receiver.received(self, batch)

    def _fail(self, failure: ProtocolError) -> None:
        """What the gateway sent is no message: nothing after it can be trusted."""
        code = 1009 if isinstance(failure, MessageTooLarge) else 1002
        self._close_frame(code, str(failure))
        error = LinkBroken(f"{self.peer.address}: {failure}", failure.errno)
        error.final = True
        self._shut(error)

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``. One above the gateway's limit is refused here, not by a close."""
        outbox = self.outbox
        if self.ended is not None:
            outbox.discarded += 1
            return
        form = message.framed()
        limit = self.talk.message_bytes
        if limit and len(form) > limit:
            self._too_large(message, limit)
        elif outbox.queue is not None:
            outbox.enqueue(form, len(form), message.head[3])
        else:
            if not outbox.unflushed:
                self.flusher.touch(self)
            outbox.unflushed.append(form)

    def _too_large(self, message: Message, limit: int) -> None:
        text = f"{message.size + 8} bytes in one message, {self.peer.address} takes {limit}"
        if message.type == wire.RESPONSE:
            self.untranslatable += 1
            self.send(wire.response(message, encode_text(text), errnum=errno.EMSGSIZE))
        else:
            self.refuse(message, Untranslatable(text, errno.EMSGSIZE))

    def say(self, text: bytes) -> None:
        """Send a control object, in front of what is queued."""
        if self._open:
            self._protocol.send_text(text)
            self._write_out()

    @property
    def _open(self) -> bool:
        """False too while an end that was read is not told yet: messages before it are still being handed over."""
        return self.ended is None and self._protocol.state is State.OPEN

    def flush(self) -> None:
        """Write what is queued; queue what the transport does not take."""
        outbox = self.outbox
        fresh, at = outbox.unflushed, 0
        outbox.unflushed = []
        while at < len(fresh) and self._open and not self._full:
            stop = self._fit(fresh, at)
            self._write(fresh[at:stop])
            at = stop
        for form in fresh[at:]:
            outbox.enqueue(form, len(form), form[PROTO_TYPE])

    @property
    def _join_bytes(self) -> int:
        """Messages are joined up to this size: what the gateway takes in one WebSocket message may be less."""
        return min(JOIN_BYTES, self.talk.message_bytes or JOIN_BYTES)

    def _fit(self, forms: list[bytes], at: int) -> int:
        """Where the WebSocket message that begins with ``forms[at]`` ends."""
        size, limit = len(forms[at]), self._join_bytes
        at += 1
        while at < len(forms) and size + len(forms[at]) <= limit:
            size += len(forms[at])
            at += 1
        return at

    def _flush_queue(self) -> None:
        outbox, limit = self.outbox, self._join_bytes
        while outbox.queue and not self._full and self._open:
            forms = [outbox.dequeue()]
            size = len(forms[0])
            while outbox.queue and size + outbox.queue[0][1] <= limit:
                forms.append(outbox.dequeue())
                size += len(forms[-1])
            self._write(forms)
        if self.ended is None:
            outbox.settle()

    def _write(self, forms: list[bytes]) -> None:
        self.outbox.sent += len(forms)
        self.outbox.progress += 1
        self._protocol.send_binary(forms[0] if len(forms) == 1 else b"".join(forms))
        self._write_out()

    def _write_out(self) -> None:
        """Hand what the protocol wrote to the transport."""
        transport = self._transport
        for data in self._protocol.data_to_send():
            if data and transport is not None and not transport.is_closing():
                transport.write(data)

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Write what the transport takes now and a close frame, then end with LinkClosed."""
        if self.ended is None:
            self.flush()
            self._flush_queue()
            self._close_frame(refusal.NORMAL, reason)
        self._shut(LinkClosed(reason or "closed"))

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        transport = self._transport
        self._shut(error)
        if transport is not None:
            transport.abort()

    def _close_frame(self, code: int, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            short = reason.encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")
            self._protocol.send_close(code, short)
        self._write_out()

    def _shut(self, error: LinkError) -> None:
        if self.ended is not None:
            return
        if self.talk.again is not None:
            error.final = not self.talk.again
        self.talk.end()
        if self._watch is not None:
            self._watch.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        if not self.talk.welcomed.done():
            self.talk.welcomed.set_exception(error)
        if self.receiver is not None:
            self._backlog = []
        self.finish(error)
