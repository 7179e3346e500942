"""One connection of a ROUTER as a peer: who it is, and what waits to be sent to it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final

import zmq

from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet, encode
from broker.nfp.names import Command, Dialect
from broker.nfp.server.outbox import Outbox, Waiting
from broker.nfp.server.penalty import Penalty
from broker.transport.zeromq.connection import inode
from broker.transport.zeromq.tuning import MORE_NOBLOCK, NOBLOCK

if TYPE_CHECKING:
    from broker.nfp.principal import Principal
    from broker.nfp.server.router import NfpRouter

log = logging.getLogger("headgate")
_LESSER: Final = frozenset({Command.EVENT, Command.STREAM})


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


class RouterPeer(Peer):
    """See ``Peer``; it exists from the first message of a connection, which proved its key, to the connection's end.

    Attributes:
        tag: the user id of the connection (see ``zap``).
        address: its network address, for people.
        fd: the connection's descriptor in libzmq. inode: its socket's number.
        penalty: its invalid messages. deaf: True once it is cut: what it has sent is not handled.
        greeted: True once it has said something valid.
        worker: True once it has said something as a worker.
        connected_s: monotonic, when it spoke first.
    """

    __slots__ = (
        "_outbox",
        "_router",
        "_send",
        "address",
        "alive",
        "connected_s",
        "deaf",
        "dialect",
        "fd",
        "features",
        "greeted",
        "identity",
        "inode",
        "name",
        "penalty",
        "principal",
        "tag",
        "worker",
    )

    def __init__(
        self, router: NfpRouter, identity: bytes, tag: str, principal: Principal, address: str, fd: int
    ) -> None:
        self.name = name_of(identity)
        self.identity = identity
        self.principal = principal
        self.dialect = Dialect.NORFAB
        self.features: frozenset[str] = frozenset()
        self.alive = True
        self.tag = tag
        self.address = address
        self.fd = fd
        self.inode = inode(fd)
        self.penalty = Penalty()
        self.deaf = False
        self.greeted = False
        self.worker = False
        self.connected_s = router.now()
        self._router = router
        self._send: Any = router.send
        self._outbox: Outbox[list[Body]] = Outbox(router.limits)

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages and bytes in the outbox."""
        return len(self._outbox), self._outbox.size

    @property
    def dropped(self) -> int:
        """Messages that found no room or whose job could not be stored."""
        return self._outbox.dropped

    def send(self, packet: Packet, after: int = 0) -> bool:
        """See ``Peer.send``. A peer that leaves no room even for a result does not read: it is cut."""
        if not self.alive:
            return False
        try:
            frames = encode(packet)
        except ValueError as error:  # the peer has changed its dialect since it asked for this
            log.debug("%s: %s", self, error)
            self._router.dropped += 1
            return False
        size = sum(map(len, frames))
        outbox = self._outbox
        if not outbox.has_room(packet.command, size):
            outbox.dropped += 1
            self._router.dropped += 1
            if packet.command not in _LESSER:
                self._overflow()
            return False
        outbox.put(Waiting(after, packet.uuid, size, frames))
        self._router.turns.touch(self)
        return True

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for the commit of ``uuids``, which failed; returns how many messages."""
        return self._outbox.drop(uuids)

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
        committed = self._router.turns.committed
        while (waiting := outbox.due(committed)) is not None:
            if not self._offer(waiting.form):
                return
            outbox.taken()
        if len(outbox):
            self._flush_gated(committed)

    def _flush_gated(self, committed: int) -> None:
        turns = self._router.turns
        turns.hold(self)
        if turns.overtaking():
            for waiting in self._outbox.overtakers(committed):
                if not self._offer(waiting.form):
                    return
                self._outbox.remove(waiting)

    def lost(self) -> None:
        """Nothing is sent any more: the connection is gone."""
        self.alive = False
        self._router.dropped += self._outbox.clear()
        self._router.turns.forget(self)
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
            self._router.leave(self)
            return False
        last = len(frames) - 1
        for frame in frames[:last]:
            send(frame, MORE_NOBLOCK)
        send(frames[last], NOBLOCK)
        self._router.sent += 1
        return True

    def _overflow(self) -> None:
        messages, size = self.waiting
        self.cut(f"does not read: {messages} messages, {size} bytes are waiting")
