"""What tests of the publishing pipelines share: a room on a reactor that the test turns, raw peers around it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

from broker.identity import Credentials, Role
from broker.oslo.frames import Envelope, Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opening, Record, to_json
from tests.live.oslo_wire import hear

DEADLINE_S = 40.0


class Rig:
    """One room, and a context for everybody else. Use as a context manager."""

    def __init__(self, room: Any, pipeline: Pipeline, folder: Path, **config: Any) -> None:
        settings: dict[str, Any] = {
            "ipc_dir": str(folder),
            "node": "127.0.0.1",
            "ports": dict.fromkeys(Pipeline, 0),
            "lease_s": 60.0,  # who tests is silent for as long as a busy machine makes it
            "beat_s": 0.1,
        }
        self.config = NodeConfig(**{**settings, **config})
        self.pipeline = pipeline
        self.said: list[str] = []
        self.reactor = Reactor(say=lambda _level, text, values: self.said.append(text % values))
        self.reactor.open()
        self.acl = AccessControl(self.config)
        self.room = room(self.reactor, self.config, self.acl)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._peers: list[zmq.Socket[bytes]] = []

    def __enter__(self) -> Self:
        self.room.open()
        return self

    def __exit__(self, *_exc: object) -> None:
        for sock in self._peers:
            sock.close(0)
        self.context.term()
        self.room.close()
        self.reactor.close()
        assert not [line for line in self.said if "in the thread of the sockets" in line]

    # ------------------------------------------------------------ time

    def turn(self, seconds: float = 0.0) -> None:
        end = time.monotonic() + seconds
        while True:
            self.reactor.call_later(0.005, lambda: None)
            self.reactor.turn()
            if time.monotonic() >= end:
                return

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        end = time.monotonic() + DEADLINE_S
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < end, f"{what or condition}: {self.room.status()!s:.2000} {self.said}"
            self.turn()

    # ------------------------------------------------------------ peers

    def peer(self, kind: int, name: str, **options: Any) -> zmq.Socket[bytes]:
        """Connected to the file ``name`` of the folder, or to an endpoint."""
        sock = self.context.socket(kind)
        self._peers.append(sock)
        for option, value in options.items():
            sock.setsockopt(getattr(zmq, option), value)
        sock.connect(name if "://" in name else self.config.path(name))
        return sock

    def receive(self, sock: zmq.Socket[bytes], what: str = "a message") -> list[bytes]:
        self.until(lambda: sock.poll(0), what)
        return hear(sock) if sock.type == zmq.DEALER else sock.recv_multipart()

    def nothing_for(self, sock: zmq.Socket[bytes], seconds: float = 0.1) -> None:
        self.turn(seconds)
        assert not sock.poll(0), sock.recv_multipart()

    def confirmed(self, sock: zmq.Socket[bytes]) -> list[bytes]:
        """Handshake of a SUB: all it subscribed to is in force when this returns. Returns the answer."""
        token = b"?" + new_id()
        sock.setsockopt(zmq.SUBSCRIBE, token)
        answer = self.receive(sock, "the answer to a token")
        sock.setsockopt(zmq.UNSUBSCRIBE, token)
        assert answer[0] == token
        return answer

    def status(self, registration: zmq.Socket[bytes]) -> dict[str, Any]:
        number = new_id()
        registration.send_multipart([encode(Kind.STATUS, id=number), b""])
        while True:
            head, body = self.receive(registration, "a STATUS")
            if decode(head).kind == Kind.STATUS:
                assert decode(head).id == number
                return msgspec.json.decode(body)

    # ------------------------------------------------------------ listeners

    def open(
        self,
        registration: zmq.Socket[bytes],
        listener: str,
        topics: list[tuple[str, str]],
        pool: str | None = None,
        credit: int = 1000,
    ) -> tuple[Envelope, bytes]:
        records = tuple(Record(exchange, topic, "", listener, pool) for exchange, topic in topics)
        opening = Opening(listener, records, pool, credit)
        registration.send_multipart([encode(Kind.OPEN, id=new_id()), to_json(opening)])
        head, body = self.receive(registration, "an answer to OPEN")
        return decode(head), body

    def counts(self) -> dict[str, int]:
        return self.room.status()["counts"]

    def count(self, name: str) -> int:
        return self.counts().get(name, 0)


US = Credentials(0, Role.USER | Role.OWNER | Role.LOCAL)
