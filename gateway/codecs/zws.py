"""Subprotocols ``ZWS2.0`` and ``ZWS2.0/NULL`` (ZeroMQ RFC 45): one WebSocket message per ZeroMQ frame.

Each binary WebSocket message is one flag byte (0 last part, 1 more parts follow, 2 command) and the part. Each side
first says who it is: in ``ZWS2.0`` by a message of one part, its routing id (RFC 15), in ``ZWS2.0/NULL`` by a
``READY`` command with metadata (RFC 23). After that the parts are those of RFC 3: routes, delimiter, topic, payload,
PROTO, so a DEALER or REQ of any ZeroMQ library that has this transport speaks with a Flux broker.

A SUB socket has no requests; it sends its subscriptions as messages of one part, 1 or 0 and a prefix. They become
``event.subscribe`` and ``event.unsubscribe`` whose answers are not written, and from then on events of this connection
begin with their topic, without delimiter, as the text of RFC 3 has them: SUB sockets filter by the first part.

There are no control objects, but for the ping and pong commands of ``ZWS2.0/NULL`` (RFC 37).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from broker.errors import DecodeError, MessageTooLarge
from broker.wire import message as wire
from broker.wire.decoding import from_parts
from broker.wire.payload import encode_json
from gateway.codecs.contract import Control
from gateway.websocket.frames import BINARY, frame

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.events.run import Run
    from gateway.notices import Notice

NAME: Final = "ZWS2.0"
NULL_NAME: Final = "ZWS2.0/NULL"

MAX_PARTS: Final = 512
"""Parts of one message: a route per hop and four more; the deepest tree known is far below."""
MAX_ID_BYTES: Final = 255
"""Longest routing id (RFC 15)."""

_LAST, _MORE, _COMMAND = 0, 1, 2
_U32 = Struct(">I")


class PlainCodec:
    """``ZWS2.0`` without mechanism on one connection.

    Args:
        max_bytes: cap on all parts of one message together, in bytes.
    """

    __slots__ = ("_greeted", "_max_bytes", "_parts", "_size", "_sub", "greeting", "name")

    def __init__(self, max_bytes: int) -> None:
        self.name: str = NAME
        self.greeting: bytes = _data_frame(_LAST, b"")
        self._max_bytes = max_bytes
        self._greeted = False
        self._sub = False
        self._parts: list[bytes] = []
        self._size = 0

    def decode(self, data: bytes, text: bool) -> list[Message | Control]:
        """See ``Codec.decode``: a part that is not the last completes nothing."""
        if text or not data:
            raise DecodeError(f"{self.name}: a WebSocket message is binary and begins with a flag byte")
        flag = data[0]
        if flag == _COMMAND:
            return self._command(data[1:])
        if flag not in (_LAST, _MORE):
            raise DecodeError(
                f"{self.name}: flag byte {flag:#04x}, expected 0 (last), 1 (more) or 2 (command)"
            )
        if not self._greeted:
            self._greet(flag, data)
            return []
        return self._part(flag, data[1:])

    def _greet(self, flag: int, data: bytes) -> None:
        if flag != _LAST or len(data) > 1 + MAX_ID_BYTES:
            raise DecodeError(
                f"{self.name}: the first message is the routing id: one part of at most {MAX_ID_BYTES} bytes"
            )
        self._greeted = True

    def _command(self, body: bytes) -> list[Message | Control]:
        raise DecodeError(f"{self.name} has no commands")

    def _part(self, flag: int, part: bytes) -> list[Message | Control]:
        parts = self._parts
        self._size += len(part)
        if self._size > self._max_bytes or len(parts) >= MAX_PARTS:
            raise MessageTooLarge(
                f"{self.name}: a message of more than {self._max_bytes} bytes or {MAX_PARTS} parts"
            )
        parts.append(part)
        if flag == _MORE:
            return []
        self._parts, self._size = [], 0
        # ZMTP (RFC 37), subscriptions; a Flux message has two parts at least, delimiter and PROTO
        if len(parts) == 1 and part[:1] in (b"\0", b"\1"):
            self._sub = True
            return [_subscription(part)]
        return [from_parts(parts)]

    def encode(self, message: Message) -> bytes:
        """See ``Codec.encode``: a frame per part; nothing for the answer to a SUB socket's subscription."""
        if self._sub:
            if message.head[3] == wire.EVENT:
                return _frames(_without_delimiter(message))
            if message.head[3] == wire.RESPONSE and message.matchtag == wire.MATCHTAG_NONE:
                return b""
        return _frames(message)

    def encode_run(self, run: Run) -> bytes:
        """See ``Codec.encode_run``."""
        key = f"{NAME} SUB" if self._sub else NAME
        form = run.forms.get(key)
        if form is None:
            form = run.forms[key] = b"".join([self.encode(message) for message in run.messages])
        return form

    def encode_control(self, obj: Notice) -> bytes | None:
        """None: there is no place for control objects."""
        return None


class NullCodec(PlainCodec):
    """``ZWS2.0/NULL`` on one connection: metadata instead of the routing id, and keepalive by commands."""

    __slots__ = ("_context",)

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.name = NULL_NAME
        self.greeting = _data_frame(_COMMAND, _command_body("READY", _property("Socket-Type", b"ROUTER")))
        self._context = b""

    def _greet(self, flag: int, data: bytes) -> None:
        raise DecodeError(f"{self.name}: a message before the READY command")

    def _command(self, body: bytes) -> list[Message | Control]:
        name, rest = _command_name(body)
        if name == b"READY" and not self._greeted:
            self._greeted = True
        elif name == b"PING" and self._greeted:
            self._context = rest[2:18]  # behind the u16 time to live; at most 16 bytes come back (RFC 37)
            return [{"type": "ping"}]
        elif name == b"ERROR":
            raise DecodeError(f"{self.name}: the peer sent the ERROR command")
        elif not self._greeted:
            raise DecodeError(f"{self.name}: command {name[:32]!r} before READY")
        return []

    def encode_control(self, obj: Notice) -> bytes | None:
        """The PONG command for the object that answers a ping; None for everything else."""
        if obj["type"] != "pong":
            return None
        return _data_frame(_COMMAND, _command_body("PONG", self._context))


def _data_frame(flag: int, part: bytes) -> bytes:
    return frame(BINARY, bytes((flag,)) + part)


def _frames(message: Message) -> bytes:
    parts = message.parts()
    last = parts.pop()
    return b"".join([*(_data_frame(_MORE, part) for part in parts), _data_frame(_LAST, last)])


def _without_delimiter(message: Message) -> Message:
    plain = message.copy()
    plain.front = b""
    plain.set_flags(plain.head[4] & ~wire.ROUTE)
    return plain


def _subscription(part: bytes) -> Message:
    """What a SUB socket's subscription asks for, as the request that means it."""
    topic = "event.subscribe" if part[0] else "event.unsubscribe"
    try:
        prefix = part[1:].decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a subscription that is not UTF-8") from error
    return wire.request(topic, encode_json({"topic": prefix}), flags=wire.NORESPONSE)


def _command_body(name: str, rest: bytes) -> bytes:
    return bytes((len(name),)) + name.encode() + rest


def _property(name: str, value: bytes) -> bytes:
    return bytes((len(name),)) + name.encode() + _U32.pack(len(value)) + value


def _command_name(body: bytes) -> tuple[bytes, bytes]:
    """Name and rest of a command (RFC 23).

    Raises:
        DecodeError: it has no name, or one that runs past its end.
    """
    size = body[0] if body else 0
    if not size or len(body) < 1 + size:
        raise DecodeError("a command without a name")
    return body[1 : 1 + size], body[1 + size :]
