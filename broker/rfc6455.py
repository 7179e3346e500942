"""What both ends of a WebSocket know of the end of one: close codes and reasons (RFC 6455, 5.5.1 and 7.4)."""

from __future__ import annotations

from typing import Final

NORMAL: Final = 1000
PROTOCOL: Final = 1002
INVALID_TEXT: Final = 1007
TOO_BIG: Final = 1009

CONTROL_BYTES: Final = 125
"""Largest payload of a control frame (5.5)."""
REASON_BYTES: Final = CONTROL_BYTES - 2
"""Largest reason of a close frame: the code takes two bytes."""
_AGAIN: Final = frozenset((1001, 1006, 1011, 1012, 1013))


def cut(reason: str) -> bytes:
    """``reason`` as UTF-8 of at most 123 bytes, whole characters only; lone surrogates become question marks."""
    encoded = reason.encode("utf-8", "replace")
    if len(encoded) <= REASON_BYTES:
        return encoded
    return encoded[:REASON_BYTES].decode("utf-8", "ignore").encode()


def reconnects(code: int) -> bool:
    """Whether another attempt may end otherwise than one that was closed with ``code``; private codes by their range:
    4000 to 4499 say so.

    >>> reconnects(4002), reconnects(4500), reconnects(1006), reconnects(1000)
    (True, False, True, False)
    """
    return code in _AGAIN or 4000 <= code < 4500
