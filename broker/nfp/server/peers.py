"""One connection of a ROUTER as a peer: who it is, and what waits to be sent to it."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Final

import zmq

from broker.nfp.frames import FRAMES_MAX, Body, Packet, encode
from broker.nfp.names import Command
from broker.nfp.principal import Principal
from broker.nfp.server.outbox import LESSER, QueuedPeer, Waiting
from broker.transport.zeromq.connection import inode
from broker.transport.zeromq.tuning import MORE_NOBLOCK, NOBLOCK

if TYPE_CHECKING:
    from broker.nfp.server.router import NfpRouter

log = logging.getLogger("headgate")
_KEEPALIVE: Final = Command.KEEPALIVE

_FLAGS: Final = tuple((*[MORE_NOBLOCK] * (count - 1), NOBLOCK) for count in range(FRAMES_MAX + 1))
"""By the number of a message's frames: more follow, but for the last one."""


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


class RouterPeer(QueuedPeer[list[Body]]):
    """See ``Peer``; it exists from the first message of a connection, which proved its key, to the connection's end.

    Attributes:
        tag: the user id of the connection (see ``zap``).
        fd: the connection's descriptor in libzmq. inode: its socket's number.
        lockstep: its socket is a REQ: one answer for each request, and nothing unasked.
        senders: who may speak on its socket: clients, workers, or both.
    """

    def __init__(
        self, router: NfpRouter, identity: bytes, tag: str, principal: Principal, address: str, fd: int
    ) -> None:
        super().__init__(name_of(identity), identity, principal, router.limits, address, router.transport)
        self.tag = tag
        self.fd = fd
        self.inode = inode(fd)
        self.lockstep = False
        self.senders = router.senders
        self._router = router
        self._send: Any = router.send
        self._stuck: Waiting[list[Body]] | None = None
        self._stuck_s = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"

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
        outbox, router = self._outbox, self._router
        if router.at_once and not len(outbox) and after <= router.flusher.committed:
            router.at_once -= 1
            router.flusher.note_sent()
            if self._offer(frames):
                if router.recording is not None:
                    router.recording.sent(self, packet, frames)
                return True
            if self not in router.pump.waiting:  # it is gone
                return False
        size = sum(map(len, frames))
        if not outbox.has_room(packet.command, size) and not self._makes_room(packet.command, size):
            self._router.dropped += 1
            return False
        if packet.command is _KEEPALIVE and self._gated:
            outbox.put_first(Waiting(0, "", size, frames))  # a slow disk makes nobody seem dead
        else:
            outbox.put(Waiting(after, packet.uuid, size, frames))
        if router.recording is not None:
            router.recording.sent(self, packet, frames)
        self._router.flusher.touch(self, after)
        return True

    def flush(self) -> None:
        """Give libzmq what it takes; the rest follows when there is room, or when its commit is done.

        The latest news of connections is taken in before: a message must not go to whoever has just taken the name of
        a peer that is gone.
        """
        self._router.settle()
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

    def lost(self) -> None:
        """Nothing is sent any more: the connection is gone."""
        self.alive = False
        if len(self._outbox):
            self.unsent = self._outbox.uuids()
        self._router.dropped += self._outbox.clear()
        self._router.flusher.forget(self)
        self._router.pump.waiting.pop(self, None)

    def cut(self, why: str) -> None:
        """End the connection now; libzmq tells when it has."""
        self._router.cut(self, why)

    def _offer(self, frames: list[Body]) -> bool:
        """Send one message if there is room for it; if not, it is tried again when there is."""
        send = self._send
        try:
            send(self.identity, MORE_NOBLOCK)
        except zmq.Again:
            self._router.pump.waiting[self] = None
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._router.connection_lost(self)
            return False
        # send returns None: all of them, without a loop in Python
        any(map(send, frames, _FLAGS[len(frames)]))
        self._router.sent += 1
        return True

    @property
    def _gated(self) -> bool:
        """Whether the next message waits for the disk."""
        head = self._outbox.head
        return head is not None and head.after > self._router.flusher.committed

    def _makes_room(self, command: Command, size: int) -> bool:
        """What this turn has queued may not have been offered yet."""
        outbox, router = self._outbox, self._router
        if self not in router.pump.waiting:
            self.flush()
            if self.alive and outbox.has_room(command, size):
                return True
        if self.alive and command not in LESSER:
            self._wants_room = True
            self._check_progress()
        return False

    def _check_progress(self) -> None:
        """Cut it when it had no room before and nothing has left since, for as long as a silent peer is waited for."""
        head, now = self._outbox.head, self._router.now()
        if self._gated or head is not self._stuck:
            self._stuck, self._stuck_s = head, now
        elif now - self._stuck_s >= self._router.stall_s:
            messages, size = self.waiting
            self.cut(f"does not read: {messages} messages, {size} bytes are waiting")
