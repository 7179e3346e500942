"""Subprotocols: what a WebSocket message holds, and how a Flux message is written into one (pure).

``contract``   what a link asks of a subprotocol
``binary``     ``flux.v1``: framed Flux messages
``jsonview``   ``flux.v1.json``: one JSON object a message
``zws``        ``ZWS2.0``: one WebSocket message per message part, as ZeroMQ peers send them (RFC 45)
``control``    what gateway and client tell each other beside Flux messages
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gateway.codecs import binary, jsonview, zws
from gateway.codecs.contract import Codec

DEFAULT_BYTES: Final = 1 << 20
"""Cap on one message where nobody names another; the default of ``limits.message_bytes``."""

CODECS: Final[dict[str, Callable[[int], Codec]]] = {
    binary.NAME: binary.BinaryCodec,
    jsonview.NAME: jsonview.JsonCodec,
    zws.NAME: zws.PlainCodec,
    zws.NULL_NAME: zws.NullCodec,
}
"""Subprotocol -> its codec, made with the cap on one message in bytes."""


def choose(offered: Iterable[str]) -> str | None:
    """The first of the ``offered`` subprotocols that is spoken here; None when none is.

    >>> choose(["mqtt", "flux.v1.json", "flux.v1"])
    'flux.v1.json'
    """
    return next((name for name in offered if name in CODECS), None)


def new_codec(name: str, max_bytes: int = DEFAULT_BYTES) -> Codec:
    """The codec of one connection.

    Args:
        name: a subprotocol that ``choose`` returned.
        max_bytes: cap on one Flux message in bytes (``limits.message_bytes``).

    Raises:
        KeyError: nobody speaks this subprotocol here.
    """
    return CODECS[name](max_bytes)
