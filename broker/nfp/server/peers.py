"""One connection of the broker: who it is, and what waits to be sent to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.errors import LinkError
from broker.nfp.frames import Body, Packet, encode
from broker.nfp.names import Command
from broker.nfp.principal import Principal
from broker.nfp.server.outbox import LESSER, QueuedPeer, Waiting
from broker.transport.batching import Part
from broker.transport.zeromq.pipe import Pipe

if TYPE_CHECKING:
    from broker.nfp.server.router import NfpRouter

log = logging.getLogger("headgate")
_KEEPALIVE: Final = Command.KEEPALIVE


def name_of(identity: bytes) -> str:
    """A ZeroMQ identity as text: itself when it is printable UTF-8, else hexadecimal digits.

    >>> name_of(b"worker-1"), name_of(bytes([0, 1, 2, 3, 4]))
    ('worker-1', '0001020304')
    """
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() else identity.hex()


class Newcomer:
    """A connection that was let in and has not said yet what makes it a peer (``pipe.Owner``).

    Attributes:
        identity: as it said, or one that the router made. key: that it has proved, "" without CURVE.
        lockstep: its socket is a REQ.
        pipe: its connection; set at once.
        held: its first messages, while it is asked whether who has its name is still there.
    """

    def __init__(self, router: NfpRouter, identity: bytes, key: str, address: str, lockstep: bool) -> None:
        self.identity = identity
        self.key = key
        self.address = address
        self.lockstep = lockstep
        self.pipe: Pipe
        self.held: list[list[Part]] = []
        self._router = router

    def send(self, frames: list[Body]) -> bool:
        """Say what anybody may read; False: it has gone, is known by now, or waits for its name."""
        if self.held or not self._router.is_newcomer(self) or not self.pipe.add(frames):
            return False
        self.pipe.flush()
        return True

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        if self.held:  # it was paused, and lost: then all that it has said comes
            self.held += messages
        else:
            self._router.introduce(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``: nothing waits."""

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        self._router.left(self)


class RouterPeer(QueuedPeer[list[Body]]):
    """See ``Peer``; it exists from the first message of a connection to the connection's end.

    Attributes:
        pipe: its connection.
        lockstep: its socket is a REQ: one answer for each request, and nothing unasked.
        senders: who may speak on its socket: clients, workers, or both.
    """

    def __init__(self, router: NfpRouter, newcomer: Newcomer, name: str, principal: Principal) -> None:
        super().__init__(
            name, newcomer.identity, principal, router.limits, newcomer.address, router.transport
        )
        self.lockstep = newcomer.lockstep
        self.senders = router.senders
        self.pipe = newcomer.pipe
        self._router = router
        self._stuck = -1
        self._stuck_s = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"

    # -- from the connection (``pipe.Owner``) ----------------------------------------------------

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        self._router.handle(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``."""
        self.flush()

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        log.debug("%s: %s", self, error)
        self.lost()
        self._router.gone(self)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, packet: Packet, after: int = 0) -> bool:
        """See ``Peer.send``. A peer that has no room even for a result, and takes nothing, does not read: it is cut."""
        if not self.alive:
            return False
        try:
            frames = encode(packet)
        except ValueError as error:  # the peer has changed its dialect since it asked for this
            log.debug("%s: %s", self, error)
            self._router.dropped += 1
            return False
        outbox, router, flusher = self._outbox, self._router, self._router.flusher
        if flusher.at_once and not len(outbox) and after <= flusher.committed and self._offer(frames):
            flusher.at_once -= 1
            self.pipe.flush()
            if router.recording is not None:
                router.recording.sent(self, packet, frames)
            return True
        if self.pipe.lost is not None:
            return False
        size = sum(map(len, frames))
        if not outbox.has_room(packet.command, size) and not self._makes_room(packet.command, size):
            router.dropped += 1
            return False
        if packet.command is _KEEPALIVE and self._gated:
            outbox.put_first(Waiting(0, "", size, frames))  # a slow disk makes nobody seem dead
        else:
            outbox.put(Waiting(after, packet.uuid, size, frames))
        if router.recording is not None:
            router.recording.sent(self, packet, frames)
        flusher.touch(self, after)
        return True

    def flush(self) -> None:
        """Write what the kernel takes; the rest follows when there is room, or when its commit is done."""
        outbox = self._outbox
        if not self.alive:
            outbox.clear()
            return
        committed = self._router.flusher.committed
        for frames in outbox.due(committed):
            if not self._offer(frames):
                break
        else:
            if len(outbox):
                self._flush_gated(committed)
        self.pipe.flush()
        if self._wants_room and not outbox.crowded:
            self._wants_room = False
            self._router.has_room(self)

    def _flush_gated(self, committed: int) -> None:
        flusher = self._router.flusher
        flusher.hold(self)
        if flusher.overtaking():
            for waiting in self._outbox.overtakers(committed):
                if not self._offer(waiting.form):
                    return
                self._outbox.remove(waiting)

    def _offer(self, frames: list[Body]) -> bool:
        """Make one message if there is room for it; if not, it is tried again when there is."""
        if self.pipe.add(frames):
            self._router.sent += 1
            return True
        if self.pipe.lost is not None:
            self.lost()
        return False

    def lost(self) -> None:
        """Nothing is sent any more: the connection is gone."""
        self.alive = False
        if len(self._outbox):
            self.unsent = self._outbox.uuids()
        self._router.dropped += self._outbox.clear()
        self._router.flusher.forget(self)

    def cut(self, why: str) -> None:
        """End the connection, and do not listen to what it has sent."""
        if not self.deaf:
            self.deaf = True
            self.lost()
            self._router.cut(self, why)

    @property
    def _gated(self) -> bool:
        """Whether the next message waits for the disk."""
        head = self._outbox.head
        return head is not None and head.after > self._router.flusher.committed

    def _makes_room(self, command: Command, size: int) -> bool:
        """What this turn has queued may not have been offered yet."""
        if self.pipe.free:
            self.flush()
            if self.alive and self._outbox.has_room(command, size):
                return True
        if self.alive and command not in LESSER:
            self._wants_room = True
            self._check_progress()
        return False

    def _check_progress(self) -> None:
        """Cut it when it had no room before and has taken nothing since, for as long as a silent peer is waited for."""
        taken, now = self.pipe.taken, self._router.now()
        if self._gated or taken != self._stuck:
            self._stuck, self._stuck_s = taken, now
        elif now - self._stuck_s >= self._router.stall_s:
            messages, size = self.waiting
            self.cut(f"does not read: {messages} messages, {size} bytes are waiting")
