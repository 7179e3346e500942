"""Loads on a gateway that are no messages: HTTP calls, event streams, bytes that are neither, and silence."""

import contextlib
import itertools
import re
import socket
import time

from tests.overload.ground import REFUSED, Ground
from tests.overload.lines import StreamLine


def connected(ground: Ground, count: int) -> list[StreamLine]:
    """So many TCP connections of one address."""
    host, _, port = ground.place.http.removeprefix("http://").rpartition(":")
    out = []
    with contextlib.suppress(*REFUSED):
        for _ in range(count):
            out.append(StreamLine(socket.create_connection((host, int(port)), 5.0)))
            ground.adopt(out[-1])
    return out


def asked(ground: Ground, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {ground.place.token}", **headers}
    if body:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _again(ground: Ground, count: int, data: bytes) -> None:
    """The same bytes over and over, on new connections when the former ones end."""
    while not ground.over:
        lines = connected(ground, count)
        if not lines:
            time.sleep(0.01)
            continue
        ground.flood({line: itertools.repeat(data) for line in lines})
        ground.close(list(lines))


def calls(ground: Ground) -> None:
    """Calls on 16 connections, a few in a packet."""
    _again(ground, 16, asked(ground, "POST", "/v1/rpc/broker.ping", b'{"seq":1}') * 4)


def publishing(ground: Ground) -> None:
    """Events, a call each."""
    _again(ground, 16, asked(ground, "POST", "/v1/events/load.http", b'{"seq":1}') * 4)


def malformed(ground: Ground) -> None:
    """What is no HTTP."""
    while not ground.over:
        lines = connected(ground, 16)
        ground.flood({line: iter([b"G\0T / HTTQ/9.9\r\n\x80: \xff\r\n\r\n" * 4]) for line in lines})
        ground.close(list(lines))


def silent(ground: Ground) -> None:
    """Connections that say nothing, as many as there is room for."""
    ground.sent += len(connected(ground, 1500))
    time.sleep(max(0.0, ground.until - time.monotonic()))


def epoch(ground: Ground) -> str:
    """What positions of events begin with now, as a stream's first one says."""
    (line,) = connected(ground, 1)
    line.push(asked(ground, "GET", "/v1/events?prefix=none"))
    came = b""
    while not (found := re.search(rb"\nid: ([^:\s]+):", came)):
        assert not line.ended, came
        came += line.drain()
        time.sleep(0.001)
    ground.close([line])
    return found[1].decode()


def replays(ground: Ground) -> None:
    """Event streams with 256 prefixes that ask for all events since the first one, and leave when an answer begins."""
    query = "&".join(f"prefix=victim.{number:x}." for number in range(256))
    data = asked(ground, "GET", f"/v1/events?{query}", Last_Event_ID=f"{epoch(ground)}:1")
    while not ground.over:
        lines = connected(ground, 48)
        ground.flood({line: iter([data]) for line in lines})
        for line in lines:
            with contextlib.suppress(*REFUSED):
                line.settle()
        ground.close(list(lines))


LOADS = {
    "http.calls": calls,
    "http.events": publishing,
    "http.malformed": malformed,
    "http.silent": silent,
    "sse.replays": replays,
}
