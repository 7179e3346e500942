"""What the tests of the directory share: states, and a reactor that is turned until something is true."""

import errno
import time
from collections.abc import Callable
from typing import NamedTuple

import zmq

from broker.errors import ConfigError
from broker.oslo.directory import wire
from broker.oslo.directory.peer import Announcer, Reader
from broker.oslo.directory.server import DirectoryServer
from broker.oslo.directory.state import Replica
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage, Gone, States, Welcome
from broker.oslo.node import NodeConfig
from broker.oslo.reactor import Reactor
from broker.oslo.records import Record, State
from tests.live.oslo_wire import hear

DEADLINE_S = 40.0


def turn_until(reactor: Reactor, true: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends, "not in time"
        reactor.call_later(0.02, lambda: None)
        reactor.turn()


def turn_for(reactor: Reactor, seconds: float) -> None:
    over = []
    reactor.call_later(seconds, over.append, True)
    turn_until(reactor, lambda: over)


def rpc(listener: str, topic: str = "compute", server: str = "", exchange: str = "nova") -> Record:
    return Record(exchange, topic, server or f"host-{listener}", listener)


def state(node="n1", pipeline="call", incarnation=1, version=1, records=(), endpoint="", key="") -> State:
    return State(node, pipeline, incarnation, version, endpoint, key, tuple(records))


def welcome(incarnation: int = 1, lease_s: float = 5.0) -> DirectoryMessage:
    return DirectoryMessage(DirectoryKind.WELCOME, Welcome("d", incarnation, lease_s))


def states(*each: State, complete: bool = False) -> DirectoryMessage:
    return DirectoryMessage(DirectoryKind.STATES, States(each, complete))


def gone(node="n1", pipeline="call", incarnation=1, why="left") -> DirectoryMessage:
    return DirectoryMessage(DirectoryKind.GONE, (Gone(node, pipeline, incarnation, why),))


class Told(NamedTuple):
    """What an announcement led to, for others and for whoever made it."""

    news: tuple[DirectoryMessage, ...] = ()
    unknown: bool = False
    refused: str = ""
    away: bool = False


class Registry:
    """A replica as those see it who announce to it, and those who are told what was announced first hand."""

    def __init__(self, lease_s: float = 5.0, **limits) -> None:
        self.replica = Replica("", lease_s, **limits)
        self.replica.on_announced.append(self._hear)
        self.counts = self.replica.leases
        self._news = []

    def _hear(self, _owner, before, after) -> None:
        self._news.append(
            states(after)
            if after is not None
            else gone(*before.place, before.incarnation, Gone("n", "call", 1).why)
        )

    def _told(self, answer=None) -> Told:
        news, self._news = tuple(self._news), []
        return Told(news) if answer is None else Told(news, answer.unknown, answer.refused, answer.away)

    def announce(self, owner, state, now) -> Told:
        return self._told(self.replica.announce(owner, state, now))

    def beat(self, owner, beats, now) -> Told:
        return self._told(self.replica.beat(owner, beats, now))

    def leave(self, owner, beat, now, **more) -> Told:
        return self._told(self.replica.leave(owner, beat, now, **more))

    def tick(self, now) -> tuple[DirectoryMessage, ...]:
        self.replica.tick(now)
        return self._told().news

    def __len__(self) -> int:
        return len(self.replica.here.claims)

    @property
    def records(self) -> int:
        return self.replica.here.records

    def states(self) -> tuple[State, ...]:
        return self.replica.announced()

    def state(self, place) -> State | None:
        claim = self.replica.here.claims.get(place)
        return None if claim is None else claim.state

    def owner(self, place) -> str:
        return self.replica.here.claims[place].owner


def config(tmp_path, name: str = "n1", **more) -> NodeConfig:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    settings = {"host": "", "lease_s": 2.0, "beat_s": 0.2, **more}
    return NodeConfig(ipc_dir=str(folder), node=name, **settings)


def frames(kind: DirectoryKind, body) -> list[bytes]:
    return list(wire.encode(kind, body))


def open_room(reactor, settings, closing) -> DirectoryServer:
    room = DirectoryServer(reactor, settings)
    room.open()
    closing.append(lambda: room.stop("the test is over"))
    return room


def open_again(reactor, settings, closing) -> DirectoryServer:
    """As ``open_room`` at a port that was just in use: closing a socket takes libzmq a moment."""
    rooms = []

    def opened():
        try:
            rooms.append(open_room(reactor, settings, closing))
        except ConfigError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        return rooms

    turn_until(reactor, opened)
    return rooms[0]


def reader_of(reactor, settings, closing, **more) -> tuple[Replica, Reader]:
    replica = Replica()
    reader = Reader(reactor, replica, ipc_dir=settings.ipc_dir, look_s=0.1, **more)
    closing.append(reader)
    return replica, reader


def announcer_of(reactor, settings, closing, pipeline="call", **more) -> Announcer:
    announcer = Announcer(reactor, settings, pipeline, "tcp://127.0.0.1:9501", "", **more)
    closing.append(announcer)
    return announcer


def set_records(announcer: Announcer, records) -> None:
    """It offers these and no others."""
    wanted = dict.fromkeys(records)
    announcer.remove([each for each in announcer._wanted if each not in wanted])
    announcer.add(wanted)


def listeners(replica, topic="compute") -> list[str]:
    return [each.listener for each in replica.servers("nova", topic)]


class Raw:
    """A DEALER that says what it is told to, in the test's own words."""

    def __init__(self, reactor, endpoint, closing, receive_msgs=1000) -> None:
        self.reactor = reactor
        self.context = zmq.Context()
        self.sock = self.context.socket(zmq.DEALER)
        self.sock.set(zmq.LINGER, 0)
        self.sock.set(zmq.RCVHWM, receive_msgs)
        self.sock.connect(endpoint)
        self.got = []
        closing.append(self)

    def say(self, *parts: bytes) -> None:
        self.sock.send_multipart(parts)

    def tell(self, kind, body) -> None:
        self.say(*wire.encode(kind, body))

    def read(self) -> list:
        while self.sock.poll(0):
            parts = hear(self.sock)
            self.got.append(wire.decode(parts) if parts[0][:3] == wire.MAGIC else parts)
        return self.got

    def until(self, kind):
        def came():
            return [
                message for message in self.read() if not isinstance(message, list) and message.kind is kind
            ]

        turn_until(self.reactor, came)
        return came()[-1].body

    def close(self) -> None:
        self.sock.close(0)
        self.context.term()
