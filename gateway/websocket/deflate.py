"""``permessage-deflate`` (RFC 7692) without context takeover: each message by itself.

So a connection holds no window between two messages, and what is made for one subscriber is the same for all others.
A message that grows beyond the limit as it is inflated is refused there, before the rest of it is made.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from gateway.websocket.frames import BINARY, head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.wire.message import Message
    from gateway.codecs.contract import Codec
    from gateway.events.run import Run

NAME: Final = "permessage-deflate"
AGREED: Final = f"{NAME}; server_no_context_takeover; client_no_context_takeover"
"""What we answer to an offer; a server may want both, whatever the client said (7.1.1)."""
RSV1: Final = 0x40
"""In the first byte of a message that is compressed (section 6)."""
LEAST_BYTES: Final = 256
"""Smaller messages go as they are: they would hardly become smaller, and cost as much as they save."""
LEVEL: Final = 1
"""Of zlib: 2 and more take twice the time for a tenth less."""
WINDOW_BITS: Final = 15
_TAIL: Final = b"\x00\x00\xff\xff"
"""How a flushed block ends; left out on the way (section 7.2.1)."""
_SIMPLE: Final = frozenset(
    {"server_no_context_takeover", "client_no_context_takeover", "client_max_window_bits"}
)

_WIDE: Final = f"server_max_window_bits={WINDOW_BITS}"


class TooLarge(Exception):
    """The message is larger than allowed; it was not inflated any further."""


def agreed(offers: Iterable[str]) -> bool:
    """Whether one of the client's offers (``Sec-WebSocket-Extensions``) is one that we take.

    >>> agreed(["permessage-deflate; client_max_window_bits"]), agreed(["permessage-deflate; server_max_window_bits=9"])
    (True, False)
    """
    return any(_takes(offer) for line in offers for offer in line.split(","))


def _takes(offer: str) -> bool:
    name, *parameters = ("".join(word.lower().split()).replace('"', "") for word in offer.split(";"))
    names = [each.partition("=")[0] for each in parameters]
    known = all(name in _SIMPLE or each == _WIDE for name, each in zip(names, parameters, strict=True))
    # RFC 7692, section 7.1: an offer with a parameter twice, or one that nobody knows, must be declined
    return name == NAME and known and len(set(names)) == len(names)


def inflate(data: bytes, limit: int) -> bytes:
    """The message behind its compressed form.

    Raises:
        TooLarge: it has more than ``limit`` bytes. ValueError: that is no such form.
    """
    try:
        # one byte above the limit tells that there is more, and the rest of a bomb is never made
        out = zlib.decompressobj(-WINDOW_BITS).decompress(data + _TAIL, limit + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed message that cannot be read: {error}") from error
    if len(out) > limit:
        raise TooLarge
    return out


def deflate(data: bytes) -> bytes:
    """The compressed form of a message."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -WINDOW_BITS)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)


def packed(form: bytes) -> bytes:
    """The same frames, as a codec writes them, compressed where that makes one smaller."""
    out: list[bytes] = []
    at = 0
    while at < len(form):
        size, body = form[at + 1], at + 2
        if size == 126:
            size, body = int.from_bytes(form[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, body = int.from_bytes(form[at + 2 : at + 10], "big"), at + 10
        stop = body + size
        opcode = form[at] & 0x0F
        # control frames are never compressed (section 6)
        small = deflate(form[body:stop]) if size >= LEAST_BYTES and opcode <= BINARY else b""
        if small and len(small) < size:
            out += (head(RSV1 | opcode, len(small)), small)
        else:
            out.append(form[at:stop])
        at = stop
    return b"".join(out)


class Deflated:
    """A codec whose larger messages leave compressed; the reader inflates what comes."""

    __slots__ = ("_codec", "_key", "decode", "encode_control", "greeting", "name")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._key = f"{codec.name}; {NAME}"
        self.name: str = codec.name
        self.greeting: bytes = codec.greeting
        self.decode = codec.decode
        self.encode_control = codec.encode_control

    def encode(self, message: Message) -> bytes:
        """See ``Codec.encode``."""
        form = self._codec.encode(message)
        return packed(form) if len(form) > LEAST_BYTES else form

    def encode_run(self, run: Run) -> bytes:
        """See ``Codec.encode_run``."""
        form = run.forms.get(self._key)
        if form is None:
            form = run.forms[self._key] = packed(self._codec.encode_run(run))
        return form
