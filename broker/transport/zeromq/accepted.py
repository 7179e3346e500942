"""One accepted connection as a link. All connections share one ROUTER socket, which the listener reads."""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING

import zmq

from broker.errors import LinkBroken, LinkEnded, LinkError
from broker.identity import PeerInfo
from broker.transport.link import Options
from broker.transport.zeromq.connection import inode
from broker.transport.zeromq.link import ZeromqLink
from broker.transport.zeromq.tuning import LINGER_MS, MORE_NOBLOCK
from broker.wire.message import Message

if TYPE_CHECKING:
    from broker.transport.zeromq.router import ZeromqListener


class ConnectionState(Enum):
    """Where one accepted connection stands; it goes through these from top to bottom, and may leave some out."""

    OPEN = "open"
    DRAINING = "draining"
    """The peer has gone; what it sent before is delivered, then the link ends."""
    LINGERING = "lingering"
    """We ended the link; the connection stays until the peer has what is left, see ``ZeromqLink.lingers``."""
    CLOSED = "closed"
    """The connection was shut down."""


class RouterLink(ZeromqLink):
    """The link of one connection to a listener.

    Attributes:
        connection: its user id, see ``zap``.
        state: where it stands; the listener moves it.
        turns: how many turns of reading it has been draining.
    """

    __slots__ = (
        "_held",
        "_held_bytes",
        "_held_cap",
        "_held_largest",
        "_listener",
        "_paused",
        "connection",
        "state",
        "turns",
    )

    def __init__(
        self,
        listener: ZeromqListener,
        peer: PeerInfo,
        identity: bytes,
        connection: str,
        fd: int,
        options: Options,
    ) -> None:
        super().__init__(peer, options, identity, listener.pump)
        self.connection = connection
        self.fd = fd
        self.inode = inode(fd)
        self.state = ConnectionState.OPEN
        self.turns = 0
        self._listener = listener
        self._paused = True
        self._held: list[Message] = []
        self._held_bytes = 0
        self._held_largest = 0
        self._held_cap = options.limits.cap_bytes

    def pause(self) -> None:
        """Hold back what arrives. One peer of a ROUTER cannot be slowed down: beyond ``cap_bytes``, besides one message
        of any size, the link ends.
        """
        self._paused = True

    def resume(self) -> None:
        """Hand over what was held back and what comes."""
        self._paused = False
        if self._held:
            self._listener.deliver_soon(self)

    def abort(self, error: LinkError) -> None:
        """End at once with ``error`` and cut the connection."""
        self._listener.end(self, error, 0)

    def end_lingering(self, error: LinkError) -> None:
        """See ``ZeromqLink.end_lingering``: the only way to end one connection of a ROUTER is to cut it, later."""
        self._listener.end(self, error, LINGER_MS)

    def all_sent(self) -> None:
        """See ``ZeromqLink.all_sent``."""
        self._listener.close_if_idle()

    def lost(self, error: LinkError) -> None:
        """See ``ZeromqLink.lost``."""
        self._listener.drain(self, error)

    def deliver(self) -> None:
        """See ``ZeromqLink.deliver``."""
        if self._held and not self._paused:
            held, self._held, self._held_bytes, self._held_largest = self._held, [], 0, 0
            super()._hand_over(held)
        if self._arrived:
            super().deliver()

    def release(self) -> None:
        """Hand over everything, paused or not: nothing more will come."""
        if self.receiver is not None:
            self._paused = False
            self.deliver()

    def _hand_over(self, messages: list[Message]) -> None:
        if not self._paused and self.receiver is not None:
            super()._hand_over(messages)
            return
        self._held += messages
        sizes = [message.size for message in messages]
        self._held_bytes += sum(sizes)
        self._held_largest = max(self._held_largest, *sizes)
        if self._held_bytes - self._held_largest > self._held_cap:
            self.abort(
                LinkBroken(
                    f"{self.peer.address} sent {self._held_bytes} bytes while its reading was paused",
                    errno.ENOBUFS,
                )
            )

    def finish(self, error: LinkError) -> None:
        """See ``Link.finish``: what was held back has no reader any more, and is not kept with the link."""
        self._held, self._arrived = [], []
        self._held_bytes = self._held_largest = 0
        super().finish(error)

    def _room(self) -> bool:
        try:
            self._sock.send(self.identity, MORE_NOBLOCK)
        except zmq.Again:
            self._pump.waiting[self] = None
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self.lost(LinkEnded(f"{self.peer.address} is gone"))
            return False
        return True
