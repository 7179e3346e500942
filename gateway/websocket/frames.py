"""Frames as a server sends them: final, unmasked (RFC 6455, section 5.2)."""

# compiled: mypyc

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.rfc6455 import CONTROL_BYTES, cut

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

NO_CODE: Final = 1005
"""Stands for a close frame without a code; never on the wire (section 7.4.1)."""

_FIN: Final = 0x80
_MEDIUM = Struct(">BBH")
_LARGE = Struct(">BBQ")
_CODE = Struct(">H")


def head(opcode: int, size: int) -> bytes:
    """The head of one whole message of ``size`` bytes: two, four or ten bytes, the shortest that can say it.

    >>> head(BINARY, 125).hex(), head(BINARY, 126).hex(), head(BINARY, 65536).hex()
    ('827d', '827e007e', '827f0000000000010000')
    """
    # RFC 6455, section 5.2: the shortest form is the only one that may be sent
    if size < 126:
        return bytes((_FIN | opcode, size))
    if size < 65536:
        return _MEDIUM.pack(_FIN | opcode, 126, size)
    return _LARGE.pack(_FIN | opcode, 127, size)


def frame(opcode: int, payload: bytes) -> bytes:
    """One whole message, head and payload."""
    return head(opcode, len(payload)) + payload


def ping(payload: bytes = b"") -> bytes:
    """A ping; its payload, at most 125 bytes, comes back in the pong."""
    return frame(PING, payload[:CONTROL_BYTES])


def pong(payload: bytes) -> bytes:
    """The answer to a ping with this payload (at most 125 bytes)."""
    return frame(PONG, payload[:CONTROL_BYTES])


def close(code: int = NO_CODE, reason: str = "") -> bytes:
    """A close frame; the reason is cut to 123 bytes, never inside a character. ``NO_CODE`` sends neither.

    >>> close(1000, "bye").hex(), close().hex()
    ('880503e8627965', '8800')
    """
    # section 7.4.1: 1005 stands for "no code came" and must not be written into a frame
    if code == NO_CODE:
        return frame(CLOSE, b"")
    return frame(CLOSE, _CODE.pack(code) + cut(reason))


def close_meaning(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame's payload that the reader let pass; ``NO_CODE`` when it is empty."""
    if not payload:
        return NO_CODE, ""
    return _CODE.unpack_from(payload)[0], payload[2:].decode()
