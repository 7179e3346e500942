"""Those who listen to a directory on one of its sockets: each is sent a snapshot, then each state that changes.

A listener that does not keep up costs only its own, bounded outbox: what does not fit there is not sent at all, and
once the outbox is empty it is sent a new snapshot. Messages are encoded once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import zmq

from broker.oslo.directory import wire
from broker.oslo.directory.admission import Announcers
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryRefused, Hello, Welcome
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Outcome
from broker.oslo.records import State

PEERS_MAX: Final = 16_384
"""Processes on one node, or nodes and applications at one port; more are refused."""
SENT_MSGS: Final = 16
"""SNDHWM: for a listener that does not read libzmq holds so many messages, each of which may be a large state."""
OUTBOX_MSGS: Final = 2_048
OUTBOX_BYTES: Final = 256 << 20
"""Of one listener: a snapshot of ``RECORDS_TOTAL_MAX`` records fits. All listeners share the same bytes."""
OUTBOXES_BYTES: Final = 1 << 30
"""Of all listeners, each message counted as often as it waits."""
SILENT_LEASES: Final = 3
"""A listener that was silent for so many leases is forgotten; if it comes back it is asked for HELLO."""

Frames = tuple[bytes, bytes]


@dataclass(slots=True)
class _Peer:
    want: bool
    silent_s: float = 0.0
    due: bool = True
    behind: bool = False


class DirectorySubscribers:
    """The listeners at one ROUTER of a directory.

    Args:
        reactor: whose.
        sock: bound; closed by ``close``.
        endpoint: where.
        origin: property of a connection that says who it is, see ``Socket``.
        rule: who may announce here.
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
        sock: zmq.Socket[bytes],
        endpoint: str,
        origin: str,
        rule: Announcers,
        welcome: Welcome,
        states: Callable[[], Iterable[State]],
        receive: Callable[[DirectorySubscribers, list[bytes], str], None],
    ) -> None:
        self.endpoint = endpoint
        self.rule = rule
        self.complete = True
        self.counts = dict.fromkeys(("hellos", "snapshots", "behind", "lost", "silent", "crowded"), 0)
        self.socket = RouterSocket(
            reactor,
            sock,
            lambda parts, origin: receive(self, parts, origin),
            origin=origin,
            outbox_msgs=OUTBOX_MSGS,
            outbox_bytes=OUTBOX_BYTES,
            total_bytes=OUTBOXES_BYTES,
        )
        self.socket.lost = self._lost
        self._reactor = reactor
        self._welcome = wire.encode(DirectoryKind.WELCOME, welcome)
        self._lease_s = welcome.lease_s
        self._states = states
        self._snapshot: list[Frames] | None = None
        self._peers: dict[bytes, _Peer] = {}

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
        self._peers[rid] = _Peer(hello.want)

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

    def send(self, rid: bytes, message: Frames) -> bool:
        """Send to one; False: it has no room, or is gone."""
        return self.socket.send((rid, *message)) > 0

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
            if peer.silent_s > SILENT_LEASES * self._lease_s:
                self.counts["silent"] += 1
                self.socket.forget_peer(rid)
                del self._peers[rid]
            elif not self.socket.waiting_for(rid):
                if peer.behind:
                    self._greet(rid)
                else:
                    self._tell(rid, peer, (wire.ALIVE,))

    def status(self) -> dict[str, Any]:
        """For status."""
        return {
            "type": "ROUTER",
            "endpoint": self.endpoint,
            "in": self.socket.received,
            "in_bytes": self.socket.received_bytes,
            "out": self.socket.sent,
            "out_bytes": self.socket.sent_bytes,
            "waiting": self.socket.waiting,
            "refused": self.socket.refused,
            "peers": len(self),
            **self.counts,
        }

    def close(self, linger_ms: int) -> None:
        """Close the socket."""
        self.socket.close(linger_ms)

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

    def _tell(self, rid: bytes, peer: _Peer, messages: Sequence[Frames]) -> None:
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
