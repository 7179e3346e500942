"""The directory of a node: a ROUTER at a TCP port, one at ``directory.ctl``, and what it knows from elsewhere.

A state that is announced first hand is passed on as it is, to everybody. What was learnt from other directories or from
Redis is passed on to this node's own processes only (seed 003: "DS state caching on local brokers"), so directories
never echo each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import zmq

from broker.oslo import frames
from broker.oslo.directory import subscribers, wire
from broker.oslo.directory.admission import Admission, Announcers, LocalAdmission
from broker.oslo.directory.redis_share import RedisShare
from broker.oslo.directory.registry import LOCAL_OWNER, StateRegistry
from broker.oslo.directory.replica import HERE, Replica
from broker.oslo.directory.subscribers import DirectorySubscribers
from broker.oslo.directory.uplinks import Uplinks
from broker.oslo.directory.wire import (
    TO_DIRECTORY,
    DirectoryKind,
    DirectoryMessage,
    DirectoryRefused,
    Gone,
    States,
    Welcome,
    Why,
)
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.binding import TcpPort, bind_local, guard, resolved
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.pipe import Receive
from broker.oslo.reactor.router import RouterPipe
from broker.oslo.reactor.tuning import KeepAlive, Tuning, tune_local, tune_tcp
from broker.oslo.records import State, to_json
from broker.transport import curve
from broker.transport.zeromq.address import check_secrecy, remove_socket

log = logging.getLogger("headgate.oslo")

GATHER_S: Final = 1.5
"""After its start a directory does not call its snapshots complete for so long, unless all others have answered."""
TICKS: Final = 4
"""Of a lease, at least."""
QUIET_S: Final = 10.0
"""Between two lines in the log about the same kind of refusal."""
STOP_MS: Final = 200


@dataclass(slots=True)
class _Door:
    """One of the two sockets."""

    kind: str
    endpoint: str
    pipe: RouterPipe
    subscribers: DirectorySubscribers
    rule: Announcers


class DirectoryServer:
    """The room ``directory`` of a proxy.

    Args:
        reactor: whose thread; opened before ``open``.
        config: of the node.

    Attributes:
        endpoint: where its TCP socket listens; "" without.
        replica: what this node's processes are told.
        registry: what was announced first hand.
        counts: what happened how often.
        settings: what STATUS tells of when they were read (``proxy.reload``); {} nothing.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig) -> None:
        self.endpoint = ""
        self.settings: dict[str, Any] = {}
        self.replica = Replica(config.node)
        self.registry = StateRegistry(config.lease_s)
        self.counts = dict.fromkeys(("malformed", "other_version", "refused", "forbidden", "queries"), 0)
        self.incarnation = time.time_ns()
        self._reactor = reactor
        self._config = config
        self._doors: list[_Door] = []
        self._shares: list[Uplinks | RedisShare] = []
        self._admission: Admission | None = None
        self._port: TcpPort | None = None
        self._key = ""
        self._release: Callable[[], None] | None = None
        self._path = ""
        self._gathered = False
        self._overdue: Timer | None = None
        self._next: Timer | None = None
        self._all: list[subscribers.Frames] | None = None
        self._first_hand: list[subscribers.Frames] | None = None
        self._said: dict[str, float] = {}
        self.replica.on_state.append(self._told_locally)

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Bind both sockets, connect to other directories, start to share by Redis.

        Raises:
            ConfigError: a port or file is in use, the port would be open to other machines in plaintext, or Redis is
                asked for and redis-py is not installed.
        """
        config = self._config
        certificate = curve.load(config.curve_cert) if config.curve_cert else None
        try:
            self._open_local()
            if config.host:
                self._open_tcp(certificate)
            self._shares.append(Uplinks(self._reactor, config, self.replica, self.incarnation, certificate))
            self._shares.append(
                RedisShare(
                    self._reactor,
                    config.redis,
                    self.replica,
                    node=config.node,
                    lease_s=config.lease_s,
                    beat_s=config.beat_s,
                )
            )
        except BaseException:
            self._close()
            raise
        welcome = Welcome(config.node, self.incarnation, config.lease_s)
        now = self._reactor.now()
        self.replica.feed(HERE, DirectoryMessage(DirectoryKind.WELCOME, welcome), now)
        self.replica.feed(HERE, DirectoryMessage(DirectoryKind.STATES, States((), complete=True)), now)
        self._overdue = self._reactor.call_later(GATHER_S, self._gather, True)
        self._tick()
        log.info("directory of %s: listening at %s", config.node, [door.endpoint for door in self._doors])

    def renew_from(self, config: NodeConfig, certificate: curve.Certificate | None) -> None:
        """Go by the keys of ``config`` from now on; show ``certificate`` to whoever connects, here and elsewhere.

        Connections stay. One whose key may not ask any more is refused at its next message, and told nothing after it.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        if self._admission is not None:
            self._admission.change(config, "" if certificate is None else certificate.public_key)
        for share in self._shares:
            if isinstance(share, Uplinks):
                share.renew(config, certificate)
        if certificate is not None and self._port is not None and certificate.public_key != self._key:
            (pipe,) = (door.pipe for door in self._doors if door.kind == "tcp")
            try:
                self._port.renew(certificate)
            finally:
                self._reactor.touch(pipe)
            self._key = certificate.public_key

    def stop(self, reason: str) -> None:
        """Close everything; what was announced stays known elsewhere until its lease ends. Harmless twice."""
        if self._doors:
            log.info("directory of %s: stopped: %s", self._config.node, reason)
        self._close()

    def _close(self) -> None:
        for timer in (self._overdue, self._next):
            if timer is not None:
                timer.cancel()
        for share in self._shares:
            share.close()
        for door in self._doors:
            door.pipe.close(STOP_MS)
        if self._release is not None:
            self._release()
        if self._path:
            remove_socket(self._path)
        self._doors, self._path = [], ""

    def _open_tcp(self, certificate: curve.Certificate | None) -> None:
        config = self._config
        where = resolved(config.host, config.directory_port)
        check_secrecy([where], certificate, config.insecure)
        sock = self._new_socket()
        served = None if certificate is None else curve.CurveServer(certificate)
        admission = self._admission = Admission(config, "" if certificate is None else certificate.public_key)
        try:
            tune_tcp(
                sock,
                Tuning(KeepAlive(*config.keepalive), wire.JSON_BYTES_MAX, served),
                send_msgs=subscribers.SENT_MSGS,
            )
            self._release = guard(self._reactor, sock, admission)
            self._port = TcpPort(sock, where)
            self.endpoint = self._port.endpoint.text
        except BaseException:
            sock.close(0)
            raise
        self._key = "" if certificate is None else certificate.public_key
        self._add_door("tcp", self.endpoint, sock, "User-Id", admission)

    def _open_local(self) -> None:
        sock = self._new_socket()
        try:
            tune_local(sock, wire.JSON_BYTES_MAX, send_msgs=subscribers.SENT_MSGS)
            self._path = bind_local(sock, self._config.path(DIRECTORY_SOCKET), self._config.ipc_group)
        except BaseException:
            sock.close(0)
            raise
        self._add_door("ipc", f"ipc://{self._path}", sock, "Peer-Address", LocalAdmission(self._config.node))

    def _new_socket(self) -> zmq.Socket[bytes]:
        if self._reactor.context is None:
            raise RuntimeError("a directory is opened before its reactor was")
        return self._reactor.context.socket(zmq.ROUTER)

    def _add_door(
        self, kind: str, endpoint: str, sock: zmq.Socket[bytes], origin: str, rule: Announcers
    ) -> None:
        config = self._config
        pipe = RouterPipe(
            self._reactor,
            sock,
            self._receiver(len(self._doors)),
            origin=origin,
            outbox_msgs=subscribers.OUTBOX_MSGS,
            outbox_bytes=subscribers.OUTBOX_BYTES,
            total_bytes=subscribers.OUTBOXES_BYTES,
        )
        welcome = Welcome(
            config.node, self.incarnation, config.lease_s, config.ipc_dir, config.message_bytes_max
        )
        listeners = DirectorySubscribers(
            self._reactor,
            pipe,
            wire.encode(DirectoryKind.WELCOME, welcome),
            self._all_states if kind == "ipc" else self._first_hand_states,
            (lambda: self._gathered) if kind == "ipc" else (lambda: True),
            config.lease_s,
        )
        self._doors.append(_Door(kind, endpoint, pipe, listeners, rule))

    # ------------------------------------------------------------ what comes in

    def _receiver(self, index: int) -> Receive:
        return lambda parts, origin: self._receive(self._doors[index], parts, origin)

    def _receive(self, door: _Door, parts: list[bytes], origin: str) -> None:
        rid = parts[0]
        if not door.rule.enters(origin):
            door.subscribers.forget(rid)
            self._refuse(door, rid, "this key may not be here any more", "forbidden")
            return
        if len(parts) == 3 and parts[1][:3] == frames.MAGIC:
            self._answer_status(door, rid, parts[1])
            return
        try:
            message = wire.decode(parts[1:], TO_DIRECTORY)
        except frames.Malformed as error:
            about = "other_version" if error.unknown_version else "malformed"
            self.counts[about] += 1
            self._say(about, "directory: dropped a message of a peer at %s: %s", door.endpoint, error)
            if error.unknown_version:  # it cannot read this, and says in its log that we speak another one
                door.subscribers.send(rid, wire.GREET)
            return
        if message.kind is DirectoryKind.HELLO:
            door.subscribers.hello(rid, message.body)
        elif door.subscribers.heard(rid) and not (message.kind is DirectoryKind.BEAT and not message.body):
            self._announced(door, rid, origin, message)

    def _announced(self, door: _Door, rid: bytes, origin: str, message: DirectoryMessage) -> None:
        objection = door.rule.objection(origin, message)
        if objection:
            self.counts["forbidden"] += 1
            self._refuse(door, rid, objection, "forbidden")
            return
        owner, now = door.rule.owner(origin), self._reactor.now()
        if message.kind is DirectoryKind.ANNOUNCE:
            answer = self.registry.announce(owner, message.body, now)
        elif message.kind is DirectoryKind.BEAT:
            answer = self.registry.beat(owner, message.body, now)
        else:
            answer = self.registry.leave(owner, message.body, now)
        for news in answer.news:
            self._publish(news)
        if answer.unknown:
            door.subscribers.send(rid, wire.GREET)
        if answer.refused:
            self._refuse(door, rid, answer.refused)

    def _refuse(self, door: _Door, rid: bytes, reason: str, about: str = "refused") -> None:
        self.counts["refused"] += 1
        self._say(about, "directory: refused a peer at %s: %s", door.endpoint, reason)
        door.subscribers.send(rid, wire.encode(DirectoryKind.REFUSED, DirectoryRefused(reason)))

    def _answer_status(self, door: _Door, rid: bytes, head: bytes) -> None:
        try:
            envelope = frames.decode(head)
        except frames.Malformed:
            self.counts["malformed"] += 1
            return
        if envelope.kind != frames.Kind.STATUS:
            self.counts["malformed"] += 1
            return
        self.counts["queries"] += 1
        answer = (frames.encode(frames.Kind.STATUS, id=envelope.id), to_json(self.status()))
        door.subscribers.send(rid, answer)

    # ------------------------------------------------------------ what goes out

    def _publish(self, news: DirectoryMessage) -> None:
        """Pass on what happened to states announced first hand: to TCP, to other directories, to our own replica."""
        self._first_hand = None
        encoded = wire.encode(news.kind, news.body)
        for door in self._doors:
            if door.kind != "ipc":
                door.subscribers.publish(encoded)
        for share in self._shares:
            if news.kind is DirectoryKind.GONE:
                for gone in news.body:
                    share.withdraw(gone.place)
            else:
                for state in news.body.states:
                    if self.registry.owner(state.place) == LOCAL_OWNER:
                        share.announce(state)
        self.replica.feed(HERE, news, self._reactor.now())

    def _told_locally(self, before: State | None, after: State | None) -> None:
        """What is in force has changed: tell this node's processes."""
        self._all = None
        if after is not None:
            encoded = wire.encode(DirectoryKind.STATES, States((after,)))
        elif before is not None:
            gone = Gone(before.node, before.pipeline, before.incarnation, Why.MOVED)
            encoded = wire.encode(DirectoryKind.GONE, (gone,))
        for door in self._doors:
            if door.kind == "ipc":
                door.subscribers.publish(encoded)

    def _all_states(self) -> list[subscribers.Frames]:
        if self._all is None:
            self._all = wire.chunks(self.replica.states())
        return self._all

    def _first_hand_states(self) -> list[subscribers.Frames]:
        if self._first_hand is None:
            self._first_hand = wire.chunks(self.registry.states())
        return self._first_hand

    # ------------------------------------------------------------ time

    def _tick(self) -> None:
        now = self._reactor.now()
        tick_s = min(self._config.beat_s, self._config.lease_s / TICKS)
        self._next = self._reactor.call_later(tick_s, self._tick)
        for news in self.registry.tick(now):
            self._publish(news)
        self.replica.tick(now)
        self._gather(False)
        for share in self._shares:
            if isinstance(share, Uplinks):
                share.tick()
        for door in self._doors:
            door.subscribers.tick()

    def _gather(self, overdue: bool) -> None:
        """Call snapshots complete once the other directories have answered, or had their time."""
        if self._gathered:
            return
        if overdue or all(share.heard_all for share in self._shares):
            self._gathered = True
            for door in self._doors:
                if door.kind == "ipc":
                    door.subscribers.completed()

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, Any]:
        """Sockets, counters, leases, sources; no secrets."""
        doors = [
            {
                "type": "ROUTER",
                "endpoint": door.endpoint,
                "in": door.pipe.received,
                "in_bytes": door.pipe.received_bytes,
                "out": door.pipe.sent,
                "out_bytes": door.pipe.sent_bytes,
                "waiting": door.pipe.waiting,
                "refused": door.pipe.refused,
                "peers": len(door.subscribers),
                **door.subscribers.counts,
            }
            for door in self._doors
        ]
        return {
            "node": self._config.node,
            "incarnation": self.incarnation,
            "sockets": doors,
            "states": len(self.registry),
            "records": self.registry.records,
            "settings": self.settings,
            "denied": 0 if self._admission is None else self._admission.denied,
            **self.counts,
            "registry": dict(self.registry.counts),
            "replica": self.replica.status(),
            **{share.kind: share.status() for share in self._shares},
        }

    def _say(self, about: str, text: str, *values: object) -> None:
        now = self._reactor.now()
        if now - self._said.get(about, -QUIET_S) >= QUIET_S:
            self._said[about] = now
            log.warning(text, *values)
