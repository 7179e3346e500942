"""A client made of a socket and frames, so that what a test sends and sees is what crosses the socket."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from broker.wire.framing import Splitter
from broker.wire.message import REQUEST, RESPONSE, Message, request
from broker.wire.payload import encode_json

PATIENCE_S = 40.0
"""How long something that must come may take on a busy machine."""
FENCE = 0xFE0CE000


class Closed(Exception):
    """The broker closed the connection; ``greeting`` is its errno byte when it did so at once."""


def path_of(uri: str) -> str:
    return uri.removeprefix("local://")


_connecting = threading.Lock()
"""All threads of a process are the same user: while one is somebody else, no other one may connect."""


def _connect(path: str, uid: int | None) -> socket.socket:
    """SO_PEERCRED is what the peer was when it called connect()."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _connecting:
        own = os.geteuid()
        try:
            if uid is not None:
                os.seteuid(uid)
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        finally:
            os.seteuid(own)
    return sock


def listened_at(uri: str) -> bool:
    """Whether somebody takes connections there: a socket has a name a moment before."""
    try:
        _connect(path_of(uri), None).close()
    except OSError:
        return False
    return True


class Speaker:
    """One connection; use it as a context manager.

    Args:
        uri: ``local:///path``. uid: connect as this user (root only).
        greet: read the handshake byte, which must be 0.
    """

    def __init__(self, uri: str, uid: int | None = None, *, greet: bool = True) -> None:
        self.sock = _connect(path_of(uri), uid)
        self.sock.settimeout(PATIENCE_S)
        self.splitter = Splitter()
        self.seen: list[Message] = []
        self.fences = 0
        if greet:
            self.greeting = self.sock.recv(1)
            if self.greeting != b"\0":
                self.close()
                raise Closed(f"greeted with {self.greeting!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    # -- out -----------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.sock.settimeout(PATIENCE_S)  # not what was left of it to receive
        self.sock.sendall(data)

    def tell(self, *messages: Message) -> None:
        self.send(b"".join(message.framed() for message in messages))

    # -- in ------------------------------------------------------------------------------------

    def receive(self, timeout: float = PATIENCE_S) -> bool:
        """Read once into ``seen``.

        Raises:
            Closed: end of stream. TimeoutError: nothing came.
        """
        self.sock.settimeout(max(timeout, 0.001))
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed("end of stream")
        self.seen += self.splitter.feed(data)
        assert self.splitter.failure is None, f"the broker sent no message: {self.splitter.failure}"
        return True

    def take(self, wanted: Callable[[Message], object], timeout: float = PATIENCE_S) -> Message:
        """The first message that is ``wanted``; the others stay in ``seen``.

        Raises:
            Closed, TimeoutError: see ``receive``.
        """
        until = time.monotonic() + timeout
        looked = 0
        while True:
            for index in range(looked, len(self.seen)):
                if wanted(self.seen[index]):
                    return self.seen.pop(index)
            looked = len(self.seen)
            self.receive(until - time.monotonic())

    def next(self, timeout: float = PATIENCE_S) -> Message:
        return self.take(lambda _message: True, timeout)

    def ask(self, message: Message, timeout: float = PATIENCE_S) -> Message:
        """Send a request and wait for the response to it."""
        self.tell(message)
        return self.take(lambda seen: answers(seen, message), timeout)

    def ping(self) -> int:
        """Returns the errnum of one ``broker.ping`` after everything sent before it was handled."""
        self.fences += 1
        return self.ask(
            request("broker.ping", encode_json({"seq": self.fences}), matchtag=FENCE + self.fences)
        ).errnum

    def ended(self, timeout: float = PATIENCE_S) -> bool:
        """Whether the broker closes the connection; what it sent before stays in ``seen``."""
        until = time.monotonic() + timeout
        try:
            while True:
                self.receive(until - time.monotonic())
        except TimeoutError:
            return False
        except Closed:
            return True


def answers(seen: Message, asked: Message) -> bool:
    return seen.type == RESPONSE and seen.matchtag == asked.matchtag and seen.topic == asked.topic


def is_request(message: Message) -> bool:
    return message.type == REQUEST


def subscribe(speaker: Speaker, prefix: str) -> None:
    done = speaker.ask(request("event.subscribe", encode_json({"topic": prefix}), matchtag=0xE0))
    assert done.errnum == 0


def provide(speaker: Speaker, name: str) -> None:
    done = speaker.ask(request("service.add", encode_json({"service": name}), matchtag=0xE1))
    assert done.errnum == 0
