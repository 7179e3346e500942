"""Greeting, frames, commands and metadata of ZMTP 3.1 as bytes (ZeroMQ RFC 37); pure."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from broker.errors import DecodeError, MessageTooLarge, ProtocolError
from broker.transport.batching import Part

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_KNOWN: Final = MORE | LONG | COMMAND
SHORT_MAX: Final = 255
"""The largest body behind a size of one byte."""
GREETING_BYTES: Final = 64
_LONG: Final = Struct(">BQ")
_VALUE: Final = Struct(">I")
IDENTITY_MAX: Final = 255
COPIED_BYTES: Final = 64 << 10
"""A part that is smaller is bytes of its own: it may stay for long, and a view keeps all that it is a part of."""
_SLICED_BYTES: Final = 4 << 10
"""Larger bodies are views until they are opened: that is one copy less."""


class Mismatch(ProtocolError):
    """The peer speaks ZMTP, and not as we do: another version or another mechanism."""


# -- greeting -------------------------------------------------------------------------------------


def greeting(mechanism: bytes, *, as_server: bool) -> bytes:
    r"""Our 64 bytes.

    >>> greeting(b"NULL", as_server=False)[:16]
    b'\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL'
    """
    head = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
    return head + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def check_greeting(data: bytes, mechanism: bytes) -> None:
    """Whether the peer's greeting, as far as it has come, is one that we can go on with.

    libzmq says as-server 0 in the greeting of a server, too, so that byte is not looked at. The eight bytes of the
    signature that are padding and the filler may be anything (RFC 37).

    Raises:
        DecodeError: it is no greeting. Mismatch: of ZMTP before 3.0, or of another mechanism.
    """
    if data[:1] not in (b"", b"\xff") or (len(data) > 9 and not data[9] & 1):
        raise DecodeError("what came first is no greeting of ZMTP")
    if len(data) > 10 and data[10] < 3:
        raise Mismatch(f"ZMTP {data[10]}, expected 3")
    if len(data) >= 32 and data[12:32].rstrip(b"\0") != mechanism:
        seen = data[12:32].rstrip(b"\0")
        raise Mismatch(f"mechanism {seen.decode('ascii', 'replace')!r}, expected {mechanism.decode()!r}")


# -- frames ---------------------------------------------------------------------------------------


def head_of(size: int, flags: int = 0) -> bytes:
    r"""The header of a body of ``size`` bytes.

    >>> head_of(3, MORE), head_of(256)
    (b'\x01\x03', b'\x02\x00\x00\x00\x00\x00\x00\x01\x00')
    """
    return bytes((flags, size)) if size <= SHORT_MAX else _LONG.pack(flags | LONG, size)


def command(body: bytes) -> bytes:
    """A command as a frame."""
    return head_of(len(body), COMMAND) + body


class FrameReader:
    """Cuts a stream into frames. A body is kept while it grows, never made room for when it is announced.

    Attributes:
        max_bytes: the largest body.
    """

    __slots__ = ("_need", "_partial", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._partial = bytearray()
        self._need = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._partial)

    @property
    def missing_bytes(self) -> int:
        """Bytes that have to come until that frame is complete, as far as is known."""
        return self._need - len(self._partial) if self._partial else 0

    def forget(self) -> None:
        """Let go of the frame that is not complete."""
        self._partial = bytearray()

    def feed(self, data: bytes, out: list[tuple[int, Part]]) -> None:
        """Append (flags without LONG, body) of each frame that ``data`` completes to ``out``; large bodies are views.

        Raises:
            DecodeError: reserved bits, or a command that says that more follows. MessageTooLarge: beyond
                ``max_bytes``. What stands in front of it is in ``out``.
        """
        at, end = 0, len(data)
        while self._partial:
            partial, need = self._partial, self._need
            take = min(need - len(partial), end - at)
            partial += data[at : at + take] if at or take < end else data
            at += take
            if len(partial) < need:
                return
            head = bytes(partial[:9])
            need = self._measure(head, 0)
            if need > len(partial):
                self._need = need
                continue
            body = memoryview(partial)[9 if head[0] & LONG else 2 :]
            out.append((head[0] & ~LONG, body if len(body) > _SLICED_BYTES else bytes(body)))
            self._partial = bytearray()
        while at < end:
            need = self._measure(data, at)
            stop = at + need
            if stop > end:
                self._need = need
                self._partial = bytearray(data[at:] if at else data)
                return
            flags = data[at]
            start = at + 9 if flags & LONG else at + 2
            out.append(
                (flags & ~LONG, data[start:stop] if need <= _SLICED_BYTES else memoryview(data)[start:stop])
            )
            at = stop

    def _measure(self, data: bytes, at: int) -> int:
        """The bytes of the frame at ``at`` with its head; of the head alone while it has not come."""
        known = len(data) - at
        flags = data[at]
        if flags & ~_KNOWN or flags & (COMMAND | MORE) == COMMAND | MORE:
            raise DecodeError(f"a frame with flags {flags:#04x}")
        head = 9 if flags & LONG else 2
        if known < head:
            return head
        size = data[at + 1] if head == 2 else int.from_bytes(data[at + 1 : at + 9], "big")
        if size > self.max_bytes:
            raise MessageTooLarge(f"a frame of {size} bytes, the largest is {self.max_bytes}")
        return head + size


# -- commands and metadata ------------------------------------------------------------------------


def split_command(body: bytes) -> tuple[bytes, bytes]:
    """Name and data of a command.

    Raises:
        DecodeError: its name goes beyond its end, or there is none.
    """
    if not body or not body[0] or 1 + body[0] > len(body):
        raise DecodeError("a command without a name")
    return body[1 : 1 + body[0]], body[1 + body[0] :]


def pack_metadata(properties: Mapping[bytes, bytes]) -> bytes:
    r"""Properties as READY and INITIATE have them.

    >>> pack_metadata({b"Identity": b"a"})
    b'\x08Identity\x00\x00\x00\x01a'
    """
    return b"".join(
        bytes((len(name),)) + name + _VALUE.pack(len(value)) + value for name, value in properties.items()
    )


def unpack_metadata(data: bytes) -> dict[bytes, bytes]:
    """Properties by name in lower case, since case does not matter; of several values of a name the last.

    Raises:
        DecodeError: something goes beyond the end, or a name is empty.
    """
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        value = at + 1 + data[at]
        if not data[at] or value + 4 > len(data):
            raise DecodeError("metadata that ends in the middle of a property")
        stop = value + 4 + _VALUE.unpack_from(data, value)[0]
        if stop > len(data):
            raise DecodeError("metadata that ends in the middle of a property")
        found[data[at + 1 : value].lower()] = data[value + 4 : stop]
        at = stop
    return found


def error(reason: bytes) -> bytes:
    """The ERROR command of a handshake that ends here; ``reason`` is a status code of ZAP (RFC 27) in libzmq."""
    return b"\x05ERROR" + bytes((len(reason),)) + reason


def reason_of(data: bytes) -> str:
    """The reason in the data of an ERROR command.

    Raises:
        DecodeError: the reason is not as long as it says.
    """
    if not data or len(data) != 1 + data[0]:
        raise DecodeError("an ERROR with a reason of another length than it says")
    return data[1:].decode("ascii", "replace")
