"""A peer of the two CMB1 texts: a CURVE DEALER that writes and reads the parts of their grammar by hand.

Nothing in here is the project's: what crosses the socket is what the texts say.
"""

import json
import struct
from typing import NamedTuple, Self

import zmq

PATIENCE_MS = 40_000
TOPIC, PAYLOAD, JSON, NORESPONSE, ROUTE, UPSTREAM, PRIVATE, STREAMING = 1, 2, 4, 4, 8, 16, 32, 64
REQUEST, RESPONSE, EVENT, KEEPALIVE = 1, 2, 4, 8
ANY = USERID_UNKNOWN = 0xFFFFFFFF
PROTO = struct.Struct(">BBBBIIII")
ALIVE = bytes.fromhex("8e010800 ffffffff 00000000 00000000 00000000")
"""A keepalive: signature, version, type, no flags; userid unknown, no roles, errnum 0, status 0."""


class Text(NamedTuple):
    """What differs between the texts: the flags of a JSON payload, and how one ends."""

    name: str
    json_flags: int
    json_end: bytes

    def json(self, value: object) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode() + self.json_end


FIRST = Text("cmb1", PAYLOAD | JSON, b"")
REVISED = Text("cmb1rev", PAYLOAD, b"\0")
TEXTS = (FIRST, REVISED)


class Seen(NamedTuple):
    """A received message; ``words`` are the last two of PROTO."""

    kind: int
    flags: int
    userid: int
    rolemask: int
    words: tuple[int, int]
    routing: list[bytes]
    topic: bytes | None
    payload: bytes | None

    @property
    def json(self) -> object:
        return json.loads((self.payload or b"").removesuffix(b"\0"))


def parsed(parts: list[bytes]) -> Seen:
    """Parts in the order of the grammar: ``[routing] [topic] [payload] PROTO``; nothing may be left over."""
    *rest, proto = parts
    signature, version, kind, flags, userid, rolemask, *words = PROTO.unpack(proto)
    assert (signature, version) == (0x8E, 1)
    routing = []
    if flags & ROUTE:
        cut = rest.index(b"") + 1
        routing, rest = rest[:cut], rest[cut:]
    topic = rest.pop(0) if flags & TOPIC else None
    payload = rest.pop(0) if flags & PAYLOAD else None
    assert rest == []
    return Seen(kind, flags, userid, rolemask, (words[0], words[1]), routing, topic, payload)


class Peer:
    """One connection; use it as a context manager.

    Args:
        text: which of the two. uri: ``tcp://HOST:PORT``. server_key, public, secret: Z85.
    """

    def __init__(self, text: Text, uri: str, server_key: str, public: str, secret: str) -> None:
        self.text = text
        self._context = zmq.Context()
        self.sock = sock = self._context.socket(zmq.DEALER)
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.RCVTIMEO, PATIENCE_MS)
        sock.set(zmq.RECONNECT_IVL, 20)
        sock.set(zmq.CURVE_SERVERKEY, server_key.encode())
        sock.set(zmq.CURVE_PUBLICKEY, public.encode())
        sock.set(zmq.CURVE_SECRETKEY, secret.encode())
        sock.connect(uri)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()
        self._context.term()

    def send(self, *parts: bytes) -> None:
        self.sock.send_multipart(parts)

    def request(
        self,
        topic: bytes,
        value: object = None,
        *,
        tag: int = 1,
        nodeid: int = ANY,
        flags: int = 0,
        delimiter: bool = True,
    ) -> None:
        flags |= TOPIC
        parts = [topic]
        if value is not None:
            flags |= self.text.json_flags
            parts.append(self.text.json(value))
        if delimiter:
            flags |= ROUTE
            parts.insert(0, b"")
        self.send(*parts, PROTO.pack(0x8E, 1, REQUEST, flags, USERID_UNKNOWN, 0, nodeid, tag))

    def respond(self, to: Seen, payload: bytes | None = None, flags: int = 0) -> None:
        parts = [*to.routing, to.topic or b""]
        flags |= to.flags & ~(PAYLOAD | JSON)
        if payload is not None:
            flags |= PAYLOAD
            parts.append(payload)
        self.send(*parts, PROTO.pack(0x8E, 1, RESPONSE, flags, USERID_UNKNOWN, 0, 0, to.words[1]))

    def keepalive(self) -> None:
        self.send(ALIVE)

    def receive(self, *, keepalives: bool = False) -> Seen:
        """The next message; keepalives are passed over unless they are wanted."""
        while True:
            parts = self.sock.recv_multipart()
            if keepalives or parts != [ALIVE]:
                return parsed(parts)

    def ask(self, topic: bytes, value: object = None, **more: int) -> Seen:
        """A request and the response to it; nothing else may come in between."""
        self.request(topic, value, **more)
        seen = self.receive()
        assert (seen.kind, seen.topic, seen.words[1]) == (RESPONSE, topic, more.get("tag", 1))
        return seen

    def must(self, topic: bytes, value: object = None) -> None:
        seen = self.ask(topic, value)
        assert seen.words[0] == 0, seen
