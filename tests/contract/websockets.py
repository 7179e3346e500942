"""A WebSocket listener for the checks of transports: a bare upgrade in front of the gateway's own link.

What the gateway does besides (credentials, origin, sessions) has tests of its own; here its link and the dialer of
``broker.transport.websocket`` are held against the contract of all links.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import cast

from websockets.utils import accept_key

from broker.errors import ConfigError
from broker.identity import PeerInfo
from broker.schemes import TlsOptions
from broker.transport import websocket
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.tls.layer import HeldContext
from gateway.codecs import new_codec
from gateway.web.admission import Slot
from gateway.websocket.handshake import Taken, release
from gateway.websocket.link import Turn, WebSocketLink

HEAD_BYTES = 8192
WELCOME: dict[str, object] = {"type": "welcome", "session": "00000000", "limits": {}, "expires": None}


class Upgrade(asyncio.Protocol):
    """One connection until its WebSocket handshake is over."""

    def __init__(self, listener: UpgradeListener) -> None:
        self.listener = listener
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # that of uvloop is none
        self.listener.strangers.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.strangers.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.head += data
        head, end, tail = self.head.partition(b"\r\n\r\n")
        if not end:
            if len(self.head) > HEAD_BYTES:
                self.transport.close()
            return
        lines = head.decode("latin-1").split("\r\n")[1:]
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("upgrade") != "websocket":
            self.transport.close()
            return
        self.listener.strangers.discard(self.transport)
        # not now: a transport may have something of its own to write behind this
        asyncio.get_running_loop().call_soon(self.upgrade, fields, tail)

    def upgrade(self, fields: dict[str, str], tail: bytes) -> None:
        options = self.listener.options
        host, port = self.transport.get_extra_info("peername")[:2]
        peer = PeerInfo(f"ws://{host}:{port}", local=True)
        denied = options.admit(peer)
        if denied:
            body = json.dumps({"errno": denied, "text": "not you"}).encode()
            self.transport.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            self.transport.close()
            return
        accept = accept_key(fields["sec-websocket-key"]).encode()
        answer = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: flux.v1\r\nSec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        max_bytes = options.max_bytes(peer)
        codec = new_codec("flux.v1", max_bytes)
        taken = Taken(*release(self.transport), tail, Slot(lambda: None))
        link = WebSocketLink(
            taken, self.listener.turn, codec, peer, options, max_bytes=max_bytes, answer=answer
        )
        link.tell(WELCOME)
        self.listener.accept(link)


class UpgradeListener(Listener):
    def __init__(self, accept: Accept, options: Options, context: ssl.SSLContext | None) -> None:
        self.accept, self.options, self.context = accept, options, context
        self.turn = Turn()
        self.strangers: set[asyncio.Transport] = set()

    async def open(self, uri: str) -> UpgradeListener:
        scheme, _, place = uri.partition("://")
        host, _, port = place.partition("/")[0].rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self.server = await loop.create_server(
                lambda: Upgrade(self),
                host,
                int(port),
                ssl=self.context,
                ssl_shutdown_timeout=self.context and 1,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen at {uri}: {error}") from error
        self.address = self.contact_address = f"{scheme}://{host}:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        self.server.close()
        for transport in list(self.strangers):
            transport.abort()
        await asyncio.sleep(0)


class WebSocketPair:
    """The transport under test: our dialer, and the gateway's link behind a bare upgrade."""

    capabilities = websocket.transport.capabilities

    def __init__(self, settings: TlsOptions | None = None) -> None:
        self.context = None
        if settings is not None:
            self.context = HeldContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(settings.cert, settings.key)

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        return await UpgradeListener(accept, options, self.context).open(uri)

    async def dial(self, uri: str, options: Options) -> Link:
        return await websocket.transport.dial(uri, options)
