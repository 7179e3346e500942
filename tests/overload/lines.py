"""Connections of an attacker: what is sent is prepared once and leaves as fast as it is taken, answers are dropped."""

import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import zmq

from broker.transport.curve import Certificate
from broker.wire.message import Message
from tests.fuzz import reference
from tests.live.doors import dealer, view
from tests.live.rawweb import HANDSHAKE
from tests.live.speaker import Speaker

PATIENCE_S = 40.0
READ_BYTES = 1 << 18
TEXT, BINARY = 0x81, 0x82


class Line:
    """One connection. ``handle`` is what a poller takes; ``ended``: the other side is gone."""

    handle: Any
    ended = False

    def prepare(self, messages: Sequence[Message]) -> Any:
        """What ``push`` takes for these messages."""
        raise NotImplementedError

    def push(self, chunk: Any) -> None:
        """Send as much of it as is taken; the rest is sent by ``flush``."""
        raise NotImplementedError

    def flush(self) -> bool:
        """Send what is left; True when nothing is."""
        raise NotImplementedError

    def drain(self) -> bytes:
        """What has come; most loads drop it."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until something has come, and take it."""
        poller = zmq.Poller()
        poller.register(self.handle, zmq.POLLIN)
        assert poller.poll(PATIENCE_S * 1000), "no answer"
        self.drain()


class StreamLine(Line):
    """A stream socket on which frames follow each other."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.handle = sock.fileno()
        self._left = memoryview(b"")

    def prepare(self, messages: Sequence[Message]) -> bytes:
        return b"".join(message.framed() for message in messages)

    def push(self, chunk: bytes) -> None:
        self._left = memoryview(chunk)
        self.flush()

    def flush(self) -> bool:
        try:
            while self._left:
                self._left = self._left[self.sock.send(self._left) :]
        except BlockingIOError:
            return False
        except OSError:
            self.ended = True
        return True

    def drain(self) -> bytes:
        try:
            came = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            came = b""
        self.ended = self.ended or not came
        return came

    def close(self) -> None:
        self.sock.close()


class WebLine(StreamLine):
    """A WebSocket of one of the three subprotocols; masked with zeros, so that masking costs the attacker nothing."""

    def __init__(self, url: str, token: str, subprotocol: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        sock = socket.create_connection((host, int(port)), PATIENCE_S)
        head = {**HANDSHAKE, "Host": f"{host}:{port}", "Authorization": f"Bearer {token}"}
        head["Sec-WebSocket-Protocol"] = subprotocol
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        sock.sendall(f"GET /v1/ws HTTP/1.1\r\n{lines}\r\n".encode())
        came = b""
        while b"\r\n\r\n" not in came and (some := sock.recv(READ_BYTES)):
            came += some
        if not came.startswith(b"HTTP/1.1 101"):
            sock.close()
            raise ConnectionRefusedError(came[:80])
        super().__init__(sock)
        self._encode = {"flux.v1": _binary, "flux.v1.json": _json, "ZWS2.0": _zws}[subprotocol]
        if subprotocol == "ZWS2.0":
            self.push(frame(BINARY, b"\0"))

    def prepare(self, messages: Sequence[Message]) -> bytes:
        return b"".join(map(self._encode, messages))


def frame(kind: int, data: bytes) -> bytes:
    """A whole WebSocket message of a client."""
    size = len(data)
    if size < 126:
        head = struct.pack(">BB", kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", kind, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", kind, 0x80 | 127, size)
    return head + bytes(4) + data


def _binary(message: Message) -> bytes:
    return frame(BINARY, message.framed())


def _json(message: Message) -> bytes:
    return frame(TEXT, json.dumps(view(reference.fields_of(message.parts()))).encode())


def _zws(message: Message) -> bytes:
    *parts, last = message.parts()
    return b"".join(frame(BINARY, b"\1" + part) for part in parts) + frame(BINARY, b"\0" + last)


class ZmqLine(Line):
    """A socket of ZeroMQ; a chunk is a list of messages, the last one first."""

    def __init__(self, sock: zmq.Socket[bytes]) -> None:
        self.handle = self.sock = sock
        self._left: list[list[bytes]] = []

    def prepare(self, messages: Sequence[Message]) -> list[list[bytes]]:
        return [message.parts() for message in reversed(messages)]

    def push(self, chunk: list[list[bytes]]) -> None:
        self._left = list(chunk)
        self.flush()

    def flush(self) -> bool:
        try:
            while self._left:
                self.sock.send_multipart(self._left[-1], zmq.NOBLOCK)
                self._left.pop()
        except zmq.Again:
            return False
        return True

    def drain(self) -> bytes:
        try:
            for _ in range(256):
                self.sock.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:  # nothing is there, or the socket only sends
            pass
        return b""

    def close(self) -> None:
        self.sock.close(0)


def curve_line(context: zmq.Context, uri: str, server_key: str, key: Certificate) -> ZmqLine:
    """A DEALER with a key."""
    return ZmqLine(dealer(context, uri, server_key, key))


def unix_line(uri: str, uid: int) -> StreamLine:
    """A guest's connection, greeted.

    Raises:
        Closed, OSError: there is no room.
    """
    return StreamLine(Speaker(uri, uid).sock)


Work = Callable[[Line], Iterator[Any]]


def nothing(_line: Line) -> Iterator[Any]:
    """The work of a line that only reads."""
    return iter(())


def flood(work: dict[Line, Iterator[Any]], until: float, *, deaf: frozenset[Line] = frozenset()) -> int:
    """Push the chunks of each line as fast as it takes them, and read what comes, but on those that are ``deaf``.

    Ends at ``until``, or when all is sent or every line with work has ended. Returns how many chunks were sent.
    """
    poller, by_handle, busy, sent = zmq.Poller(), {}, set(work), 0
    for line in work:
        by_handle[line.handle] = line
        poller.register(line.handle, zmq.POLLOUT if line in deaf else zmq.POLLIN | zmq.POLLOUT)
    while busy and monotonic() < until:
        for handle, event in poller.poll(50):
            line = by_handle[handle]
            if event & zmq.POLLIN and line not in deaf:
                line.drain()
            if event & ~zmq.POLLIN and line in busy and line.flush():
                chunk = next(work[line], None)
                if chunk is None:
                    busy.discard(line)
                    poller.modify(handle, 0 if line in deaf else zmq.POLLIN)
                else:
                    line.push(chunk)
                    sent += 1
            if line.ended:
                busy.discard(line)
                poller.unregister(handle)
    return sent
