"""RFC 6455 as the codec of a stream link: framed messages in binary messages, control objects in text messages.

The sans-I/O protocol of the ``websockets`` library makes frames of messages and the other way round. What is flushed
together is joined into few WebSocket messages; what is too large to be made at once leaves in fragments of one. HTTP
answers and close codes of a gateway become errors of ours (``of_status``, ``of_close``).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State

from broker.errors import LinkBroken, LinkEnded, LinkError, LinkRefused, MessageTooLarge, ProtocolError
from broker.nesting import read_json
from broker.rfc6455 import NORMAL, PROTOCOL, TOO_BIG, cut, reconnects
from broker.transport.batching import Form
from broker.transport.codec import FluxCodec
from broker.transport.websocket.control import Conversation
from broker.wire.message import Message

BY_STATUS: Final = {
    400: errno.EPROTO,
    401: errno.EACCES,
    403: errno.EPERM,
    404: errno.ENOENT,
    426: errno.EPROTONOSUPPORT,
    429: errno.EAGAIN,
    503: errno.EAGAIN,
}
"""Status of a refused upgrade -> errno, where the body names none; every other one is ECONNREFUSED."""
BY_CODE: Final = {
    1002: errno.EPROTO,
    1003: errno.EPROTO,
    1007: errno.EPROTO,
    1009: errno.EMSGSIZE,
    4000: errno.ESHUTDOWN,
    4002: errno.ENOBUFS,
    4003: errno.ETIMEDOUT,
    4004: errno.EKEYEXPIRED,
    4005: errno.EAGAIN,
    4500: errno.EACCES,
    4501: errno.EPERM,
    4502: errno.ETIMEDOUT,
    4503: errno.EPROTO,
    4504: errno.EUSERS,
    4506: errno.EKEYREVOKED,
    4507: errno.EAGAIN,
}
"""Close code (gateway/PROTOCOL.md) -> errno; every other one is ECONNRESET."""
LATER: Final = frozenset({408, 425, 429})
"""Statuses from 400 to 499 after which another attempt may end otherwise."""
_TEXT_CHARS: Final = 500
JOIN_BYTES: Final = 64 << 10
"""Framed messages are joined into one WebSocket message up to this size: each has a head and a mask of its own."""
OWED_MAX: Final = 1024
"""Answers to pings that may wait."""


def of_status(address: str, status: int, body: bytes, phrase: str = "") -> LinkRefused:
    """The error that a refused upgrade means: the errno and text of its problem body, its plain text, or ``phrase``."""
    errnum, text = _problem(body)
    known = BY_STATUS.get(status, errno.ECONNREFUSED)
    error = LinkRefused(f"{address} refused the connection: {status} {text or phrase}", errnum or known)
    error.final = 400 <= status < 500 and status not in LATER
    return error


def _problem(body: bytes) -> tuple[int, str]:
    try:
        said = read_json(body)
    except ValueError:
        return 0, body.decode("utf-8", "replace").strip()[:_TEXT_CHARS]
    if not isinstance(said, dict):
        return 0, ""
    errnum, text = said.get("errno"), said.get("text") or said.get("error")
    return (errnum if isinstance(errnum, int) else 0), (text[:_TEXT_CHARS] if isinstance(text, str) else "")


def of_close(kind: type[LinkError], address: str, code: int, reason: str) -> LinkError:
    """The end that a close frame means; ``reason`` is for people, what the gateway said before or that of the frame."""
    text = f"{address} closed the connection: {reason or 'no reason given'} (close code {code})"
    error = kind(text, BY_CODE.get(code, errno.ECONNRESET))
    error.final = not reconnects(code)
    return error


class WebSocketCodec(FluxCodec):
    """From the upgrade request on, which is ``owed`` at first.

    Args:
        protocol: has written the upgrade request.
        talk: hears the control objects, in order with the messages.

    Attributes:
        talk: as above.
        held: messages that came before there was a link.
    """

    says_goodbye = True

    def __init__(self, protocol: ClientProtocol, talk: Conversation, address: str, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._protocol = protocol
        self.talk = talk
        self._address = address
        self._events: deque[Any] = deque()
        self._owed = protocol.data_to_send()
        self._unsaid: deque[bytes] = deque()  # objects of ours
        self._heard: bytes | None = None  # an object of the gateway, which waits for what came before it
        self._is_text = False
        self._fragments: list[bytes] = []  # of the message that is incomplete
        self._left = 0  # bytes of ours that its other fragments will have
        self.held: list[Message] = []

    # -- in ------------------------------------------------------------------------------------

    @property
    def early(self) -> bool:  # type: ignore[override]
        """Whether ``feed(b"")`` gives more."""
        return bool(self.held or self._events) or self._heard is not None

    def feed(self, data: bytes) -> list[Message]:
        """See ``Codec.feed``. An object of the gateway is heard once the messages before it were handed over: then
        there is something ``early``.
        """
        protocol = self._protocol
        if data:
            protocol.receive_data(data)
        self._events += protocol.events_received()
        self._owed += protocol.data_to_send()
        out, self.held = self.held, []
        try:
            if self._heard is not None and not out:
                heard, self._heard = self._heard, None
                self.talk.received(heard)
            else:
                while self._events and self._heard is None and self.failure is None:
                    self._take(self._events.popleft(), out)
        except ProtocolError as failure:
            self.failure = failure.with_traceback(None)
        if self.failure is None and protocol.parser_exc is not None and not self.early:
            self.failure = ProtocolError(str(protocol.parser_exc))
        if len(self._owed) > OWED_MAX:
            self.failure = ProtocolError("pings, and answers that nobody reads")
        return out

    def feed_end(self) -> None:
        """Nothing more comes: the body of a refusal may end so."""
        if self._protocol.state is State.CONNECTING:
            self._protocol.receive_eof()
            self.feed(b"")

    def end_of(self, failure: ProtocolError | LinkError | None) -> LinkError:
        """The end that ``failure`` means: ours, or that of TLS around us; None: nothing more comes."""
        if isinstance(failure, ProtocolError):
            error: LinkError = LinkBroken(f"{self._address}: {failure}", failure.errno)
            error.final = True
        elif failure is None or failure is not self.failure:
            said = f": {self.talk.said}" if self.talk.said else ""
            error = LinkEnded(f"{self._address} closed the connection without a close frame{said}")
        else:
            error = failure
        if self.talk.again is not None:
            error.final = not self.talk.again
        return error

    def _take(self, event: Any, out: list[Message]) -> None:
        if isinstance(event, Response):
            self.failure = self._upgraded(event)
            return
        assert isinstance(event, Frame)
        if event.opcode is Opcode.CLOSE:
            self.failure = self._closed()
        elif event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._data(event, out)

    def _upgraded(self, response: Response) -> LinkError | None:
        error = self._protocol.handshake_exc
        if error is None and self._protocol.subprotocol is not None:
            return None
        if response.status_code == 101:
            text = error or "it chose no subprotocol"
            refused = LinkRefused(f"{self._address} is no gateway: {text}", errno.EPROTONOSUPPORT)
            refused.final = True
            return refused
        return of_status(
            self._address, response.status_code, bytes(response.body or b""), response.reason_phrase
        )

    def _closed(self) -> LinkError:
        close = self._protocol.close_rcvd
        assert close is not None
        kind = LinkEnded if self.talk.welcome else LinkRefused
        return of_close(kind, self._address, close.code, self.talk.said or close.reason)

    def _data(self, frame: Frame, out: list[Message]) -> None:
        """One data frame; fragments, which a proxy may make, are put together."""
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            return
        data, self._fragments = b"".join(self._fragments), []
        if self._is_text:
            self._heard = data
            return
        splitter = self._splitter
        out += splitter.feed(data)
        if splitter.failure is not None:
            raise splitter.failure
        if splitter.pending_bytes:
            raise ProtocolError("a binary message that ends inside a frame")

    # -- out -----------------------------------------------------------------------------------

    @property
    def owed(self) -> bool:  # type: ignore[override]
        """See ``Codec``: pongs, objects of ours, our answer to a close frame."""
        return bool(self._owed or (self._unsaid and not self._left))

    def say(self, text: bytes) -> None:
        """Send a control object, in front of the messages that wait."""
        self._unsaid.append(text)

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes:
        """See ``Codec.encode``."""
        if self._protocol.state is State.OPEN:
            limit = min(JOIN_BYTES, self.talk.message_bytes or JOIN_BYTES)
            joined: list[Any] = []
            size = 0
            while self._unsaid and not self._left:  # objects may not come between the fragments of a message
                self._protocol.send_text(self._unsaid.popleft())
            for form in forms:
                if joined and (isinstance(form, memoryview) or size + len(form) > limit):
                    self._protocol.send_binary(b"".join(joined))
                    joined, size = [], 0
                if isinstance(form, memoryview):
                    self._fragment(form)
                else:
                    joined.append(form)
                    size += len(form)
            if joined:
                self._protocol.send_binary(b"".join(joined))
        return self._take_owed()

    def _fragment(self, piece: memoryview) -> None:
        """A piece of a large message: the next fragment of a WebSocket message of its own."""
        is_first = not self._left
        if is_first:
            self._left = 8 + int.from_bytes(piece[4:8])  # as the frame says (RFC 3)
        self._left -= len(piece)
        send = self._protocol.send_binary if is_first else self._protocol.send_continuation
        send(piece, fin=not self._left)

    def _take_owed(self) -> bytes:
        owed, self._owed = self._owed + self._protocol.data_to_send(), []
        return b"".join(owed)

    def forget(self) -> None:
        """See ``Codec.forget``."""
        super().forget()
        self._protocol.reader.discard()
        self._events.clear()
        self._fragments, self.held, self._heard = [], [], None

    def goodbye(self, reason: str) -> bytes:
        """A close frame: what the gateway sent was no message, where ``failure`` says so."""
        if self._protocol.state is State.OPEN:
            is_large = isinstance(self.failure, MessageTooLarge)
            code = NORMAL if self.failure is None else TOO_BIG if is_large else PROTOCOL
            self._protocol.send_close(code, cut(reason).decode())
        return self._take_owed()
