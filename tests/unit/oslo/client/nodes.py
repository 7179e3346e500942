"""What the tests of clients share: real nodes, and nodes that a test plays itself on raw sockets."""

from __future__ import annotations

import time
from typing import Any, Self

import zmq

from broker.oslo.contract import Settings
from broker.oslo.directory import wire
from broker.oslo.frames import Envelope, Kind, decode, encode
from broker.oslo.node import EVERYTHING
from broker.oslo.records import Record, State
from tests.live.oslo_raw import PATIENCE_S, Node, config_at
from tests.live.oslo_wire import tell

DIRECTORY_ONLY = frozenset({"directory"})


def settings_at(folder: Any, **changes: Any) -> Settings:
    """Quick ones."""
    return Settings(**{"ipc_dir": str(folder), "retry_s": 0.05, "ready_s": 5.0, **changes})


def whole_node(folder: Any, **changes: Any) -> Any:
    """Config of a node with every room."""
    return config_at(folder, **{"run": EVERYTHING, "lease_s": 30.0, **changes})


def door_of(directory: Node) -> str:
    """Where other nodes announce to a real directory."""
    endpoints = [str(each["endpoint"]) for each in directory.status("directory")["sockets"]]
    return next(each for each in endpoints if each.startswith("tcp:"))


class Played:
    """A node whose CALL entry is played by the test; it announces over TCP to a real directory at ``door``."""

    def __init__(self, door: str, name: str, *, bind: bool = True) -> None:
        self.name = name
        self.records: tuple[Record, ...] = ()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sock = self._context.socket(zmq.ROUTER)
        self.sock.set(zmq.LINGER, 0)
        self.sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        port = self.sock.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        if not bind:
            self.sock.unbind(self.endpoint)
        self._directory = self._context.socket(zmq.DEALER)
        self._directory.set(zmq.LINGER, 0)
        self._directory.connect(door)
        self._directory.send_multipart(wire.encode(wire.DirectoryKind.HELLO, wire.Hello()))
        self._version = 0
        self._incarnation = time.time_ns()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.sock.close(0)
        self._directory.close(0)
        self._context.term()

    def announce(self, *records: Record, pipeline: str = "call", endpoint: str | None = None) -> None:
        """Tell the directory who listens here; ``endpoint`` "": nobody reaches it from another node."""
        self._version += 1
        at = self.endpoint if endpoint is None else endpoint
        state = State(self.name, pipeline, self._incarnation, self._version, at, "", records)
        self._directory.send_multipart(wire.encode(wire.DirectoryKind.ANNOUNCE, state))

    def renew(self, pipeline: str = "call") -> None:
        """Tell the directory that we are still there."""
        beat = wire.Beat(self.name, pipeline, self._incarnation, self._version)
        self._directory.send_multipart(wire.encode(wire.DirectoryKind.BEAT, (beat,)))

    def leave(self, pipeline: str = "call") -> None:
        """Tell the directory that we are gone."""
        beat = wire.Beat(self.name, pipeline, self._incarnation, self._version)
        self._directory.send_multipart(wire.encode(wire.DirectoryKind.LEAVE, beat))

    def get(self) -> tuple[bytes, Envelope, bytes]:
        """Who asks, and what."""
        rid, head, body = self.sock.recv_multipart()
        return rid, decode(head), body

    def silent(self, seconds: float = 0.15) -> bool:
        """True when nothing comes for so long."""
        return not self.sock.poll(int(seconds * 1000))

    def answer(
        self, asked: tuple[bytes, Envelope, bytes], kind: Kind, body: bytes = b"", reason: int = 0
    ) -> None:
        """Answer what ``get`` has returned."""
        rid, envelope, _body = asked
        tell(self.sock, rid, encode(kind, id=envelope.id, reason=reason), body)


def server(listener: str, topic: str = "t", name: str = "", exchange: str = "x") -> Record:
    """A record of an rpc-server."""
    return Record(exchange, topic, name or f"s-{listener}", listener)
