"""RFC 6455 as the codec of a server's stream link: what a message carries, the subprotocol knows."""

# compiled: mypyc

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import DecodeError, LinkEnded, LinkError, MessageTooLarge, ProtocolError
from broker.rfc6455 import TOO_BIG
from broker.wire.message import Message
from gateway.closes import BAD_MESSAGE
from gateway.websocket.frames import BINARY, CLOSE, PING, TEXT, close, close_meaning, pong
from gateway.websocket.reader import UNBOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.errors import Untranslatable
    from gateway.codecs.contract import Codec
    from gateway.websocket.link import Turn
    from gateway.websocket.reader import Reader


class ServerCodec:
    """See ``broker.transport.codec.Codec``; ``feed`` gives control objects and refused requests, too, in order.

    Args:
        codec: the subprotocol's.
        reader: of the client's frames.
        tail: what came with the handshake.
        turn: counts what is read. late: called when what comes compressed has to wait for a later one; None: nothing
            does.

    Attributes:
        life: grows with everything that comes.
        code: the close code for ``failure``, where that is no LinkError: the client ended the connection.
        owed: pongs, the newest last.
    """

    __slots__ = (
        "_decode",
        "_last",
        "_late",
        "_reader",
        "_tail",
        "_turn",
        "code",
        "failure",
        "form",
        "life",
        "owed",
        "untranslatable",
    )

    def __init__(
        self, codec: Codec, reader: Reader, tail: bytes, turn: Turn, late: Callable[[], object] | None
    ) -> None:
        self._decode: Callable[[bytes, bool], Sequence[Any]] = codec.decode
        self._last = b""
        self._reader = reader
        self._tail = tail
        self._turn = turn
        self._late = late
        self.code = self.life = 0
        self.failure: ProtocolError | LinkError | None = None
        self.form: Callable[..., Any] = codec.encode
        self.owed: list[bytes] = []
        self.untranslatable: Callable[[Untranslatable], object] = lambda _error: None  # there is one dialect

    @property
    def early(self) -> bool:
        """Whether something came with the handshake."""
        return bool(self._tail)

    @property
    def says_goodbye(self) -> bool:
        """Whether the client's answer to our close frame is waited for: not where it cannot be found, or has come."""
        return self._reader.failure is None and not self._reader.closed

    def feed(self, data: bytes) -> list[Any]:
        """See ``Codec.feed``."""
        reader, turn = self._reader, self._turn
        self.life += 1
        turn.taken += len(data)
        if self._tail:
            data, self._tail = self._tail + data, b""
        spare = UNBOUND if self._late is None or reader.deaf else turn.spare
        out: list[Any] = []
        for opcode, payload in reader.feed(data, spare):
            if opcode <= BINARY:
                try:
                    out += self._decode(payload, opcode == TEXT)
                except (DecodeError, MessageTooLarge) as error:
                    self.code = TOO_BIG if isinstance(error, MessageTooLarge) else BAD_MESSAGE
                    self.failure = error.with_traceback(None)  # which would make a cycle with this codec
                    return out
            elif opcode == PING:
                # section 5.5.3: with the bytes of the ping
                self.owed.append(pong(payload))
            elif opcode == CLOSE and not reader.deaf:
                code, reason = close_meaning(payload)
                # RFC 6455, section 5.5.1: a close frame is answered with one, and its code comes back
                self._last = close(code)
                self.failure = LinkEnded(f"closed by the client with {code} {reason!r}")
        if reader.failure is not None and self.failure is None:
            self.code, text = reader.failure
            self.failure = ProtocolError(text)
        if self._late is not None:
            turn.taken += spare - reader.spare
            if reader.rest:
                self._late()
        return out

    def encode(self, forms: Sequence[Any]) -> Any:
        """See ``Codec.encode``. Pongs leave by themselves: ``forms`` may be a piece of one, which is a memoryview."""
        if not forms:
            forms, self.owed = self.owed, []
        return forms[0] if len(forms) == 1 else b"".join(forms)

    def leave(self, last: bytes) -> None:
        """The link ends with these frames. What comes from now on is read for the client's close frame alone."""
        self._last = last
        self._reader.deaf = True
        self._decode = _nothing
        self.feed(b"")  # it may be in what waits to be inflated

    def goodbye(self, reason: str) -> bytes:
        """See ``Codec.goodbye``."""
        last: bytes = self.encode(()) + self._last
        self._last = b""
        return last

    def forget(self) -> None:
        """See ``Codec.forget``."""
        self._reader.forget()
        self._late = None

    def enable_batch(self) -> None:
        """A flush is as few frames as it gets."""


def are_messages(items: Sequence[Any]) -> bool:
    """Whether nothing else is among what ``ServerCodec.feed`` gave, as nearly always."""
    return all(isinstance(item, Message) for item in items)


def _nothing(_payload: bytes, _text: bool) -> list[Any]:
    """What a client sends that nobody listens to any more."""
    return []
