"""A WebSocket connection of the server's side as a Link: a stream link with what the web needs beside messages.

What one read holds goes through the whole gateway without a task switch; data, pings, pongs and the close frame leave
by one outbox, and what subscribers share is made once for all of them (``send_run``). Responses wait up to a cap that
ends the link, events up to ``outbox_bytes`` and then as the client's policy says.

What comes compressed may be much more than was read: so much of it is handled in one turn of the loop as of other
messages (``Turn``), the rest in later turns, and the socket is not read meanwhile.

The end has three steps: an error object and a close frame are written, reading goes on (what comes is thrown away) so
that the peer can read them before its kernel hears of the end, and after the peer's close frame or ``LINGER_S`` the
connection goes. The receiver is told at the first step.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkError
from broker.rfc6455 import NORMAL
from broker.transport.byte_stream import Leaving
from broker.transport.link import Receiver
from broker.transport.stream import WRITE_BYTES, StreamLink
from broker.transport.tls.layer import TlsCodec
from broker.wire.message import EVENT, Message
from gateway import notices
from gateway.closes import INTERNAL, MEANINGS, SLOW
from gateway.codecs.contract import Refused
from gateway.websocket import frames
from gateway.websocket.codec import ServerCodec, are_messages
from gateway.websocket.deflate import Deflated
from gateway.websocket.outbox import WebOutbox
from gateway.websocket.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.errors import ProtocolError
    from broker.identity import PeerInfo
    from broker.transport.batching import Form
    from broker.transport.link import Options
    from broker.wire.message import Message
    from gateway.codecs.contract import Codec
    from gateway.events.run import Run
    from gateway.notices import Notice
    from gateway.web.admission import Slot
    from gateway.websocket.handshake import Taken


TURN_BYTES: Final = 16 << 10
"""What a turn of the loop takes in small messages before others get their part: some 150 calls, 5 ms ..."""
SHORT_BYTES: Final = 2 << 10
"""... and what each link may read after that in the same turn."""


class WebReceiver(Receiver, Protocol):
    """Who gets what comes out of the link of a web client."""

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client, in order with its messages."""

    def refused(self, message: Message, text: str) -> None:
        """A request of the client that is none, in order with its messages: what could be read of it, and why not."""


class Turn:
    """What the links of a loop have read in its present turn.

    Inflated bytes count as read bytes do. A link that has more waits in a row with the others and is not read
    meanwhile; it goes on at the beginning of a later turn.

    Attributes:
        taken: bytes that were read or inflated in it.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._is_over = True
        self._late: dict[WebSocketLink, None] = {}

    def read_bytes(self, missing: int) -> int:
        """What a link may read of whose present message ``missing`` bytes have not come; 0: as much as there is."""
        if self._is_over:
            self._start()
        if missing >= TURN_BYTES:  # of a large message, which costs little but its bytes
            return 0
        return TURN_BYTES if self.taken < TURN_BYTES else SHORT_BYTES

    @property
    def spare(self) -> int:
        """How many bytes may be inflated yet in this turn; 0 and less: none."""
        return TURN_BYTES - self.taken

    def later(self, link: WebSocketLink) -> None:
        """``link`` goes on when it is its turn; harmless twice."""
        self._late[link] = None
        self._start()

    def _start(self) -> None:
        if self._is_over:
            self._is_over = False
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.taken = 0
        self._is_over = True
        late = self._late
        while late and self.spare > 0:
            link = next(iter(late))
            del late[link]
            try:
                link.continue_reading()
            except (
                Exception
            ) as error:  # costs this link alone: those behind it are read by nobody but this loop
                log.exception("%s: cannot read on", link.peer.address)
                link.abort(LinkBroken(f"{link.peer.address}: cannot read on: {error!r}"))
        if late:
            self._start()


log = logging.getLogger("headgate")

LINGER_S: Final = 5.0
"""How long a peer that takes nothing may leave the close frame without an answer."""

_PING: Final = frames.ping()


class WebSocketLink(StreamLink):
    """One client's WebSocket after the handshake.

    Args:
        taken: its connection.
        turn: that all links of the loop share.
        codec: the subprotocol.
        options: ``limits.event_bytes`` is what events may occupy while they wait, ``limits.cap_bytes`` what everything
            may, ``limits.event_policy`` what happens beyond the first: ``disconnect`` or ``drop``.
        max_bytes: cap on a message; see ``Reader.max_bytes``.
        deflates: permessage-deflate was agreed on.
        answer: the end of the handshake, which leaves first.

    Attributes:
        code: the close code with which this side ended the connection; 0 until then, or when the other side did.
        codec: as above. reader: its ``max_bytes`` rises once the client is known.
        slot: of its connection.
        place: where ``Keepalive`` has it; the link takes itself out when it ends.
        lingers: told when the link has ended, and its connection has not.
    """

    __slots__ = ("_turn", "_web", "code", "codec", "lingers", "place", "reader", "slot")

    outbox: WebOutbox
    receiver: WebReceiver | None

    def __init__(
        self,
        taken: Taken,
        turn: Turn,
        codec: Codec,
        peer: PeerInfo,
        options: Options,
        *,
        max_bytes: int,
        deflates: bool = False,
        answer: bytes = b"",
    ) -> None:
        self.codec: Codec = Deflated(codec) if deflates else codec
        self.reader = Reader(max_bytes, inflates=deflates)
        self._turn = turn
        late = self._wait_for_turn if deflates else None
        self._web = web = ServerCodec(self.codec, self.reader, taken.tail, turn, late)
        sealed = web if taken.session is None else TlsCodec(taken.session, web)
        super().__init__(taken.sock, peer, options, sealed)
        self.outbox = WebOutbox(self, options.limits, options.budget)
        self.code = 0
        self.slot: Slot = taken.slot
        self.place: set[Any] | None = None
        self.lingers: Callable[[], object] = lambda: None
        if first := answer + codec.greeting:
            self._add(first)

    # -- reading -------------------------------------------------------------------------------

    def resume(self) -> None:
        """See ``StreamLink``; what was read already comes first."""
        self._reading = True
        if self.reader.rest:
            self._turn.later(self)
        else:
            super().resume()

    def continue_reading(self) -> None:
        """Handle some of what was read and waits."""
        if self._reading and self.ended is None:
            self._deliver(b"")
            if self._reading:
                self.resume()

    def _wait_for_turn(self) -> None:
        # the rest of what was read comes first; read on, and it would grow without bound
        self._loop.remove_reader(self._sock.fileno())
        self._turn.later(self)

    def _read_bytes(self) -> int:
        return self._turn.read_bytes(self.reader.missing_bytes)

    def hand_over(self, messages: list[Any]) -> None:
        """See ``StreamLink``: control objects and refused requests, too, in order."""
        whole = are_messages(messages)
        batch: list[Message] = messages if whole else []
        for item in () if whole else messages:
            if isinstance(item, Message):
                batch.append(item)
                continue
            self.hand_over(batch)
            batch = []
            if self.ended is None and self.receiver is not None:
                if isinstance(item, Refused):
                    self.receiver.refused(item.message, item.text)
                else:
                    self.receiver.control(item)
        if batch and self.ended is None and self.receiver is not None:
            self.receiver.received(self, batch)

    def _fail(self) -> None:
        self.close_with(INTERNAL)

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``."""
        form, outbox = self.codec.encode(message), self.outbox
        # one form alone would fill a write: what waits in front of it goes first
        if len(form) > WRITE_BYTES:
            self.flush()  # what is large may have to wait, and counts as what it is then
        if outbox.queue is None:
            fresh = outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)
        elif message.head[3] == EVENT:
            outbox.enqueue_events(form, 1, message.sequence, message.sequence)
        else:
            outbox.enqueue(form, len(form))

    def send_run(self, run: Run) -> None:
        """Queue a run of events; its form is made once for all links with this codec."""
        form = self.codec.encode_run(run)
        if self.outbox.queue is None:
            self._add(form)
        else:
            self.outbox.enqueue_events(form, len(run.messages), run.first, run.last)

    def tell(self, obj: Notice) -> None:
        """Queue a control object; nothing where the subprotocol has no place for it."""
        form = self.codec.encode_control(obj)
        if form is not None:
            self._add(form)

    def _pay(self) -> None:
        """See ``StreamLink``. Of pings that have to wait the newest is answered (5.5.3): a flood waits nowhere."""
        super()._pay()
        del self._web.owed[:-1]

    def ping(self) -> None:
        """Ask for a sign of life, unless more waits for the peer than the kernel takes: then ``life`` shows whether it
        drains.
        """
        if self.outbox.queue is None:
            self._add(_PING)

    def _add(self, form: bytes) -> None:
        outbox = self.outbox
        if outbox.queue is None:
            fresh = outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)
        else:
            outbox.enqueue(form, len(form))

    def _queue(self, forms: list[Form], taken: int, made: int) -> None:
        """See ``StreamLink``. Events of one flush are not told from other forms, and none of them is dropped."""
        self.outbox.enqueue_rest([(form, len(form), 0) for form in forms], taken, made)
        self._want_write(True)

    @property
    def life(self) -> int:
        """Grows with every sign of life: a read; or the kernel takes some of what it had no room for, since the peer
        did: one large message may take longer than anybody has patience for a pong.
        """
        return self._web.life

    def _drain(self) -> None:
        self._web.life += 1
        super()._drain()

    def _left(self) -> None:
        """See ``StreamLink``. The notice of a gap goes before the events that are taken again."""
        gap = self.outbox.take_gap()
        if gap is not None:
            self.tell(notices.gap(*gap))

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """End with code 1000; see ``close_with``."""
        self.close_with(NORMAL, reason)

    def close_with(self, code: int, reason: str = "", *, error: LinkError | None = None) -> None:
        """End the link with a code of ``gateway.closes``; what was sent goes out as far as the peer takes it at once.

        Args:
            code: for every one but NORMAL an error object goes before the close frame.
            reason: for the client; empty says what the code means. Cut to 123 bytes in the close frame.
            error: what the receiver is told; by default LinkClosed (SLOW: LinkBroken) with code and reason.
        """
        if self.ended is not None:
            return
        self.code = code
        reason = reason or MEANINGS[code].text
        # browsers tell a page nothing of a close but code and reason: the object says whether to come again
        said = None if code == NORMAL else self.codec.encode_control(notices.error(code, reason))
        self._web.leave((said or b"") + frames.close(code, reason))
        kind = LinkBroken if code == SLOW else LinkClosed  # as on other links whose outbox overflows
        self._leave(error or kind(f"{self.peer.address}: closed with {code}: {reason}"), reason)

    def _hung_up(self, text: str, number: int | None = None) -> LinkError:
        return self._lost or LinkEnded(f"{self.peer.address}: ended without a close frame", number)

    def _refuse(self, failure: ProtocolError | LinkError) -> None:
        """See ``StreamLink``. Who sent no message hears why; a close frame is answered with its code (5.5.1)."""
        where = self.peer.address
        if failure is not self._web.failure:  # TLS around us has ended, or failed
            super()._refuse(failure)
        elif isinstance(failure, LinkError):
            self._leave(LinkEnded(f"{where}: {failure}"), "")
        else:
            error = LinkBroken(f"{where}: {failure}", errno.EPROTO)
            self.close_with(self._web.code, str(failure), error=error)

    def _see_off(
        self, left: deque[Form | memoryview], encode: Callable[[deque[Any]], bytes | bytearray]
    ) -> None:
        """See ``StreamLink``. What waits is not sent, for nobody counts it any more; what has begun goes to its end."""
        # a frame that was cut off would make the close frame behind it part of its payload
        begun = deque(each for each in left if isinstance(each, memoryview))
        self.outbox.discarded += len(left) - len(begun)
        is_told = self._web.says_goodbye
        leaving = Leaving(
            self._loop, self._sock, self._rest, begun, encode, is_told, self._is_answer, LINGER_S
        )
        self._rest = b""
        leaving.left.add_done_callback(lambda _left: self._codec.forget())

    def _is_answer(self, data: bytes) -> bool:
        self._codec.feed(data)
        return self.reader.closed

    def finish(self, error: LinkError) -> None:
        """See ``Link.finish``."""
        if self.place is not None:
            self.place.discard(self)
        super().finish(error)
        if self._sock.fileno() >= 0:
            self.lingers()
