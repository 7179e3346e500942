"""The directory of a node: a ROUTER at a TCP port, one at ``directory.ctl``, and what it knows from elsewhere.

A state that is announced first hand is passed on as it is, to everybody: to our own processes at once, to other nodes
as ``ChangesForOthers`` says. What was learnt from other directories or from Redis is passed on to this node's own
processes only (zmq-patterns-usage: "DS state caching on local brokers"), so directories never echo each other.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import zmq

from broker.oslo import frames
from broker.oslo.directory import wire
from broker.oslo.directory.admission import Admission, Announcers, LocalAdmission
from broker.oslo.directory.link import DirectoryLink
from broker.oslo.directory.redis_share import RedisHost, RedisShare
from broker.oslo.directory.registry import LOCAL_OWNER, StateRegistry
from broker.oslo.directory.replica import HERE, Replica
from broker.oslo.directory.subscribers import SENT_MSGS, DirectorySubscribers
from broker.oslo.directory.wire import (
    TO_DIRECTORY,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    GoneReason,
    States,
    Welcome,
)
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.binding import TcpPort, bind_local, guard, remove_socket, resolved
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.tuning import KeepAlive, Tuning, curve_to_directory, tune_local, tune_tcp
from broker.oslo.records import Place, State, to_json
from broker.rates import Throttle
from broker.transport import curve
from broker.transport.curve import Certificate

log = logging.getLogger("headgate.oslo")

GATHER_S: Final = 1.5
"""After its start a directory does not call its snapshots complete for so long, unless all others have answered."""
TICKS: Final = 4
"""Of a lease, at least."""
QUIET_S: Final = 10.0
"""Between two lines in the log about the same kind of refusal."""
STOP_MS: Final = 200


FREE_RECORDS: Final = 8
"""Behind a message with no more than these nothing is gathered."""
RECORD_S: Final = 0.02
"""Gathering behind a message, for each record beyond."""
LAST_S: Final = 1.0
"""The longest that a change of a node is kept back here: behind a message with 58 records."""


class ChangesForOthers:
    """Changes of a node that has many listeners, gathered for other nodes.

    Each state is told as a whole, and everybody in the cloud reads it. A thousand listeners that open on twenty nodes,
    one after another on each, would be 3,000 states of ever more records at each of the twenty. So a change leaves at
    once after a quiet time, and from a node with few listeners always. What comes behind a large state is gathered, the
    longer the larger that was, and states of several pipelines travel together. How much there is elsewhere does not
    count: when all nodes begin at the same time, none knows it yet. Processes of this node do not wait: they are told
    each change.

    Args:
        reactor: whose thread and clock.
        tell: takes the newest state of each place that changed.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[tuple[State, ...]], None]) -> None:
        self._reactor = reactor
        self._tell = tell
        self._due: dict[Place, State] = {}
        self._not_before = 0.0
        self._timer: Timer | None = None

    def put(self, state: State) -> None:
        """It is in force now, instead of the one before."""
        self._due[state.place] = state
        wait_s = self._not_before - self._reactor.now()
        if wait_s <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = self._reactor.call_later(wait_s, self.flush)

    def drop(self, place: Place) -> None:
        """Nothing is in force there any more."""
        self._due.pop(place, None)

    def flush(self) -> None:
        """Tell what is due now. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            states = tuple(self._due.values())
            self._due.clear()
            many = sum(len(state.records) for state in states) - FREE_RECORDS
            self._not_before = self._reactor.now() + min(max(many, 0) * RECORD_S, LAST_S)
            self._tell(states)


LEAVE_MS: Final = 200
"""LEAVE has so long to reach the other directories."""


TRY_S: float = 3.0
"""So long a directory has to answer before other keys are tried: read where it is used, tests change it."""


class Uplinks:
    """Links to all of ``config.directories``: written to all, read from all.

    Only states that this node's own pipelines announced are told, and the replica believes nobody else about this node,
    so nothing goes round in a circle.

    When keys change (``renew``), a link that is alive goes on as it is: its connection does not end by that. One that
    is not tries the new keys and the former ones in turn, since the directories get theirs at different times.

    Args:
        reactor: whose thread; open.
        config: of this node.
        replica: what they feed.
        incarnation: of this directory: a link that leads back to it is closed.
        certificate: of this node; None plaintext.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        replica: Replica,
        incarnation: int,
        certificate: Certificate | None = None,
    ) -> None:
        self._reactor = reactor
        self._replica = replica
        self._config = config
        self._node = config.node
        self._incarnation = incarnation
        self._curves = [curve_to_directory(certificate, config.directory_key)]
        self._tried_s = reactor.now()
        self.links = [self._link(endpoint) for endpoint in dict.fromkeys(config.directories)]

    def _link(self, endpoint: str) -> DirectoryLink:
        return DirectoryLink(
            self._reactor,
            endpoint,
            self._replica,
            tuning=Tuning(KeepAlive(*self._config.keepalive), curve=self._curves[0]),
            known=self._other,
            pulse_s=self._config.beat_s,
        )

    def renew(self, config: NodeConfig, certificate: Certificate | None) -> None:
        """Connect with the keys of ``config`` and ``certificate`` from now on, where a connection has to be made."""
        curve = curve_to_directory(certificate, config.directory_key)
        if curve != self._curves[0]:
            self._curves = [curve, self._curves[0]]

    def tick(self) -> None:
        """Try other keys where a directory does not answer; about once a second."""
        if len(self._curves) == 1 or self._reactor.now() - self._tried_s < TRY_S:
            return
        away = [index for index, link in enumerate(self.links) if not (link.alive or link.closed)]
        if not away:
            return
        self._tried_s = self._reactor.now()
        for index in away:
            former = self.links[index]
            former.close()
            link = self.links[index] = self._link(former.endpoint)
            for state in former.announced():
                link.announce(state)
        self._curves.reverse()

    @property
    def heard_all(self) -> bool:
        """True when each directory has told all it knows, or is ourselves."""
        return all(link.closed or self._replica.told_all(link.endpoint) for link in self.links)

    def status(self) -> list[dict[str, Any]]:
        """For status."""
        return [link.status() for link in self.links]

    def close(self) -> None:
        """End all links; states stay announced until their leases end."""
        for link in self.links:
            link.close(LEAVE_MS)

    def _other(self, welcome: Welcome) -> bool:
        if welcome.node != self._node:
            return True
        if welcome.incarnation != self._incarnation:
            self._reactor.say(
                logging.WARNING,
                "directory: another node is called %s, too; what it offers is not seen here",
                (self._node,),
            )
            return True
        self._reactor.say(logging.INFO, "directory: one of its directories is this node itself", ())
        return False


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
        self._local: list[DirectorySubscribers] = []
        self._remote: list[DirectorySubscribers] = []
        self._uplinks: Uplinks | None = None
        self._redis: RedisShare | None = None
        self._burst = ChangesForOthers(reactor, self._tell_others)
        self._admission: Admission | None = None
        self._port: TcpPort | None = None
        self._key = ""
        self._release: Callable[[], None] | None = None
        self._path = ""
        self._overdue: Timer | None = None
        self._next: Timer | None = None
        self._lines = Throttle(QUIET_S)
        self.replica.on_state.append(self._told_locally)

    @property
    def _shares(self) -> list[Uplinks | RedisShare]:
        return [each for each in (self._uplinks, self._redis) if each is not None]

    @property
    def _peers(self) -> list[DirectoryLink | RedisHost]:
        """Who is told what our own pipelines announce: other directories, and hosts of Redis, by the same words."""
        links = [] if self._uplinks is None else self._uplinks.links
        return [*links, *([] if self._redis is None else self._redis.hosts)]

    @property
    def _sockets(self) -> list[DirectorySubscribers]:
        return self._local + self._remote

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
            self._uplinks = Uplinks(self._reactor, config, self.replica, self.incarnation, certificate)
            self._redis = RedisShare(self._reactor, config, self.replica)
        except BaseException:
            self._close()
            raise
        welcome = Welcome(config.node, self.incarnation, config.lease_s)
        now = self._reactor.now()
        self.replica.feed(HERE, DirectoryMessage(DirectoryKind.WELCOME, welcome), now)
        self.replica.feed(HERE, DirectoryMessage(DirectoryKind.STATES, States((), complete=True)), now)
        self._overdue = self._reactor.call_later(GATHER_S, self._gather, True)
        self._tick()
        log.info("directory of %s: listening at %s", config.node, [each.endpoint for each in self._sockets])

    def renew_from(self, config: NodeConfig, certificate: curve.Certificate | None) -> None:
        """Go by the keys of ``config`` from now on; show ``certificate`` to whoever connects, here and elsewhere.

        Connections stay. One whose key may not ask any more is refused at its next message, and told nothing after it.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        if self._admission is not None:
            self._admission.change(config, "" if certificate is None else certificate.public_key)
        if self._uplinks is not None:
            self._uplinks.renew(config, certificate)
        if certificate is not None and self._port is not None and certificate.public_key != self._key:
            try:
                self._port.renew(certificate)
            finally:
                for each in self._remote:
                    self._reactor.check_after_turn(each.socket)
            self._key = certificate.public_key

    def stop(self, reason: str, *, returns: bool = False) -> None:
        """Close everything; what was announced stays known elsewhere until its lease ends. Harmless twice."""
        if self._sockets:
            log.info("directory of %s: stopped: %s", self._config.node, reason)
        self._close()

    def _close(self) -> None:
        self._burst.flush()
        for timer in (self._overdue, self._next):
            if timer is not None:
                timer.cancel()
        for share in self._shares:
            share.close()
        for each in self._sockets:
            each.close(STOP_MS)
        if self._release is not None:
            self._release()
        if self._path:
            remove_socket(self._path)
        self._local, self._remote, self._path = [], [], ""

    def _open_tcp(self, certificate: curve.Certificate | None) -> None:
        config = self._config
        protected = certificate is not None
        where = resolved(config.host, config.directory_port, protected=protected, insecure=config.insecure)
        sock = self._new_socket()
        served = None if certificate is None else curve.CurveServer(certificate)
        admission = self._admission = Admission(config, "" if certificate is None else certificate.public_key)
        try:
            tuning = Tuning(KeepAlive(*config.keepalive), wire.JSON_BYTES_MAX, served)
            tune_tcp(sock, tuning, send_msgs=SENT_MSGS)
            self._release = guard(self._reactor, sock, admission)
            self._port = TcpPort(sock, where)
            self.endpoint = self._port.endpoint.text
        except BaseException:
            sock.close(0)
            raise
        self._key = "" if certificate is None else certificate.public_key
        self._remote.append(
            self._subscribers(sock, self.endpoint, "User-Id", admission, self.registry.states)
        )

    def _open_local(self) -> None:
        sock = self._new_socket()
        try:
            tune_local(sock, wire.JSON_BYTES_MAX, send_msgs=SENT_MSGS)
            self._path = bind_local(sock, self._config.path(DIRECTORY_SOCKET), self._config.ipc_group)
        except BaseException:
            sock.close(0)
            raise
        rule = LocalAdmission(self._config.node)
        subscribers = self._subscribers(
            sock, f"ipc://{self._path}", "Peer-Address", rule, self.replica.states
        )
        subscribers.complete = False  # until the other directories have answered
        self._local.append(subscribers)

    def _new_socket(self) -> zmq.Socket[bytes]:
        if self._reactor.context is None:
            raise RuntimeError("a directory is opened before its reactor was")
        return self._reactor.context.socket(zmq.ROUTER)

    def _subscribers(
        self,
        sock: zmq.Socket[bytes],
        endpoint: str,
        origin: str,
        rule: Announcers,
        states: Callable[[], Iterable[State]],
    ) -> DirectorySubscribers:
        config = self._config
        welcome = Welcome(config.node, self.incarnation, config.lease_s, config.message_bytes_max)
        return DirectorySubscribers(
            self._reactor, sock, endpoint, origin, rule, welcome, states, self._receive
        )

    # ------------------------------------------------------------ what comes in

    def _receive(self, subscribers: DirectorySubscribers, parts: list[bytes], origin: str) -> None:
        rid = parts[0]
        if not subscribers.rule.enters(origin):
            subscribers.forget(rid)
            self._refuse(subscribers, rid, "this key may not be here any more", "forbidden")
            return
        if len(parts) == 3 and parts[1][:3] == frames.MAGIC:
            self._answer_status(subscribers, rid, parts[1])
            return
        try:
            message = wire.decode(parts[1:], TO_DIRECTORY)
        except frames.Malformed as error:
            about = "other_version" if error.unknown_version else "malformed"
            self.counts[about] += 1
            self._say(about, "directory: dropped a message of a peer at %s: %s", subscribers.endpoint, error)
            if error.unknown_version:  # it cannot read this, and says in its log that we speak another one
                subscribers.send(rid, wire.GREET)
            return
        if message.kind is DirectoryKind.HELLO:
            subscribers.hello(rid, message.body)
        elif subscribers.heard(rid) and not (message.kind is DirectoryKind.BEAT and not message.body):
            self._announced(subscribers, rid, origin, message)

    def _announced(
        self, subscribers: DirectorySubscribers, rid: bytes, origin: str, message: DirectoryMessage
    ) -> None:
        objection = subscribers.rule.objection(origin, message)
        if objection:
            self.counts["forbidden"] += 1
            self._refuse(subscribers, rid, objection, "forbidden")
            return
        owner, now = subscribers.rule.owner(origin), self._reactor.now()
        if message.kind is DirectoryKind.ANNOUNCE:
            answer = self.registry.announce(owner, message.body, now)
        elif message.kind is DirectoryKind.BEAT:
            answer = self.registry.beat(owner, message.body, now)
        elif message.kind is DirectoryKind.AWAY:
            answer = self.registry.away(owner, message.body, now)
        else:
            answer = self.registry.leave(owner, message.body, now)
        if answer.away is not None and owner == LOCAL_OWNER:
            self._burst.flush()
            for peer in self._peers:
                peer.away(answer.away)
        for news in answer.news:
            self._publish(news)
        if answer.unknown:
            subscribers.send(rid, wire.GREET)
        if answer.refused:
            self._refuse(subscribers, rid, answer.refused)

    def _refuse(
        self, subscribers: DirectorySubscribers, rid: bytes, reason: str, about: str = "refused"
    ) -> None:
        self.counts["refused"] += 1
        self._say(about, "directory: refused a peer at %s: %s", subscribers.endpoint, reason)
        subscribers.refuse(rid, reason)

    def _answer_status(self, subscribers: DirectorySubscribers, rid: bytes, head: bytes) -> None:
        envelope = None
        with contextlib.suppress(frames.Malformed):
            envelope = frames.decode(head)
        if envelope is None or envelope.kind != frames.Kind.STATUS:
            self.counts["malformed"] += 1
            return
        self.counts["queries"] += 1
        answer = (frames.encode(frames.Kind.STATUS, id=envelope.id), to_json(self.status()))
        subscribers.send(rid, answer)

    # ------------------------------------------------------------ what goes out

    def _publish(self, news: DirectoryMessage) -> None:
        """Pass on what happened to states announced first hand: to our own replica, and to others."""
        if news.kind is DirectoryKind.GONE:
            for gone in news.body:
                self._burst.drop(gone.place)
                for peer in self._peers:
                    peer.withdraw(gone.place)
            self._tell_remote(news)
        elif all(self.registry.owner(state.place) == LOCAL_OWNER for state in news.body.states):
            for state in news.body.states:
                self._burst.put(state)
        else:
            self._tell_remote(news)
        self.replica.feed(HERE, news, self._reactor.now())

    def _tell_others(self, states: tuple[State, ...]) -> None:
        """Our own pipelines have changed: tell it at our TCP port, to other directories, and to Redis."""
        self._tell_remote(DirectoryMessage(DirectoryKind.STATES, States(states)))
        for peer in self._peers:
            for state in states:
                peer.announce(state)

    def _tell_remote(self, news: DirectoryMessage) -> None:
        for each in self._remote:
            each.publish(news.kind, news.body)

    def _told_locally(self, before: State | None, after: State | None) -> None:
        """What is in force has changed: tell this node's processes."""
        for subscribers in self._local:
            if after is not None:
                subscribers.publish(DirectoryKind.STATES, States((after,)))
            elif before is not None:
                gone = Gone(before.node, before.pipeline, before.incarnation, GoneReason.MOVED)
                subscribers.publish(DirectoryKind.GONE, (gone,))

    # ------------------------------------------------------------ time

    def _tick(self) -> None:
        now = self._reactor.now()
        tick_s = min(self._config.beat_s, self._config.lease_s / TICKS)
        self._next = self._reactor.call_later(tick_s, self._tick)
        for news in self.registry.tick(now):
            self._publish(news)
        self.replica.tick(now)
        self._gather(False)
        if self._uplinks is not None:
            self._uplinks.tick()
        for each in self._sockets:
            each.tick(tick_s)

    def _gather(self, overdue: bool) -> None:
        """Call snapshots complete once the other directories have answered, or had their time."""
        if overdue or all(share.heard_all for share in self._shares):
            for each in self._local:
                each.completed()

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, Any]:
        """Sockets, counters, leases, sources; no secrets."""
        return {
            "node": self._config.node,
            "incarnation": self.incarnation,
            "sockets": [each.status() for each in self._sockets],
            "states": len(self.registry),
            "records": self.registry.records,
            "settings": self.settings,
            "denied": 0 if self._admission is None else self._admission.denied,
            **self.counts,
            "registry": dict(self.registry.counts),
            "replica": self.replica.status(),
            "uplinks": [] if self._uplinks is None else self._uplinks.status(),
            "redis": [] if self._redis is None else self._redis.status(),
        }

    def _say(self, about: str, text: str, *values: object) -> None:
        if self._lines.admits(about, self._reactor.now()):
            log.warning(text, *values)
