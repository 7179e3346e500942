"""Clients that come back all at once: ``python -m tests.bench.storm_clients FIRST SECOND COUNT``.

Each is what ``client.js`` and ``broker.client`` are to a gateway, and no more: it connects, shows a token, has its
welcome and subscribes by ``resume``; once its connection is lost it waits as they do, asks the second gateway, and is
live again with the answer ``resumed``. A line is printed when all are live; then whoever reads it kills the first
gateway, and a second line tells how long they took. They come from many addresses of the loopback network. One epoll
loop has all of them, so that a client speaks as soon as it is connected, as one with a machine of its own does.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import select
import socket
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

from broker.backoff import Backoff
from broker.client.reconnecting import Reconnect

AT_ONCE = 128
"""Handshakes under way while the clients come for the first time."""
ADDRESSES = 250
PATIENCE_S = 20.0
"""From a dial to the welcome, as in ``client.js``."""
END_S = 60.0
TURN_S = 0.01
EVENTS = 64
PREFIX = "bench."
READ_BYTES = 16384
TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
PAUSES = Reconnect()
"""Those of the Python client and of ``client.js``."""


def frame(first: int, data: bytes) -> bytes:
    """A masked frame, with the mask 0."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([first]) + size + b"\0\0\0\0" + data


class Client:
    """One of them."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._source = f"127.0.{1 + number // ADDRESSES}.{1 + number % ADDRESSES}"
        self._backoff = Backoff(PAUSES.min_s, PAUSES.max_s)
        self._live = False
        self._position: dict[str, object] | None = None
        self._socket: socket.socket | None = None
        self._upgraded = False
        self._data = b""

    def connect(self) -> None:
        """One attempt."""
        self._upgraded, self._data = False, b""
        sock = self._socket = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: the port is chosen by connect
        sock.bind((self._source, 0))
        with contextlib.suppress(BlockingIOError):
            sock.connect(self._crowd.where)
        self._crowd.watch(self, sock, select.EPOLLOUT)
        self._crowd.later(PATIENCE_S, lambda: self._give_up(sock))

    def ready(self, events: int) -> None:
        """The connection is there, or something came over it."""
        sock = self._socket
        assert sock is not None
        try:
            if events & select.EPOLLOUT and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                sock.send(self._crowd.request)
                self._crowd.watch(self, sock, select.EPOLLIN)
            elif data := sock.recv(READ_BYTES):
                self._take(sock, self._data + data)
            else:
                self._lost()
        except OSError:
            self._lost()

    def _take(self, sock: socket.socket, data: bytes) -> None:
        if not self._upgraded:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end or b" 101 " not in head[:16]:
                self._crowd.refused[head[9:12].decode()] += 1
                self._lost()
                return
            self._upgraded = True
        while len(data) >= 2:
            at, size = (4, int.from_bytes(data[2:4], "big")) if data[1] == 126 else (2, data[1])
            if len(data) < at + size:
                break
            self._heard(sock, data[0], data[at : at + size])
            data = data[at + size :]
        self._data = data

    def _heard(self, sock: socket.socket, first: int, data: bytes) -> None:
        if first == PING:
            sock.send(frame(PONG, data))
        elif first == CLOSE:
            self._crowd.refused[str(int.from_bytes(data[:2], "big"))] += 1
        elif first == TEXT and data.startswith(b'{"type":"welcome"'):
            if self._position is None:
                welcome = json.loads(data)
                self._position = {"epoch": welcome["epoch"], "sequence": welcome["sequence"]}
            resume = {"type": "resume", **self._position, "subscriptions": [PREFIX]}
            sock.send(frame(TEXT, json.dumps(resume).encode()))
        elif first == TEXT and data.startswith(b'{"type":"resumed"'):
            self._live = True
            self._backoff.reset()
            self._crowd.came()

    def _give_up(self, sock: socket.socket) -> None:
        if self._socket is sock and not self._live:
            self._lost()

    def _lost(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._live:
            self._live = False
            self._crowd.lost()
        self._crowd.attempts += 1
        self._crowd.later(self._backoff.after(), self.connect)


class Crowd:
    """All of them.

    Attributes:
        where: host and port to dial. took: seconds from the first loss until each was live again.
        attempts: pauses that were made. refused: status or close code -> how often.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.attempts = 0
        self.refused: Counter[str] = Counter()
        self.took: list[float] = []
        self.live = 0
        self._lost_at = 0.0
        self._epoll = select.epoll()
        self._by_fd: dict[int, Client] = {}
        self._timers: list[tuple[float, int, object]] = []
        self._order = 0

    def go_to(self, url: str) -> None:
        """Dial there from now on."""
        place = urlsplit(url)
        self.where = (str(place.hostname), int(place.port or 0))
        self.request = (
            f"GET /v1/ws HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: flux.v1\r\nAuthorization: Bearer {os.environ['WSLOAD_TOKEN']}\r\n\r\n"
        ).encode()

    def watch(self, client: Client, sock: socket.socket, events: int) -> None:
        """Tell ``client`` of these."""
        known = self._by_fd.get(sock.fileno()) is client
        self._by_fd[sock.fileno()] = client
        try:
            self._epoll.register(sock, events)
        except FileExistsError:
            assert known
            self._epoll.modify(sock, events)

    def later(self, seconds: float, work: object) -> None:
        """Call ``work`` then."""
        self._order += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._order, work))

    def turn(self) -> None:
        """What is ready, and what is due."""
        for fd, events in self._epoll.poll(TURN_S, EVENTS):
            self._by_fd[fd].ready(events)
        now = time.monotonic()
        for _ in range(EVENTS):
            if not self._timers or self._timers[0][0] > now:
                break
            work = heapq.heappop(self._timers)[2]
            work()  # type: ignore[operator]

    def came(self) -> None:
        """One is live."""
        self.live += 1
        if self._lost_at:
            self.took.append(time.monotonic() - self._lost_at)

    def lost(self) -> None:
        """One is live no more."""
        self.live -= 1
        self._lost_at = self._lost_at or time.monotonic()

    def come(self) -> None:
        """All of them for the first time, some at a time."""
        clients = [Client(self, number) for number in range(self.count)]
        for begin in range(0, self.count, AT_ONCE):
            for client in clients[begin : begin + AT_ONCE]:
                client.connect()
            while self.live < min(begin + AT_ONCE, self.count):
                self.turn()

    def come_back(self) -> dict[str, object]:
        """Wait for the loss of all and their return; how long that took."""
        self.attempts = 0
        while not self._lost_at:
            self.turn()
        while len(self.took) < self.count and time.monotonic() - self._lost_at < END_S:
            self.turn()
        took = sorted(self.took) or [END_S]
        shares = {"p50": 0.5, "p99": 0.99, "last": 1.0}
        at = {name: took[int(share * (len(took) - 1))] for name, share in shares.items()}
        return {**at, "missing": self.count - self.live, "attempts": self.attempts, "refused": self.refused}


def main(first: str, second: str, count: int) -> None:
    """Come, say so, be thrown out, come back, say how long that took."""
    crowd = Crowd(count)
    crowd.go_to(first)
    began = time.monotonic()
    crowd.come()
    print(json.dumps({"connections": count, "seconds": time.monotonic() - began}), flush=True)
    crowd.go_to(second)
    print(json.dumps(crowd.come_back()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
