"""Something that sits where a node's proxy should, and answers an application with rubbish.

Now and then it answers as a proxy would, so that the application goes on and opens every socket it has.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final, Self

import zmq

from broker.oslo.directory import wire
from broker.oslo.frames import HEAD_BYTES, ID_BYTES, Kind, Malformed, decode, encode
from broker.oslo.reactor.bundle import FRAMES_MAX, pack
from broker.oslo.records import Opened, Record, State, to_json
from tests.live.oslo_fuzz import FROM_PROXY, ID, LISTENER, damaged
from tests.live.oslo_wire import tell

CONTROLS: Final = ("call.ctl", "cast.ctl", "fanout.ctl", "notify.ctl")
TO_DEALERS: Final = (*CONTROLS, "directory.ctl", "call.in")
"""They say one frame at a time: several may abort who reads them when we go (``bundle``)."""
TALK: Final = 6
"""Damaged messages for each one that came."""
NODE: Final = "liar"


class Liar:
    """Binds the files of a node's folder and serves them in a thread until it has said enough.

    Args:
        folder: of the node.
        messages: how many damaged ones it says at most.
        seed: of its dice.

    Attributes:
        said: damaged messages, by socket.
    """

    def __init__(self, folder: Path, messages: int, seed: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.said: Counter[str] = Counter()
        self._folder = folder
        self._most = messages
        self._dice = Random(seed)
        self._listeners: list[bytes] = [LISTENER.encode()]
        self._records: set[Record] = set()
        self._filters: list[bytes] = [b"Fx\0t\0"]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._over = False
        self._socks = {
            **{name: self._bound(zmq.ROUTER, name) for name in TO_DEALERS},
            "fanout.pub": self._bound(zmq.XPUB, "fanout.pub"),
            **{name: self._bound(zmq.XSUB, name) for name in ("fanout.in", "notify.in")},
            "cast.in": self._bound(zmq.PULL, "cast.in"),
        }
        for name in ("fanout.in", "notify.in"):
            self._socks[name].send(b"\1")
        self._thread = threading.Thread(target=self._run)

    def _bound(self, kind: int, name: str) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.set(zmq.LINGER, 0)
        sock.bind(f"ipc://{self._folder}/{name}")
        return sock

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over = True
        self._thread.join()
        for sock in self._socks.values():
            sock.close(0)
        self._context.term()
        for name in self._socks:
            (self._folder / name).unlink(missing_ok=True)

    @property
    def total(self) -> int:
        """Damaged messages said so far."""
        return sum(self.said.values())

    def _run(self) -> None:
        poller = zmq.Poller()
        names = {}
        for name, sock in self._socks.items():
            poller.register(sock, zmq.POLLIN)
            names[sock] = name
        while not self._over:
            for sock, _events in poller.poll(20):
                self._answer(names[sock], sock.recv_multipart())
            self._publish()

    # ------------------------------------------------------------ what it says

    def _lie(self, name: str, seeds: str, *head: bytes, number: bytes = b"") -> None:
        if self.total >= self._most:
            return
        frames = damaged(FROM_PROXY[seeds], self._dice)
        listener = self._dice.choice(self._listeners)
        frames = [frame.replace(LISTENER.encode(), listener) for frame in frames]
        if number and self._dice.random() < 0.5 and len(frames[0]) >= HEAD_BYTES:
            frames[0] = frames[0][: HEAD_BYTES - ID_BYTES] + number + frames[0][HEAD_BYTES:]
        if name in TO_DEALERS:
            frames = [self._bundle(frames)]
        try:
            self._socks[name].send_multipart([*head, *frames], zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(0.001)
        else:
            self.said[name] += 1

    def _bundle(self, frames: list[bytes]) -> bytes:
        """One frame; one in ten is itself damaged, or never was a bundle."""
        one = pack(frames[:FRAMES_MAX])
        return damaged([[one], [frames[0]]], self._dice)[0] if self._dice.random() < 0.1 else one

    def _publish(self) -> None:
        self._lie("fanout.pub", "pub")
        self._lie("fanout.pub", "pub", self._dice.choice(self._filters))

    def _answer(self, name: str, frames: list[bytes]) -> None:
        if name in CONTROLS or name == "call.in":
            self._control(name, frames)
        elif name == "directory.ctl":
            for _ in range(TALK):
                self._lie(name, "directory", frames[0])
            if self._dice.random() < 0.7:
                self._tell_states(frames[0])
        elif name.endswith(".pub") and frames[0][:1] == b"\1":
            self._subscribed(name, frames[0][1:])

    def _control(self, name: str, frames: list[bytes]) -> None:
        rid = frames[0]
        try:
            envelope = decode(frames[1])
        except Malformed:
            return
        self._listeners = self._listeners[-8:] + re.findall(rb'"listener":"([0-9a-f]{24})"', frames[-1])
        first = self._dice.random() < 0.5  # or the lies before it are taken for the answer
        if envelope.kind == Kind.OPEN and first:
            self._open(name, rid, envelope.id)
        for _ in range(TALK):
            self._lie(name, "ctl", rid, number=envelope.id)
        if envelope.kind == Kind.OPEN and not first:
            self._open(name, rid, envelope.id)

    def _open(self, name: str, rid: bytes, number: bytes) -> None:
        opened = to_json(Opened(NODE, 1))
        tell(self._socks[name], rid, encode(Kind.OPENED, id=number), opened)

    def _tell_states(self, rid: bytes) -> None:
        def say(kind: wire.DirectoryKind, body: wire.Body) -> None:
            tell(self._socks["directory.ctl"], rid, *wire.encode(kind, body))

        say(wire.DirectoryKind.WELCOME, wire.Welcome(NODE, 1, 2.0, str(self._folder)))
        listener = self._listeners[-1].decode()
        states = tuple(
            State(NODE, pipeline, 1, self.total, "", "", (record,))
            for pipeline, record in (
                ("call", Record("x", "t", "s", listener)),
                ("cast", Record("x", "t", "s", listener)),
                ("fanout", Record("x", "t")),
                ("notify", Record("x", "t.info", "", listener)),
            )
        )
        say(wire.DirectoryKind.STATES, wire.States(states, complete=True))

    def _subscribed(self, name: str, data: bytes) -> None:
        if data[:1] != b"?":
            self._filters = [*self._filters[-8:], data]
            return
        for _ in range(3):
            self._lie(name, "ctl", data, number=ID)
        if self._dice.random() < 0.5:
            self._socks[name].send_multipart([data, encode(Kind.OPENED), to_json(Opened(NODE, 1))])
