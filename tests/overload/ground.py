"""What a load gets: lines of its kind, a service that never answers, and the time it has."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from time import monotonic
from typing import Any, Self

import msgspec
import zmq

from broker.transport.curve import Certificate
from broker.wire.message import NODEID_ANY, NORESPONSE, Message, request
from broker.wire.payload import encode_json
from tests.live.speaker import Closed
from tests.overload.lines import Line, WebLine, ZmqLine, curve_line, flood, nothing, unix_line

SUBPROTOCOLS = {"ws": "flux.v1", "json": "flux.v1.json", "zws": "ZWS2.0"}
REFUSED = (Closed, OSError, AssertionError)
"""What a line ends with that finds no room; the rest of the load goes on."""


class Place(msgspec.Struct, kw_only=True):
    """Where an attacker finds what it attacks, and as whom."""

    uris: list[str]
    """The UNIX sockets by rank."""
    uid: int
    """The guest."""
    curve_uri: str
    server_key: str
    public_key: str
    secret_key: str
    http: str = ""
    token: str = ""
    """Of a web user who is no owner."""
    nfp: str = ""
    """Endpoint of an NFP broker without CURVE."""
    oslo: str = ""
    """The folder with the sockets of a node of oslo.messaging."""


class Ground:
    """Lines of one kind (``way``), all closed at the end; ``until`` is when to stop."""

    _names = itertools.count(1)

    def __init__(self, place: Place, way: str, seconds: float, seed: int = 0) -> None:
        self.place, self.way, self.seed = place, way, seed
        self.until = monotonic() + seconds
        self.sent = 0
        self._lines: list[Line] = []
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for line in self._lines:
            line.close()
        self._context.term()

    @property
    def over(self) -> bool:
        return monotonic() >= self.until

    @property
    def nodeid(self) -> int:
        """Whom calls ask: rank 0, also from below."""
        return 0 if self.way == "child" else NODEID_ANY

    def open(self, count: int, way: str = "") -> list[Line]:
        """So many lines, or as many as there is room for."""
        opened: list[Line] = []
        with contextlib.suppress(*REFUSED):
            while len(opened) < count and not self.over:
                opened.append(self._line(way or self.way))
                self._lines.append(opened[-1])
        return opened

    def _line(self, way: str) -> Line:
        place = self.place
        if way in ("unix", "child"):
            return unix_line(place.uris[way == "child"], place.uid)
        if way == "curve":
            key = Certificate(place.public_key, place.secret_key)
            return curve_line(self._context, place.curve_uri, place.server_key, key)
        return WebLine(place.http, place.token, SUBPROTOCOLS[way])

    def connected(self, kind: int, endpoint: str, identity: bytes = b"") -> ZmqLine:
        """A plain socket of ZeroMQ."""
        sock = self._context.socket(kind)
        sock.set(zmq.LINGER, 0)
        if identity:
            sock.set(zmq.ROUTING_ID, identity)
        sock.connect(endpoint)
        line = ZmqLine(sock)
        self.adopt(line)
        return line

    def adopt(self, line: Line) -> None:
        """Close it at the end."""
        self._lines.append(line)

    def close(self, lines: list[Line]) -> None:
        for line in lines:
            line.close()
            self._lines.remove(line)

    def mute(self, count: int = 1) -> tuple[list[Line], list[str]]:
        """Services that never answer, a line each; at rank 0 when the callers are below it."""
        lines = self.open(count, "unix" if self.way == "child" else self.way)
        names = [f"mute{os.getpid()}-{next(self._names)}" for _ in lines]
        for line, name in zip(lines, names, strict=True):
            line.push(line.prepare([service_add(name)]))
        for line in lines:
            with contextlib.suppress(*REFUSED):
                line.settle()
        return lines, names

    def flood(
        self, work: dict[Line, Iterator[Any]], *readers: Line, deaf: frozenset[Line] = frozenset()
    ) -> None:
        """``lines.flood``; ``readers`` have nothing to send, the ``deaf`` do not read."""
        everybody = {**work, **{line: nothing(line) for line in readers}}
        self.sent += flood(everybody, self.until, deaf=deaf)


def service_add(name: str) -> Message:
    return request("service.add", encode_json({"service": name}), matchtag=1)


def subscription(topic: str, word: str = "subscribe", tag: int = 1) -> Message:
    return request(f"event.{word}", encode_json({"topic": topic}), matchtag=tag)


def goodbye(service: str, nodeid: int = NODEID_ANY) -> Message:
    """The notice that a caller is gone (RFC 6)."""
    return request(f"{service}.disconnect", nodeid=nodeid, flags=NORESPONSE)


def numbered(message: Message, first: int, count: int) -> list[Message]:
    """So many of it with matchtags from ``first`` on."""
    out = []
    for tag in range(first, first + count):
        one = message.copy()
        one.tag = tag.to_bytes(4, "big")
        out.append(one)
    return out
