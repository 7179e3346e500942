"""A node's proxy in a thread, and peers that speak raw pyzmq to it."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import zmq

from broker.oslo.frames import Envelope, Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.process import NodeProxy
from broker.oslo.records import Opening, Record, to_json
from tests.live.oslo_wire import hear

PATIENCE_S = 40.0
T = TypeVar("T")


def config_at(folder: Any, **changes: Any) -> NodeConfig:
    """A node on any free ports of 127.0.0.1, whose servers need not pulse for a minute."""
    node: dict[str, Any] = {
        "node": "127.0.0.1",
        "ports": dict.fromkeys(Pipeline, 0),
        "directory_port": 0,
        "run": frozenset({"call", "cast"}),
        "lease_s": 60.0,
    }
    return NodeConfig(str(folder), **{**node, **changes})


def until(said: Callable[[], T], what: str = "it") -> T:
    """Wait until ``said`` returns something true, which is returned."""
    over = time.monotonic() + PATIENCE_S
    while time.monotonic() < over:
        found = said()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


class Node:
    """A proxy that runs."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.next: NodeConfig | Exception = config
        self.proxy = NodeProxy(config, reread=self._reread)
        self.proxy.open()
        self._thread = threading.Thread(target=self.proxy.run, name="proxy")
        self._thread.start()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for sock in self._sockets:
            sock.close(0)
        self.context.term()
        if self._thread.is_alive():
            self.proxy.stop("the test is over")
            self.proxy.stop("at once")
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the proxy did not end"

    def _reread(self) -> NodeConfig:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    def again(self, **changes: Any) -> None:
        """Have it read its configuration again, which has changed by that; returns when it has, and has said so."""
        settings = self.proxy.reload.settings

        def readings() -> int:
            return int(settings["done"] + settings["refused"])

        if not isinstance(self.next, Exception):
            self.next = dataclasses.replace(self.next, **changes)
        before = readings()
        self.proxy.reload.request()
        until(lambda: readings() > before, "the settings to be read again")
        self.within(lambda: None)  # it counts before it says what has changed

    def within(self, call: Callable[[], T]) -> T:
        """What ``call`` returns in the proxy's thread."""
        done = threading.Event()
        results: list[T] = []

        def run() -> None:
            try:
                results.append(call())
            finally:
                done.set()

        self.proxy.reactor.call_threadsafe(run)
        assert done.wait(PATIENCE_S), "the proxy does not answer"
        return results[0]

    def status(self, room: str) -> dict[str, Any]:
        return self.within(lambda: self.proxy.status()[room])

    def count(self, room: str, name: str) -> int:
        return int(self.status(room)["counts"].get(name, 0))

    def counted(self, room: str, name: str, n: int = 1) -> None:
        """Wait until the counter has that value at least."""
        until(lambda: self.count(room, name) >= n, f"{n} {name} in {room}, saw {self.status(room)['counts']}")

    def socket(self, kind: int, endpoint: str, **options: Any) -> zmq.Socket[bytes]:
        sock = self.context.socket(kind)
        self._sockets.append(sock)
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        sock.set(zmq.SNDTIMEO, int(PATIENCE_S * 1000))
        for name, value in options.items():
            sock.set(getattr(zmq, name.upper()), value)
        sock.connect(endpoint)
        return sock

    def tcp(self, room: str) -> str:
        return str(self.status(room)["endpoint"])

    def client(self, room: str = "call", *, tcp: bool = False, **options: Any) -> Client:
        kind = zmq.DEALER if room == "call" else zmq.PUSH
        where = self.tcp(room) if tcp else self.config.path(f"{room}.in")
        return Client(self.socket(kind, where, **options))

    def server(self, room: str = "call", **options: Any) -> Server:
        return Server(self, room, **options)


class Answer:
    """An envelope and what came with it."""

    def __init__(self, frames: list[bytes]) -> None:
        self.envelope: Envelope = decode(frames[0])
        self.head = frames[0]
        self.rest = frames[1:]

    @property
    def kind(self) -> int:
        return self.envelope.kind

    @property
    def reason(self) -> int:
        return self.envelope.reason


class Client:
    """Sends calls and casts."""

    def __init__(self, sock: zmq.Socket[bytes]) -> None:
        self.sock = sock

    def send(
        self, kind: int, topic: str, body: bytes = b"", *, exchange: str = "x", server: str = "", **more: Any
    ) -> bytes:
        number = more.pop("id", None) or new_id()
        listeners = more.pop("listeners", ())
        self.sock.send_multipart([encode(kind, exchange, topic, server, listeners, id=number, **more), body])
        return number

    def call(self, topic: str, body: bytes = b"", **more: Any) -> bytes:
        return self.send(Kind.CALL, topic, body, **more)

    def cast(self, topic: str, body: bytes = b"", **more: Any) -> bytes:
        return self.send(Kind.CAST, topic, body, **more)

    def unheard(self, topic: str) -> bool:
        """True when a call is not answered, whether or not it can be sent."""
        with contextlib.suppress(zmq.Again):
            self.sock.send_multipart([encode(Kind.CALL, "x", topic, id=new_id()), b""], zmq.NOBLOCK)
        return self.silent(100)

    def get(self) -> Answer:
        """The next one; whether we are still there may be asked at any time, and is no answer."""
        while (answer := Answer(hear(self.sock))).kind == Kind.PULSE:
            pass
        return answer

    def silent(self, ms: int = 100) -> bool:
        return not self.sock.poll(ms)


@dataclasses.dataclass
class Got:
    """A request at a server; ``route`` is b"" for casts of the CAST pipeline."""

    envelope: Envelope
    route: bytes
    body: bytes

    @property
    def listener(self) -> str:
        return self.envelope.listener


class Server:
    """A server process: its control DEALER.

    Args:
        credit: of each of its listeners.
    """

    def __init__(self, node: Node, room: str, credit: int = 1000, **options: Any) -> None:
        self.node = node
        self.room = room
        self.credit = credit
        self.ctl = node.socket(zmq.DEALER, node.config.path(f"{room}.ctl"), **options)
        self.early: list[list[bytes]] = []

    def ask(self, kind: int, body: bytes = b"", **more: Any) -> Answer:
        """Send a control message, wait for its answer; requests that come first are kept."""
        number = new_id()
        self.ctl.send_multipart([encode(kind, id=number, **more), body])
        while True:
            frames = hear(self.ctl)
            if decode(frames[0]).id == number and len(frames) == 2:
                return Answer(frames)
            self.early.append(frames)

    def opening(self, topic: str, server: str = "s", exchange: str = "x", listener: str = "") -> Opening:
        listener = listener or secrets.token_hex(12)
        return Opening(listener, (Record(exchange, topic, server, listener),), None, self.credit)

    def open(self, topic: str, server: str = "s", exchange: str = "x", listener: str = "") -> str:
        opening = self.opening(topic, server, exchange, listener)
        answer = self.ask(Kind.OPEN, to_json(opening))
        assert answer.kind == Kind.OPENED, (answer.envelope, answer.rest)
        return opening.listener

    def close(self, listener: str) -> Answer:
        return self.ask(Kind.CLOSE, listeners=(listener,))

    def get(self, *, give: bool = True) -> Got:
        """The next request; ``give`` its credit back."""
        head, *route, body = self.early.pop(0) if self.early else hear(self.ctl)
        got = Got(decode(head), b"".join(route), body)
        if give:
            self.give(got.listener)
        return got

    def give(self, listener: str, messages: int = 1) -> None:
        self.ctl.send_multipart([encode(Kind.CREDIT, listeners=(listener,), word=messages), b""])

    def reply(self, got: Got, body: bytes = b"", kind: int = Kind.REPLY) -> None:
        self.ctl.send_multipart([encode(kind, id=got.envelope.id), got.route, body])

    def silent(self, ms: int = 100) -> bool:
        return not self.ctl.poll(ms)


class Child:
    """A server in a process of its own (``oslo_child``)."""

    def __init__(self, node: Node, room: str, topic: str, server: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.live.oslo_child",
            room,
            node.config.ipc_dir,
            "x",
            topic,
            server,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: "open" in self.lines, "the child to register")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def child_of(node: Node, room: str, topic: str, server: str = "child") -> Iterator[Child]:
    """A server process, killed at the end."""
    child = Child(node, room, topic, server)
    try:
        yield child
    finally:
        child.kill()


@contextlib.contextmanager
def node_at(folder: Any, **changes: Any) -> Iterator[Node]:
    """A proxy that runs in a thread for as long as the context lasts."""
    with Node(config_at(folder, **changes)) as node:
        yield node
