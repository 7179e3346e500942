"""Stream framing, sans I/O (RFC 3, "Message Framing and Security").

A frame is ``magic(4) length(4, big-endian) parts...``; the length does not count the eight header bytes.
Both magic orders are accepted: the text's ``FF EE 00 12`` and the deployed host order (``12 00 EE FF`` on
little-endian hosts).

Rules of this file: nothing is allocated on announcement: a partial frame's buffer grows as bytes arrive,
after its length passed the cap. Bytes may be split anywhere. Messages in front of a bad frame are still
returned; the error stands in ``failure`` and nothing after it is looked at.
"""

# compiled: mypyc

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.errors import DecodeError, MessageTooLarge, ProtocolError
from broker.wire.decoding import decode, decode_large
from broker.wire.message import MAGIC_DEPLOYED, MAGIC_TEXT, Message

_HEADER = Struct(">4sI")
OWNER_MAX_BYTES: Final = 256 << 20
"""Largest frame where nobody names another cap (settings ``owner_message_bytes`` and ``guest_message_bytes`` do);
precedents: NATS 1 MiB, flux-core none."""
LARGE_BYTES: Final = 64 << 10
"""From this size on a frame gets a buffer of its own, and its payload is passed on without copying."""


_NEVER: Final = 1 << 60
"""Size of a model that no frame fits: nothing that arrives is as long."""


class Splitter:
    """Turns a stream's chunks into messages; one per direction and link.

    Args:
        max_bytes: cap on a frame's announced length in bytes; there is no off value.

    Attributes:
        magic: the magic order the peer used last; answer in it. Deployed order before the first frame.
        failure: None, or the error that ended the stream; later ``feed`` calls return nothing.
    """

    __slots__ = ("_model", "_need", "_partial", "failure", "magic", "max_bytes")

    def __init__(self, max_bytes: int = OWNER_MAX_BYTES) -> None:
        self.max_bytes: int = max_bytes
        self.magic: bytes = MAGIC_DEPLOYED
        self.failure: ProtocolError | None = None
        self._partial: bytearray | None = None
        self._need: int = 0
        self._model: tuple[bytes, bytes, bytes, bytes, int, int, int] = (b"", b"", b"", b"", 0, 0, _NEVER)

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete."""
        return 0 if self._partial is None else len(self._partial)

    def forget(self) -> None:
        """Let go of the partial frame: nothing follows."""
        self._partial = None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in order.

        Never raises: see ``failure``.
        """
        out: list[Message] = []
        if self.failure is not None:
            return out
        pos = 0
        try:
            if self._partial is not None:
                pos = self._complete(data, out)
            self._split(data, pos, out)
        except ProtocolError as error:
            self.failure = error.with_traceback(None)  # which would make a cycle with this splitter
            self._partial = None
        return out

    def _split(self, data: bytes, pos: int, out: list[Message]) -> None:
        """Cut whole frames. A peer's messages resemble each other: a frame that equals the one before in everything
        but payload bytes and matchtag is cut by the same measure, and shares routes, topic and header with it.
        """
        end = len(data)
        magic, limit = self.magic, self.max_bytes
        prefix, front, topic, head, body, lead, total = self._model
        unpack = _HEADER.unpack_from
        while end - pos >= 8:
            stop, at = pos + total, pos + lead
            # slices that are compared cost a third of `startswith`, whose arguments are parsed at each call
            if stop <= end and data[at : at + 17] == head and data[pos : pos + body + 1] == prefix:
                out.append(Message(front, topic, data[pos + body : at], head, data[at + 17 : stop]))
                pos = stop
                continue
            seen, size = unpack(data, pos)
            if seen != magic or size > limit or size < 21:
                magic = self._check_header(seen, size)
            # incomplete: kept below, whole from its header on
            if pos + 8 + size > end:
                break
            message = decode(data, pos + 8, pos + 8 + size)
            out.append(message)
            front, topic, head = message.front, message.topic_part, message.head
            body, total = 8 + len(front) + len(topic), 8 + size
            lead = total - 21
            prefix = data[pos : pos + body + 1]
            pos += total
            if message.size != size or (body < lead and prefix[-1] == 255):
                total = _NEVER  # re-encoded, or its payload's size takes more than the one byte compared
        self._model = (prefix, front, topic, head, body, lead, total)
        if pos < end:
            rest = data[pos:] if pos else data
            self._partial = bytearray(rest)
            self._need = 8 + unpack(rest)[1] if len(rest) >= 8 else 8

    def _check_header(self, seen: bytes, size: int) -> bytes:
        if seen != MAGIC_DEPLOYED and seen != MAGIC_TEXT:
            known = f"{MAGIC_DEPLOYED.hex(' ')} or {MAGIC_TEXT.hex(' ')}"
            raise DecodeError(f"frame magic {seen.hex(' ')}, expected {known}")
        if size > self.max_bytes:
            raise MessageTooLarge(
                f"frame of {size} bytes announced, the cap of this peer is {self.max_bytes}"
            )
        if size < 21:
            raise DecodeError(f"frame of {size} bytes is shorter than PROTO (21 bytes with its size)")
        self.magic = seen
        return seen

    def _complete(self, data: bytes, out: list[Message]) -> int:
        """Extend the partial frame; append its message when whole; return how much of ``data`` was used."""
        partial = self._partial
        assert partial is not None
        pos = 0
        if len(partial) < 8:
            pos = min(8 - len(partial), len(data))
            partial += data[:pos]
            if len(partial) < 8:
                return pos
            seen, size = _HEADER.unpack_from(partial)
            self._check_header(seen, size)
            self._need = 8 + size
        take = min(self._need - len(partial), len(data) - pos)
        partial += memoryview(data)[pos : pos + take]
        if len(partial) == self._need:
            self._partial = None
            # its buffer is its own, so that its payload can stay a view of it
            if self._need > LARGE_BYTES:
                out.append(decode_large(memoryview(partial), 8, self._need))
            else:
                out.append(decode(bytes(partial), 8, self._need))
        return pos + take


def frame(message: Message, magic: bytes = MAGIC_DEPLOYED) -> bytes:
    """The framed message in the given magic order."""
    framed = message.framed()
    return framed if magic == MAGIC_DEPLOYED else magic + framed[4:]
