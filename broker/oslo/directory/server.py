"""The directory of a node: a ROUTER at a TCP port, one at ``directory.ctl``, and what it knows from elsewhere.

A state that is announced first hand is passed on as it is, to everybody: to our own processes at once, to other nodes
as ``_tell_others`` says. What was learnt from other directories or from Redis is passed on to this node's own
processes only (zmq-patterns-usage: "DS state caching on local brokers"), so directories never echo each other.

**Who may ask and announce** (zmq-patterns-usage, "Security impact"). Over TCP, asking is for every key that may use the
node at all: those that are listed, and others only where ``unlisted`` lets them in. Announcing is for keys that are
listed as owners, those of other nodes, for our own, since proxies may share a certificate, and for that of the
directories we believe. Without CURVE nobody can be told from anybody, and all TCP peers are one owner, who cannot speak
for the directory's own node; a directory then listens on loopback, or the operator has said ``insecure``. Over the
socket in the node's folder, asking is for everybody who may open it. Announcing is for the node's own pipelines, which
run as our user or as root, and for this node alone: what comes that way is told to other directories as our own word.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import zmq

from broker.identity import Credentials, Role
from broker.oslo import frames
from broker.oslo.directory import wire
from broker.oslo.directory.peer import LEAVE_MS, Pace, Peer
from broker.oslo.directory.redis import RedisHost, open_hosts
from broker.oslo.directory.state import LOCAL_OWNER, Answer, Replica
from broker.oslo.directory.wire import (
    TO_DIRECTORY,
    Body,
    DirectoryKind,
    DirectoryMessage,
    DirectoryRefused,
    Gone,
    Hello,
    States,
    Welcome,
)
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig, credentials
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import status_of
from broker.oslo.reactor.binding import Door, NodeSockets
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Outcome
from broker.oslo.reactor.tuning import KeepAlive, Tuning, curve_to_directory
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
"""Behind a message to other nodes with no more than these nothing is gathered."""
RECORD_S: Final = 0.02
"""Gathering behind such a message, for each record beyond."""
LAST_S: Final = 1.0
"""The longest that a change of a node is kept back here: behind a message with 58 records."""
PEERS_MAX: Final = 16_384
"""Processes on one node, or nodes and applications at one port; more are refused."""
SENT_MSGS: Final = 16
"""SNDHWM: for a subscriber that does not read libzmq holds so many messages, each of which may be a large state."""
OUTBOX_MSGS: Final = 2_048
OUTBOX_BYTES: Final = 256 << 20
"""Of one subscriber: a snapshot of ``RECORDS_TOTAL_MAX`` records fits. All subscribers share the same bytes."""
OUTBOXES_BYTES: Final = 1 << 30
"""Of all subscribers, each message counted as often as it waits."""
SILENT_LEASES: Final = 3
"""A subscriber that was silent for so many leases is forgotten; if it comes back it is asked for HELLO."""
PLAIN_OWNER: Final = "tcp"
"""All TCP peers of a directory without CURVE."""

_NOBODY: Final = Credentials(rolemask=int(Role.NONE))
Frames = tuple[bytes, bytes]


class PortAccess(AccessControl):
    """Who comes in at a directory's port, and who announces there: an origin is a ``User-Id``.

    Attributes:
        own_key: ours, which announces whatever it is listed as; "" without CURVE.
    """

    own_key: str = ""

    def let_in(self, key: str) -> None:
        """A node's key: it announces, unless it is listed as something else."""
        if key:
            self._keys.setdefault(key, Credentials(rolemask=int(Role.OWNER)))

    def enters(self, origin: str) -> bool:
        """Whether that connection may (still) ask."""
        return self.by_key(origin) is not None

    def judge_announcement(self, origin: str, nodes: set[str], home: str) -> tuple[str, str]:
        """(owner, why not) of an announcement about ``nodes``; the owner is "" where there is a reason."""
        key = origin.partition(" ")[2]
        if not self._curve:
            if home in nodes:
                return "", (
                    f"{home!r} is this directory's own node, which nobody announces over TCP without CURVE"
                )
            return PLAIN_OWNER, ""
        if key == self.own_key or self._keys.get(key, _NOBODY).rolemask & Role.OWNER:
            return key, ""
        return "", "this key may not announce: keys of nodes are listed as owners"


class FolderAccess(AccessControl):
    """The same of the socket in the node's folder; an origin is a ``Peer-Address``, by the word of the kernel."""

    def enters(self, origin: str) -> bool:
        """See ``PortAccess``."""
        return True

    def judge_announcement(self, origin: str, nodes: set[str], home: str) -> tuple[str, str]:
        """See ``PortAccess``."""
        who = self.by_ipc(origin)
        if who is None or not who.rolemask & Role.OWNER:
            uid, _gid, pid = credentials(origin)
            return "", f"uid {uid} (pid {pid}) may not announce, only this directory's own user and root"
        if strange := nodes - {home}:
            return (
                "",
                f"saw {min(strange)[:64]!r}, expected {home!r}: other nodes are announced over TCP",
            )
        return LOCAL_OWNER, ""


@dataclass(slots=True)
class _Subscriber:
    want: bool
    silent_s: float = 0.0
    due: bool = True
    behind: bool = False


class Subscribers:
    """Those who listen at one ROUTER of a directory: each is sent a snapshot, then each state that changes.

    One that does not keep up costs only its own, bounded outbox: what does not fit there is not sent at all, and once
    the outbox is empty it is sent a new snapshot. Messages are encoded once for all.

    Args:
        reactor: whose.
        door: where they connect; closed with ``socket``.
        access: who may enter and announce here.
        welcome: what HELLO is answered with.
        states: all that they are told.
        receive: takes what a peer says: ourselves, its frames with its id in front, and its origin.

    Attributes:
        complete: whether a snapshot is complete as it is; if not, ``completed`` has to be called later.
        socket: the ROUTER.
        counts: what happened how often.
    """

    def __init__(
        self,
        reactor: Reactor,
        door: Door,
        access: PortAccess | FolderAccess,
        welcome: Welcome,
        states: Callable[[], Iterable[State]],
        receive: Callable[[Subscribers, list[bytes], str], None],
    ) -> None:
        self.endpoint = door.endpoint
        self.access = access
        self.complete = True
        self.counts = dict.fromkeys(("hellos", "snapshots", "behind", "lost", "silent", "crowded"), 0)
        self.socket = RouterSocket(
            reactor,
            door.sock,
            lambda parts, origin: receive(self, parts, origin),
            origin=door.origin,
            outbox_msgs=OUTBOX_MSGS,
            outbox_bytes=OUTBOX_BYTES,
            total_bytes=OUTBOXES_BYTES,
        )
        self.socket.lost = self._lost
        self._reactor = reactor
        self._welcome = wire.encode(DirectoryKind.WELCOME, welcome)
        self._silent_s = SILENT_LEASES * welcome.lease_s
        self._states = states
        self._snapshot: list[Frames] | None = None
        self._peers: dict[bytes, _Subscriber] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def hello(self, rid: bytes, hello: Hello) -> None:
        """A peer begins, or begins anew. Answered in the next turn: once, however often it says so until then."""
        self.counts["hellos"] += 1
        peer = self._peers.get(rid)
        if peer is None and len(self._peers) >= PEERS_MAX:
            self.counts["crowded"] += 1
            self.refuse(rid, f"{PEERS_MAX} others are listening")
            return
        if peer is None or not peer.due:
            self._reactor.call_soon(self._greet, rid)
        self._peers[rid] = _Subscriber(hello.want)

    def heard(self, rid: bytes) -> bool:
        """A peer said something; False: it never said HELLO."""
        peer = self._peers.get(rid)
        if peer is None:
            self.send(rid, wire.GREET)
            return False
        peer.silent_s = 0.0
        return True

    def forget(self, rid: bytes) -> None:
        """A peer is told nothing any more."""
        if self._peers.pop(rid, None) is not None:
            self.socket.forget_peer(rid)

    def send(self, rid: bytes, message: Frames) -> None:
        """Send to one, where it has room and is there."""
        self.socket.send((rid, *message))

    def refuse(self, rid: bytes, reason: str) -> None:
        """Say to one why not."""
        self.send(rid, wire.encode(DirectoryKind.REFUSED, DirectoryRefused(reason)))

    def publish(self, kind: DirectoryKind, body: Body) -> None:
        """``states`` has changed: tell all who want to know."""
        self._snapshot = None
        self._publish(wire.encode(kind, body))

    def completed(self) -> None:
        """Snapshots that were sent are complete now, and those to come."""
        if not self.complete:
            self.complete = True
            self._publish(wire.COMPLETE)

    def _publish(self, message: Frames) -> None:
        for rid, peer in list(self._peers.items()):
            if peer.want and not peer.due and not peer.behind:
                self._tell(rid, peer, (message,))

    def tick(self, elapsed_s: float) -> None:
        """Show that we are alive; send those that were behind a new snapshot; forget who is silent.

        ``elapsed_s`` is what lies between two calls as a rule: who was stopped for longer reads first what came.
        """
        for rid, peer in list(self._peers.items()):
            peer.silent_s += elapsed_s
            if peer.silent_s > self._silent_s:
                self.counts["silent"] += 1
                self.forget(rid)
            elif not self.socket.waiting_for(rid):
                if peer.behind:
                    self._greet(rid)
                else:
                    self._tell(rid, peer, (wire.ALIVE,))

    def status(self) -> dict[str, Any]:
        """For status."""
        return {**status_of("ROUTER", self.endpoint, self.socket), "peers": len(self), **self.counts}

    def _greet(self, rid: bytes) -> None:
        peer = self._peers.get(rid)
        if peer is None:
            return
        peer.due = peer.behind = False
        self.socket.forget_peer(rid)  # what waits for it is older than what it is sent now
        messages = [self._welcome]
        if peer.want:
            self.counts["snapshots"] += 1
            if self._snapshot is None:
                self._snapshot = wire.chunks(self._states())
            messages += self._snapshot
            if self.complete:
                messages.append(wire.COMPLETE)
        self._tell(rid, peer, messages)

    def _tell(self, rid: bytes, peer: _Subscriber, messages: Sequence[Frames]) -> None:
        for message in messages:
            outcome = self.socket.send((rid, *message))
            if outcome is Outcome.FULL:
                self.counts["behind"] += 1
                peer.behind = True
                return
            if outcome is Outcome.GONE:
                return  # and ``_lost`` is called

    def _lost(self, rid: bytes, _waited: Sequence[object]) -> None:
        if self._peers.pop(rid, None) is not None:
            self.counts["lost"] += 1


class DirectoryServer:
    """The room ``directory`` of a proxy.

    Args:
        reactor: whose thread; opened before ``open``.
        config: of the node.

    Attributes:
        endpoint: where its TCP socket listens; "" without.
        replica: all that it knows; what was announced first hand is its ``HERE``.
        peers: other directories and Redis hosts: they are told what our own pipelines announce, and tell what they
            know. The replica believes nobody else about this node, so nothing goes round in a circle.
        sockets: where processes of this node listen, and then others.
        counts: what happened how often.
        settings: what STATUS tells of when they were read (``proxy.reload``); {} nothing.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig) -> None:
        self.endpoint = ""
        self.settings: dict[str, Any] = {}
        self.replica = Replica(config.node, config.lease_s)
        self.peers: list[Peer | RedisHost] = []
        self.sockets: list[Subscribers] = []
        self.counts = dict.fromkeys(("malformed", "other_version", "refused", "forbidden", "queries"), 0)
        self.incarnation = time.time_ns()
        self._reactor = reactor
        self._config = config
        self._access = PortAccess(config)
        self._tunings: tuple[Tuning, ...] = ()
        self._due: dict[Place, State] = {}
        self._pace = Pace(reactor, self._tell_others)
        self._doors: NodeSockets | None = None
        self._next: Timer | None = None
        self._overdue: Timer | None = None
        self._lines = Throttle(QUIET_S)
        self.replica.on_state.append(self._on_state)
        self.replica.on_announced.append(self._on_announced)
        self.replica.on_change.append(self._gather)

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Bind both sockets, connect to other directories, start to share by Redis.

        Raises:
            ConfigError: a port or file is in use, the port would be open to other machines in plaintext, or Redis is
                asked for and redis-py is not installed.
        """
        config = self._config
        certificate = curve.load(config.curve_cert) if config.curve_cert else None
        access, port = self._access, config.directory_port
        doors = NodeSockets(
            self._reactor, config, zmq.ROUTER, port, DIRECTORY_SOCKET, access, wire.JSON_BYTES_MAX, SENT_MSGS
        )
        self._doors = doors
        try:
            self._listen(doors.local, FolderAccess(config), self.replica.states)
            self.sockets[0].complete = False  # until the other directories have answered
            if doors.tcp is not None:
                access.own_key = doors.key
                self.endpoint = doors.tcp.endpoint
                self._listen(doors.tcp, access, self.replica.announced)
            self._tunings = (self._tuning(config, certificate),)
            for endpoint in dict.fromkeys(config.directories):
                self.peers.append(
                    Peer(
                        self._reactor,
                        endpoint,
                        self.replica,
                        tunings=lambda: self._tunings,
                        known=self._is_other,
                        pulse_s=config.beat_s,
                    )
                )
            self.peers += open_hosts(self._reactor, config, self.replica)
        except BaseException:
            self._close()
            raise
        self._overdue = self._reactor.call_later(GATHER_S, self._complete)
        self._tick()
        log.info("directory of %s: listening at %s", config.node, [each.endpoint for each in self.sockets])

    def _listen(
        self, door: Door, access: PortAccess | FolderAccess, states: Callable[[], Iterable[State]]
    ) -> None:
        config = self._config
        welcome = Welcome(config.node, self.incarnation, config.lease_s, config.message_bytes_max)
        self.sockets.append(Subscribers(self._reactor, door, access, welcome, states, self._receive))

    def renew_from(self, config: NodeConfig, certificate: Certificate | None) -> None:
        """Go by the keys of ``config`` from now on; show ``certificate`` to whoever connects, here and elsewhere.

        Connections stay. One whose key may not ask any more is refused at its next message, and told nothing after it.
        To other directories the former key is tried, too: they get theirs at different times.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        self._access.change(config)
        tuning = self._tuning(config, certificate)
        if tuning != self._tunings[0]:
            self._tunings = (tuning, self._tunings[0])
        if self._doors is not None and certificate is not None:
            self._access.own_key = certificate.public_key
            try:
                self._doors.renew(certificate)
            finally:
                self._reactor.check_after_turn(self.sockets[-1].socket)

    def _tuning(self, config: NodeConfig, certificate: Certificate | None) -> Tuning:
        keys = curve_to_directory(certificate, config.directory_key)
        return Tuning(KeepAlive(*self._config.keepalive), curve=keys)

    def _is_other(self, welcome: Welcome) -> bool:
        if welcome.node != self._config.node:
            return True
        if welcome.incarnation != self.incarnation:
            text = "directory: another node is called %s, too; what it offers is not seen here"
            self._reactor.say(logging.WARNING, text, (welcome.node,))
            return True
        self._reactor.say(logging.INFO, "directory: one of its directories is this node itself", ())
        return False

    def stop(self, reason: str, *, returns: bool = False) -> None:
        """Close everything; what was announced stays known elsewhere until its lease ends. Harmless twice."""
        if self.sockets:
            log.info("directory of %s: stopped: %s", self._config.node, reason)
        self._close()

    def _close(self) -> None:
        self._pace.flush()
        for timer in (self._next, self._overdue):
            if timer is not None:
                timer.cancel()
        for peer in self.peers:
            peer.close(LEAVE_MS)
        for each in self.sockets:
            each.socket.close(STOP_MS)
        if self._doors is not None:
            self._doors.close()
        self.sockets = []

    # ------------------------------------------------------------ what comes in

    def _receive(self, at: Subscribers, parts: list[bytes], origin: str) -> None:
        rid = parts[0]
        if not at.access.enters(origin):
            at.forget(rid)
            self._refuse(at, rid, "this key may not be here any more", "forbidden")
            return
        if len(parts) == 3 and parts[1][:3] == frames.MAGIC:
            self._answer_status(at, rid, parts[1])
            return
        try:
            message = wire.decode(parts[1:], TO_DIRECTORY)
        except frames.Malformed as error:
            about = "other_version" if error.unknown_version else "malformed"
            self.counts[about] += 1
            self._say(about, "directory: dropped a message of a peer at %s: %s", at.endpoint, error)
            if error.unknown_version:  # it cannot read this, and says in its log that we speak another one
                at.send(rid, wire.GREET)
            return
        if message.kind is DirectoryKind.HELLO:
            at.hello(rid, message.body)
        elif at.heard(rid) and not (message.kind is DirectoryKind.BEAT and not message.body):
            self._announced(at, rid, origin, message)

    def _announced(self, at: Subscribers, rid: bytes, origin: str, message: DirectoryMessage) -> None:
        kind, body = message
        nodes = {each.node for each in (body if kind is DirectoryKind.BEAT else (body,))}
        owner, objection = at.access.judge_announcement(origin, nodes, self._config.node)
        if objection:
            self.counts["forbidden"] += 1
            self._refuse(at, rid, objection, "forbidden")
            return
        answer = self._take(owner, message, self._reactor.now())
        if answer.away and owner == LOCAL_OWNER:
            self._pace.flush()
            for peer in self.peers:
                peer.away(body.place)
        if answer.unknown:
            at.send(rid, wire.GREET)
        if answer.refused:
            self._refuse(at, rid, answer.refused)

    def _take(self, owner: str, message: DirectoryMessage, now: float) -> Answer:
        kind, body = message
        if kind is DirectoryKind.ANNOUNCE:
            return self.replica.announce(owner, body, now)
        if kind is DirectoryKind.BEAT:
            return self.replica.beat(owner, body, now)
        return self.replica.leave(owner, body, now, returns=kind is DirectoryKind.AWAY)

    def _refuse(self, at: Subscribers, rid: bytes, reason: str, about: str = "refused") -> None:
        self.counts["refused"] += 1
        self._say(about, "directory: refused a peer at %s: %s", at.endpoint, reason)
        at.refuse(rid, reason)

    def _answer_status(self, at: Subscribers, rid: bytes, head: bytes) -> None:
        envelope = None
        with contextlib.suppress(frames.Malformed):
            envelope = frames.decode(head)
        if envelope is None or envelope.kind != frames.Kind.STATUS:
            self.counts["malformed"] += 1
            return
        self.counts["queries"] += 1
        at.send(rid, (frames.encode(frames.Kind.STATUS, id=envelope.id), to_json(self.status())))

    # ------------------------------------------------------------ what goes out

    def _on_state(self, before: State | None, after: State | None) -> None:
        """What is in force has changed: tell this node's processes."""
        for each in self.sockets[:1]:
            if after is not None:
                each.publish(DirectoryKind.STATES, States((after,)))
            elif before is not None:
                each.publish(DirectoryKind.GONE, (Gone(*before.place, before.incarnation),))

    def _on_announced(self, owner: str, before: State | None, after: State | None) -> None:
        """What was announced first hand has changed: tell it at our TCP port; and to our peers what is of this node."""
        if after is None:
            assert before is not None
            self._due.pop(before.place, None)
            for peer in self.peers:
                peer.withdraw(before.place)
            self._tell_remote(DirectoryKind.GONE, (Gone(*before.place, before.incarnation),))
        elif owner == LOCAL_OWNER:
            self._due[after.place] = after
            self._pace.soon()
        else:
            self._tell_remote(DirectoryKind.STATES, States((after,)))

    def _tell_others(self) -> float:
        """Our own pipelines have changed: tell other nodes; returns how long to gather behind that.

        Each state is told as a whole, and everybody in the cloud reads it. A thousand listeners that open on twenty
        nodes, one after another on each, would be 3,000 states of ever more records at each of the twenty. So a change
        leaves at once after a quiet time, and from a node with few listeners always. What comes behind a large state is
        gathered, the longer the larger that was, and states of several pipelines travel together. How much there is
        elsewhere does not count: when all nodes begin at the same time, none knows it yet. Processes of this node do
        not wait: they are told each change.
        """
        states = tuple(self._due.values())
        self._due.clear()
        if not states:
            return 0.0
        self._tell_remote(DirectoryKind.STATES, States(states))
        for peer in self.peers:
            for state in states:
                peer.announce(state)
        many = sum(len(state.records) for state in states) - FREE_RECORDS
        return min(max(many, 0) * RECORD_S, LAST_S)

    def _tell_remote(self, kind: DirectoryKind, body: Body) -> None:
        for each in self.sockets[1:]:
            each.publish(kind, body)

    # ------------------------------------------------------------ time

    def _tick(self) -> None:
        now = self._reactor.now()
        tick_s = min(self._config.beat_s, self._config.lease_s / TICKS)
        self._next = self._reactor.call_later(tick_s, self._tick)
        self.replica.tick(now)
        self._gather()
        for each in self.sockets:
            each.tick(tick_s)

    def _gather(self) -> None:
        """Call snapshots complete once the other directories have answered; ``GATHER_S`` has passed at the latest."""
        if all(peer.heard_all for peer in self.peers):
            self._complete()

    def _complete(self) -> None:
        for each in self.sockets[:1]:
            each.completed()

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, Any]:
        """Sockets, counters, leases, sources; no secrets."""
        return {
            "node": self._config.node,
            "incarnation": self.incarnation,
            "sockets": [each.status() for each in self.sockets],
            "states": len(self.replica.here.claims),
            "records": self.replica.here.records,
            "settings": self.settings,
            "denied": self._access.denied,
            **self.counts,
            "registry": dict(self.replica.leases),
            "replica": self.replica.status(),
            "uplinks": [each.status() for each in self.peers if isinstance(each, Peer)],
            "redis": [each.status() for each in self.peers if isinstance(each, RedisHost)],
        }

    def _say(self, about: str, text: str, *values: object) -> None:
        if self._lines.admits(about, self._reactor.now()):
            log.warning(text, *values)
