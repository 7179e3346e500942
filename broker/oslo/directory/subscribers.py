"""Those who listen to a directory on one of its sockets: each is sent a snapshot, then what changes.

A listener that does not keep up costs only its own, bounded outbox: what does not fit there is not sent at all, and
once the outbox is empty it is sent a new snapshot. Messages are encoded once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.oslo.directory import wire
from broker.oslo.directory.wire import DirectoryKind, DirectoryRefused, Hello
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.pipe import Outcome
from broker.oslo.reactor.router import RouterPipe

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
    node: str
    heard_at: float
    due: bool = True
    behind: bool = False


class DirectorySubscribers:
    """The listeners at one ROUTER.

    Args:
        reactor: whose.
        pipe: the socket.
        welcome: what HELLO is answered with.
        snapshot: the messages that tell all states.
        complete: says whether a snapshot is complete as it is; if not, ``completed`` has to be called later.
        lease_s: of this directory.

    Attributes:
        counts: what happened how often.
    """

    def __init__(
        self,
        reactor: Reactor,
        pipe: RouterPipe,
        welcome: Frames,
        snapshot: Callable[[], Sequence[Frames]],
        complete: Callable[[], bool],
        lease_s: float,
    ) -> None:
        self.counts = dict.fromkeys(("hellos", "snapshots", "behind", "lost", "silent", "crowded"), 0)
        self._reactor = reactor
        self._pipe = pipe
        self._welcome = welcome
        self._snapshot = snapshot
        self._complete = complete
        self._lease_s = lease_s
        self._peers: dict[bytes, _Peer] = {}
        pipe.unreachable = self._lost

    def __len__(self) -> int:
        return len(self._peers)

    def hello(self, rid: bytes, hello: Hello) -> None:
        """A peer begins, or begins anew. Answered in the next turn: once, however often it says so until then."""
        self.counts["hellos"] += 1
        peer = self._peers.get(rid)
        if peer is None and len(self._peers) >= PEERS_MAX:
            self.counts["crowded"] += 1
            self.send(
                rid, wire.encode(DirectoryKind.REFUSED, DirectoryRefused(f"{PEERS_MAX} others are listening"))
            )
            return
        if peer is None or not peer.due:
            self._reactor.call_soon(self._greet, rid)
        self._peers[rid] = _Peer(hello.want, hello.node, self._reactor.now())

    def heard(self, rid: bytes) -> bool:
        """A peer said something; False: it never said HELLO."""
        peer = self._peers.get(rid)
        if peer is None:
            self.send(rid, wire.GREET)
            return False
        peer.heard_at = self._reactor.now()
        return True

    def forget(self, rid: bytes) -> None:
        """A peer is told nothing any more."""
        if self._peers.pop(rid, None) is not None:
            self._pipe.forget_peer(rid)

    def send(self, rid: bytes, message: Frames) -> bool:
        """Send to one; False: it has no room, or is gone."""
        return self._pipe.send((rid, *message)) > 0

    def publish(self, message: Frames) -> None:
        """Tell all who want to know."""
        for rid, peer in list(self._peers.items()):
            if peer.want and not peer.due and not peer.behind:
                self._tell(rid, peer, (message,))

    def completed(self) -> None:
        """Snapshots that were sent are complete now."""
        self.publish(wire.COMPLETE)

    def tick(self) -> None:
        """Show that we are alive; send those that were behind a new snapshot; forget who is silent."""
        silent_at = self._reactor.now() - SILENT_LEASES * self._lease_s
        for rid, peer in list(self._peers.items()):
            if peer.heard_at < silent_at:
                self.counts["silent"] += 1
                self._pipe.forget_peer(rid)
                del self._peers[rid]
            elif not self._pipe.waiting_for(rid):
                if peer.behind:
                    self._greet(rid)
                else:
                    self._tell(rid, peer, (wire.ALIVE,))

    def _greet(self, rid: bytes) -> None:
        peer = self._peers.get(rid)
        if peer is None:
            return
        peer.due = peer.behind = False
        self._pipe.forget_peer(rid)  # what waits for it is older than what it is sent now
        messages = [self._welcome]
        if peer.want:
            self.counts["snapshots"] += 1
            messages += self._snapshot()
            if self._complete():
                messages.append(wire.COMPLETE)
        self._tell(rid, peer, messages)

    def _tell(self, rid: bytes, peer: _Peer, messages: Sequence[Frames]) -> None:
        for message in messages:
            outcome = self._pipe.send((rid, *message))
            if outcome is Outcome.FULL:
                self.counts["behind"] += 1
                peer.behind = True
                return
            if outcome is Outcome.GONE:
                return  # and ``_lost`` is called

    def _lost(self, rid: bytes) -> None:
        if self._peers.pop(rid, None) is not None:
            self.counts["lost"] += 1
