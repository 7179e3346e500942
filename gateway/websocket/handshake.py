"""The opening handshake of RFC 6455 (section 4.2) on a request that aiohttp parsed, and taking its connection over.

aiohttp's own WebSocket reads through a queue and a task per connection. Here aiohttp and the transport of asyncio are
told that the connection is over, and let go of all they kept for it; it lives on by a second descriptor of its socket.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import select
import socket
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web
from websockets.utils import accept_key

from broker.transport.tls.layer import Session
from gateway.identity.origin import is_upgrade
from gateway.web.answers import WEBSOCKET_VERSION, Refusal
from gateway.web.listener import Accepted

if TYPE_CHECKING:
    from gateway.web.admission import Admission, Slot


class Taken(NamedTuple):
    """A connection of which nobody else knows any more."""

    sock: socket.socket
    session: Session | None
    """Its TLS."""
    tail: bytes
    """What was read behind the request."""
    slot: Slot
    """Where its connection is counted."""


def check(request: web.BaseRequest) -> str:
    """Return the client's key.

    Raises:
        Refusal: 400, what is missing or wrong; 426 when it is another version, or no WebSocket at all.
    """
    headers = request.headers
    # RFC 6455, section 4.2.1: over HTTP/1.0, or behind a body, what follows could not be told from the frames
    if request.method != "GET" or request.version < (1, 1) or request.can_read_body:
        raise Refusal(400, "a WebSocket begins with GET over HTTP/1.1, without a body")
    if not is_upgrade(request) or "upgrade" not in map(str.lower, _words(request, "Connection")):
        raise Refusal(426, "expected Upgrade: websocket and Connection: Upgrade")
    # section 4.4: the answer names the version that is spoken, and the client may come again with that
    if headers.get("Sec-WebSocket-Version", "").strip() != WEBSOCKET_VERSION:
        raise Refusal(426, f"expected Sec-WebSocket-Version: {WEBSOCKET_VERSION}")
    # section 11.3.1: at most once; of two, a proxy could have answered the other one
    keys = headers.getall("Sec-WebSocket-Key", [])
    if len(keys) != 1 or not _is_key(keys[0].strip()):
        raise Refusal(400, "expected one Sec-WebSocket-Key: 16 bytes in base64")
    return str(keys[0]).strip()


def offered(request: web.BaseRequest) -> list[str]:
    """The subprotocols that the client offers, the one it likes best first."""
    return _words(request, "Sec-WebSocket-Protocol")


def answer(key: str, subprotocol: str, extensions: str = "") -> bytes:
    """The response that ends the handshake.

    >>> answer("dGhlIHNhbXBsZSBub25jZQ==", "flux.v1").splitlines()[3].decode()
    'Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    """
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
        f"Sec-WebSocket-Protocol: {subprotocol}",
        *([f"Sec-WebSocket-Extensions: {extensions}"] if extensions else []),
    )
    # section 4.2.2: one subprotocol of those that were offered, one extension; no other header has a meaning here
    return "\r\n".join((*lines, "", "")).encode()


def take_over(request: web.BaseRequest, admission: Admission) -> Taken | None:
    """Take the connection of ``request``, which ``admission`` counts, from aiohttp; None when it is gone already.

    Return ``Switched()`` from the handler right after that, without waiting for anything.

    Raises:
        Refusal: 400, the client has not read the answers to its requests before this one; 503, no descriptor is left.
    """
    protocol, transport = request.protocol, request.transport
    if transport is None or transport.is_closing():
        return None
    # what still waits there would be lost, or come between our frames
    if transport.get_write_buffer_size() or not _is_writable(transport):
        raise Refusal(400, "a WebSocket begins behind answers that were read")
    try:
        sock, session = release(transport)
    except OSError as error:
        raise Refusal(503, f"no connection can be kept: {error.strerror}") from error
    tail = _Tail()
    protocol.set_parser(tail)  # type: ignore[arg-type]  # all it needs of a parser is this
    protocol.transport = None  # it has none any more
    protocol.connection_lost(None)
    accepted = Accepted(sock, admission)
    return Taken(accepted, session, bytes(tail.data), accepted.slot)


def release(transport: asyncio.Transport) -> tuple[socket.socket, Session | None]:
    """Have a transport that has written everything let go of its connection: the socket, and the TLS on it.

    Raises:
        OSError: no descriptor is left. TypeError: TLS of a foreign context; see ``Session.held``.
    """
    tls = transport.get_extra_info("ssl_object")
    session = None if tls is None else Session.held(tls)
    sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    sock.setblocking(False)
    transport.set_protocol(asyncio.Protocol())  # which hears of the end, and does nothing
    # not close(): it would say goodbye to TLS, and that of the socket goes on
    transport.abort()  # closes its own descriptor
    return sock, session


def _is_writable(transport: asyncio.Transport) -> bool:
    """Whether the kernel takes something: what TLS has sealed and could not send, its transport does not tell."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLOUT)
    return bool(poll.poll(0))


class Switched(web.StreamResponse):
    """What a handler returns whose connection was taken over: nothing is left to send."""

    def __init__(self) -> None:
        super().__init__(status=101)

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send no head: ours is out."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send no body."""


class _Tail:
    """Keeps what aiohttp has read behind the request."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Nothing follows."""


def _words(request: web.BaseRequest, name: str) -> list[str]:
    """The words of a header that is a list, over one line or several (RFC 9110, section 5.6.1)."""
    lines = request.headers.getall(name, [])
    return [word for line in lines for each in line.split(",") if (word := each.strip())]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
