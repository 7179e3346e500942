"""A live aiohttp server with the real endpoint before stand-in sessions, and a client that writes raw bytes."""

import asyncio
import contextlib
import os
import socket
import struct
from types import SimpleNamespace

import msgspec
from aiohttp import web

from broker.errors import LinkError
from broker.identity import Role
from broker.wire.message import REQUEST, Message, request, response
from gateway.closes import BAD_CREDENTIAL
from gateway.principal import Denied, Principal
from gateway.serve import options_of
from gateway.settings.schema import GatewaySection, GatewaySettings, LimitsSection
from gateway.web.app import answer_errors
from gateway.websocket import frames
from gateway.websocket.endpoint import Endpoint
from gateway.websocket.link import WebSocketLink

PATIENCE_S = 40.0
"""How long a test waits for what must happen; spent on failure only."""
SMALL_BUFFER = 4096
"""Socket buffers of both sides, so that little is under way when one stops reading."""
LARGE = b"0123456789abcdef" * (1 << 18)
"""More than the kernel takes for who does not read."""
STUCK_BYTES = 2000
"""What has to wait in an outbox, at least, for nothing of it to leave in the next moment."""
ALICE = Principal("alice", 1001, Role.USER, "token", "token:1")


def masked(
    opcode: int, payload: bytes = b"", *, first: int | None = None, mask: bytes | None = None
) -> bytes:
    """A client's frame, made apart from the code under test; ``first`` replaces the first byte."""
    mask = os.urandom(4) if mask is None else mask
    size = len(payload)
    if size < 126:
        length = bytes((128 | size,))
    elif size < 65536:
        length = bytes((128 | 126,)) + struct.pack(">H", size)
    else:
        length = bytes((128 | 127,)) + struct.pack(">Q", size)
    body = (
        bytes(byte ^ mask[at & 3] for at, byte in enumerate(payload))
        if size < 1 << 16
        else xor(payload, mask)
    )
    return bytes((0x80 | opcode if first is None else first,)) + length + mask + body


def xor(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


class SessionStub:
    """Answers requests with their payload; keeps what it is told."""

    def __init__(self, sessions, principal, link, kind, address):
        self.sessions, self.principal, self.link, self.kind, self.address = (
            sessions,
            principal,
            link,
            kind,
            address,
        )
        self.receiver = self
        self.messages: list[Message] = []
        self.controls: list[dict] = []
        self.ends: list[LinkError] = []
        self.choked: list[bool] = []
        self.order: list[object] = []

    def welcome(self):
        return {"type": "welcome", "user": self.principal.name}

    def received(self, link, messages):
        assert not self.ends, "received() after link_ended()"
        assert messages
        self.messages += messages
        self.order += [message.topic for message in messages]
        for message in messages:
            if message.topic == "fail":
                raise RuntimeError("a fault on purpose")
            if message.type == REQUEST:
                link.send(response(message, message.payload))

    def control(self, obj):
        self.controls.append(obj)
        self.order.append(obj["type"])
        if obj["type"] == "ping":
            self.link.tell({"type": "pong"})

    def link_ended(self, link, error):
        self.ends.append(error)
        self.sessions.by_id.pop(id(self), None)
        self.sessions.changed.set()

    def link_choked(self, link, choked):
        self.choked.append(choked)


class SessionsStub:
    def __init__(self, limits: LimitsSection, deflates: bool = False):
        self.settings = GatewaySettings(limits=limits, gateway=GatewaySection(deflate=deflates))
        self.options = options_of(self.settings)
        self.by_id = {}
        self.opened: list[SessionStub] = []
        self.refusal: Denied | None = None
        self.changed = asyncio.Event()
        self.accepting = True

    @property
    def full(self):
        return len(self.by_id) >= self.settings.limits.connections

    def stopped(self, seconds):
        """No session has a rate."""

    def open(self, _delivery, _administration, principal, link, *, kind, address):
        if self.refusal is not None:
            raise self.refusal
        session = SessionStub(self, principal, link, kind, address)
        self.by_id[id(session)] = session
        self.opened.append(session)
        self.changed.set()
        return session


class IdentityStub:
    """``good`` is alice's token; ``slow`` is, too, once ``release`` is set."""

    def __init__(self):
        self.listeners = SimpleNamespace(
            client=lambda request: SimpleNamespace(address=request.remote or "unix")
        )
        self.release = asyncio.Event()
        self.asked = asyncio.Event()
        self.broken = False

    async def authenticate_request(self, request):
        if "cookie" in request.headers:
            return await self.authenticate_token(request.headers["cookie"], address="")
        said = request.headers.get("Authorization")
        if said is None:
            return None
        return await self.authenticate_token(said.split()[1], address="")

    def check_page(self, request):
        if request.headers.get("Origin") == "http://evil.example":
            raise Denied("a page", public="this page may not connect here", status=403, close=BAD_CREDENTIAL)

    async def authenticate_token(self, text, *, address):
        self.asked.set()
        if self.broken:
            raise RuntimeError("a fault on purpose")
        if text == "slow":
            await self.release.wait()
        if text not in ("good", "slow"):
            raise Denied("no such token", public="credential refused", status=401, close=BAD_CREDENTIAL)
        return ALICE


class House:
    """The server: where it is, and what is behind it."""

    def __init__(self, sessions, identity, endpoint, server, tls):
        self.sessions, self.identity, self.endpoint = sessions, identity, endpoint
        self.server, self.tls = server, tls
        self.writers: list[asyncio.StreamWriter] = []

    async def raw(self) -> "Peer":
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (self.server.host, self.server.port))
        name = "localhost" if self.tls else None
        reader, writer = await asyncio.open_connection(sock=sock, ssl=self.tls, server_hostname=name)
        self.writers.append(writer)
        return Peer(reader, writer)

    async def connect(
        self, subprotocol="flux.v1", *, token: str | None = "good", query="", behind=b"", offer=""
    ) -> "Peer":
        """A client after the handshake, where it offers extensions; with a token, its welcome is read."""
        peer = await self.raw()
        head = {"Sec-WebSocket-Extensions": offer}
        if token:
            head["Authorization"] = f"Bearer {token}"
        peer.write(request_head(subprotocol, query, **head) + behind)
        assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
        if token and "ZWS" not in subprotocol:
            assert (await peer.control())["type"] == "welcome"
        return peer

    async def stalled(self, subprotocol="flux.v1", **more) -> "tuple[Peer, WebSocketLink]":
        """A client that does not read, and its link, which is full."""
        peer = await self.connect(subprotocol, **more)
        peer.writer.transport.pause_reading()
        link = self.sessions.opened[-1].link
        link._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        for _ in range(1000):
            link.tell({"type": "filler", "text": "x" * 1000})
            link.flush()
            if link.outbox.queued_bytes > STUCK_BYTES:
                await asyncio.sleep(0.005)  # what the kernel still takes on to the other end makes room again
            if link.outbox.queued_bytes > STUCK_BYTES:
                return peer, link
        raise AssertionError("the kernel takes everything")

    async def until(self, condition):
        for _ in range(int(PATIENCE_S / 0.002)):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("it did not happen in time")


def is_full(link) -> bool:
    """Whether something waits for the kernel to take it."""
    return link.outbox.queue is not None


def is_gone(link) -> bool:
    """Whether the connection is closed on our side."""
    return link._sock.fileno() < 0


class Peer:
    """A client's end of a connection: raw bytes out, frames in."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def read_again(self) -> None:
        self.writer.transport.resume_reading()

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def read(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read(65536)

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: (first byte, payload); (-1, b"") at the end."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._frame(self.reader.readexactly)
            except (asyncio.IncompleteReadError, ConnectionError):
                return -1, b""

    async def _frame(self, read):
        first, size = await read(2)
        assert size < 128, "a server must not mask"
        if size == 126:
            (size,) = struct.unpack(">H", await read(2))
            assert size >= 126
        elif size == 127:
            (size,) = struct.unpack(">Q", await read(8))
            assert size >= 65536
        return first, await read(size)

    async def control(self) -> dict:
        first, payload = await self.frame()
        assert first == 0x80 | frames.TEXT, (first, payload)
        return msgspec.json.decode(payload)

    async def closing(self) -> tuple[list[tuple[int, bytes]], int, str]:
        """What comes before the close frame, its code and its reason."""
        before = []
        while True:
            first, payload = await self.frame()
            if first in (-1, 0x80 | frames.CLOSE):
                break
            before.append((first, payload))
        if first == -1:
            return before, 1006, ""
        return before, *frames.close_meaning(payload)

    async def ended(self) -> bool:
        """Whether the server ends the connection, and sends nothing more."""
        return await self.frame() == (-1, b"")


AUTH = b'{"type":"auth","token":"%s"}'


def flux(topic="echo", payload=b"hi\0") -> bytes:
    return request(topic, payload, matchtag=7).framed()


def request_head(subprotocol="flux.v1", query="", **headers: str) -> bytes:
    lines = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": subprotocol,
        **headers,
    }
    shown = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"GET /v1/ws{query} HTTP/1.1\r\n{shown}\r\n".encode()


@contextlib.asynccontextmanager
async def house(
    serve,
    *,
    tls=None,
    sessions=None,
    delivery=None,
    administration=None,
    identity=None,
    deflates=False,
    **limits,
):
    """A running house. ``serve`` is the fixture ``aiohttp_server``, ``limits`` are fields of ``LimitsSection``,
    ``tls`` the contexts of server and client, ``deflates`` is ``gateway.deflate``."""
    limits = {"ping_s": 3600.0, **limits}  # nobody is pinged unless the test is about pings
    sessions = sessions if sessions is not None else SessionsStub(LimitsSection(**limits), deflates)
    identity = identity or IdentityStub()
    endpoint = Endpoint(sessions, delivery, administration, identity)
    app = web.Application(middlewares=[answer_errors])
    app.router.add_get("/v1/ws", endpoint.handle)
    app.router.add_get("/hello", _hello)
    app.router.add_get("/large", _large)
    server = await serve(app, ssl=tls and tls[0], access_log=None)
    one = House(sessions, identity, endpoint, server, tls and tls[1])
    try:
        yield one
    finally:
        await endpoint.close()
        for session in [*sessions.by_id.values()]:
            session.link.abort(LinkError("the test is over"))
        for writer in one.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def _large(_request) -> web.Response:
    return web.Response(body=LARGE)


async def _hello(_request) -> web.Response:
    return web.Response(text="hello")
