"""Subprotocol ``flux.v1``: framed Flux messages back to back in binary WebSocket messages, control objects as text.

A binary WebSocket message holds one or more whole frames as on a UNIX stream (``broker.wire.framing``): magic, u32
length, parts. Both magic orders are read, the deployed one is written.
"""

# compiled: mypyc

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from broker.errors import DecodeError
from broker.wire.decoding import decode
from broker.wire.framing import Splitter
from broker.wire.message import (
    DELIMITER,
    MAGIC_DEPLOYED,
    MAGIC_TEXT,
    PAYLOAD,
    REQUEST,
    ROUTE,
    TOPIC,
    Message,
)
from gateway import notices
from gateway.codecs import control
from gateway.codecs.contract import RUN_BYTES, Control, Refused
from gateway.websocket.frames import BINARY, TEXT, frame, head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import ProtocolError
    from gateway.events.run import Run
    from gateway.notices import Notice

NAME: Final = "flux.v1"

MAGICS: Final = (MAGIC_DEPLOYED, MAGIC_TEXT)
_REQUEST_LEAD: Final = bytes((20, 0x8E, 1, REQUEST))
_SMALL: Final = 512
_U32 = Struct(">I")
_PREFIXES: Final = [head(BINARY, 8 + size) + MAGIC_DEPLOYED + _U32.pack(size) for size in range(_SMALL)]
"""Heads of the WebSocket frame and of the Flux frame in it, for small messages, made once."""


class BinaryCodec:
    """``flux.v1`` on one connection.

    Args:
        max_bytes: cap on one Flux message in bytes.
    """

    __slots__ = ("_max_bytes", "_splitter", "greeting", "name")

    def __init__(self, max_bytes: int) -> None:
        self.name: str = NAME
        self.greeting: bytes = b""
        self._max_bytes = max_bytes
        self._splitter = Splitter(max_bytes)

    def decode(self, data: bytes, text: bool) -> Sequence[Message | Control | Refused]:
        """See ``Codec.decode``. Messages in front of one that ends the connection are lost with it."""
        if text:
            return [control.decode(data)]
        splitter = self._splitter
        messages: list[Any] = splitter.feed(data)
        if splitter.failure is not None:
            self._splitter = Splitter(self._max_bytes)  # that one reads no more
            return self._one_by_one(data, splitter.failure)
        if splitter.pending_bytes:
            raise DecodeError(
                f"a binary message holds whole frames, this one ends inside frame {len(messages) + 1}"
            )
        if not messages:
            raise DecodeError("a binary message holds at least one frame, this one is empty")
        return messages

    def _one_by_one(self, data: bytes, wrong: ProtocolError) -> list[Message | Control | Refused]:
        """The messages of ``data``, of which at least one is none.

        Raises:
            ProtocolError: its sender could not be told so.
        """
        items: list[Message | Control | Refused] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 4 : at + 8], "big")
            stop = at + 8 + size
            if data[at : at + 4] not in MAGICS or not 0 < size <= self._max_bytes or stop > len(data):
                raise wrong
            try:
                items.append(decode(data, at + 8, stop))
            except DecodeError as error:
                items.append(_refused(data[at + 8 : stop], error))
            at = stop
        return items

    def encode(self, message: Message) -> bytes:
        """See ``Codec.encode``."""
        front, topic, payload = message.front, message.topic_part, message.payload_part
        size = len(front) + len(topic) + len(payload) + 21
        if size < _SMALL:
            return b"".join((_PREFIXES[size], front, topic, payload, message.head, message.tag))
        lead = head(BINARY, 8 + size)
        return b"".join(
            (lead, MAGIC_DEPLOYED, _U32.pack(size), front, topic, payload, message.head, message.tag)
        )

    def encode_run(self, run: Run) -> bytes:
        """See ``Codec.encode_run``: one WebSocket message, or several above ``RUN_BYTES``."""
        form = run.forms.get(NAME)
        if form is None:
            form = run.forms[NAME] = _joined(run)
        return form

    def encode_control(self, obj: Notice) -> bytes | None:
        """See ``Codec.encode_control``."""
        return frame(TEXT, notices.encode(obj))


def _refused(body: bytes, wrong: DecodeError) -> Refused:
    """The refusal of a request by what its last part says: type and matchtag.

    Raises:
        DecodeError: it says none.
    """
    tail = body[-21:]
    if tail[:4] != _REQUEST_LEAD or tail[17:] == b"\0\0\0\0":
        raise wrong
    head = tail[:4] + bytes((tail[4] & ~PAYLOAD | ROUTE | TOPIC,)) + tail[5:17]
    return Refused(Message(DELIMITER, b"\0", b"", head, tail[17:]), f"{NAME}: {wrong}")


def _joined(run: Run) -> bytes:
    out: list[bytes] = []
    frames: list[bytes] = []
    size = 0
    for message in run.messages:
        framed = message.framed()
        if frames and size + len(framed) > RUN_BYTES:
            out += (head(BINARY, size), *frames)
            frames, size = [], 0
        frames.append(framed)
        size += len(framed)
    return b"".join((*out, head(BINARY, size), *frames))
