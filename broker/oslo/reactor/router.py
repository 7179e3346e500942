"""A ROUTER on a reactor: every peer has an outbox of its own, and what it is sent goes as one frame (``bundle``)."""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import islice
from typing import Final

import zmq

from broker.oslo.reactor import bundle
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.socket import (
    OUTBOX_BYTES,
    OUTBOX_MSGS,
    RETRY_S,
    Frames,
    Outbox,
    Outcome,
    Receive,
    Socket,
    Tally,
)

# read where it is used, not folded by the compiler: tests change it
PEERS_TRIED: int = 32
"""Peers that have not read for a while and are tried in one turn, in rotation."""
TOTAL_BYTES: Final = 256 << 20
"""What may wait in all outboxes of one ROUTER together."""
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)


class RouterSocket(Socket):
    """A ROUTER: the first frame of a message is whose it is; every peer has an outbox of its own.

    Peers are DEALERs: the frames behind the first leave as a bundle, whatever waits, is sifted or told has them apart.
    What comes is as it was sent.

    The socket needs ROUTER_MANDATORY. ``outbox_msgs`` and ``outbox_bytes`` are those of one peer. When all of them hold
    ``total_bytes``, a peer may still have its equal share of them: those that hold more than that are refused first.

    Attributes:
        lost: called with the id of a peer that is gone, when something was for it, and what waited, oldest first.
    """

    __slots__ = (
        "_outboxes", "_tally", "_total_max", "lost",
    )  # fmt: skip

    def __init__(
        self,
        reactor: Reactor,
        sock: zmq.Socket[bytes],
        receive: Receive | None = None,
        *,
        origin: str = "",
        outbox_msgs: int = OUTBOX_MSGS,
        outbox_bytes: int = OUTBOX_BYTES,
        total_bytes: int = TOTAL_BYTES,
    ) -> None:
        super().__init__(
            reactor, sock, receive, origin=origin, outbox_msgs=outbox_msgs, outbox_bytes=outbox_bytes
        )
        self.lost: Callable[[bytes, list[Frames]], None] | None = None
        self._queue = self._outboxes = dict[bytes, Outbox]()
        self._tally = Tally()
        self._total_max = total_bytes

    @property
    def waiting(self) -> int:
        """Messages in all outboxes."""
        return sum(map(len, self._outboxes.values()))

    def waiting_for(self, peer: bytes) -> int:
        """Messages in the outbox of ``peer``."""
        return len(self._outboxes.get(peer, ()))

    def send(self, frames: Frames, *, credited: bool = False) -> Outcome:
        """See ``Socket.send``; GONE: no such peer. ``credited``: it is not full because of others, since whoever sends
        gives no peer more than that has credit for. Where it is FULL, something waits for this peer, and ``flushed``
        says when that leaves.
        """
        if self.closed:
            return self._full()
        peer = frames[0]
        outbox = self._outboxes.get(peer)
        if outbox is None:
            self._reactor.check_after_turn(self)
            try:
                if self._write(frames):
                    return Outcome.SENT
            except zmq.ZMQError as error:
                return self._lost(peer, error)
            outbox = Outbox(self._tally)
        size = sum(map(len, frames))
        if not outbox.has_room(self._msgs_max, self._bytes_max) or (
            not credited and self._exceeds_share(outbox, size)
        ):
            return self._full()
        outbox.put(frames, size)
        self._outboxes[peer] = outbox
        self._try_later()
        return Outcome.QUEUED

    def _exceeds_share(self, outbox: Outbox, size: int) -> bool:
        if self._tally.bytes + size <= self._total_max:
            return False
        return outbox.cost + size > self._total_max // max(len(self._outboxes), 1)

    def forget_peer(self, peer: bytes) -> int:
        """Drop what waits for ``peer``; returns how many messages that were."""
        return len(self.sift(peer, lambda _frames: True))

    def sift(self, peer: bytes, take: Callable[[Frames], bool]) -> list[Frames]:
        """Take back what waits for ``peer`` and fits ``take``, oldest first; the rest keeps its order."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            return []
        taken = outbox.sift(take)
        if not outbox:
            self._outboxes.pop(peer, None)
        return taken

    def sift_all(self, take: Callable[[Frames], bool]) -> list[Frames]:
        """As ``sift``, of all peers, one after the other."""
        return [frames for peer in list(self._outboxes) for frames in self.sift(peer, take)]

    def _lost(self, peer: bytes, error: zmq.ZMQError) -> Outcome:
        if error.errno != errno.EHOSTUNREACH:
            raise error
        waited = self.sift(peer, lambda _frames: True)
        if self.lost is not None:
            self._reactor.call_soon(self.lost, peer, waited)
        return Outcome.GONE

    def _write(self, frames: Frames) -> bool:
        """See ``Socket._write``. Raises ValueError, and nothing was sent: there are too many frames for a bundle."""
        rest = frames[1:]
        head = bundle.head(rest)
        try:
            self._send(frames[0], _MORE)
        except zmq.Again:
            return False
        # joined only now: who does not read is tried again and again, and a large body takes long to copy
        try:
            whole = b"".join((head, *rest))
        except BaseException:  # no memory, most likely
            # or the next message would go to this peer, behind its id; what is empty is no bundle, and counted there
            self._send(b"", _NOBLOCK)
            raise
        self._send(whole, _NOBLOCK)
        self._patience_s = RETRY_S
        self.sent += 1
        self.sent_bytes += sum(map(len, frames))
        if self.tap is not None:
            self._show(self.tap, frames)
        return True

    def _flush(self) -> None:
        """Send what waits, of some peers in rotation: trying those that do not read costs time, too."""
        for peer in list(islice(self._outboxes, PEERS_TRIED)):
            outbox = self._outboxes.pop(peer, None)
            if outbox is None:
                continue
            self._outboxes[peer] = outbox  # now the last one
            try:
                empty = self._flush_box(outbox)
            except zmq.ZMQError as error:
                self._lost(peer, error)
                continue
            if empty and self._outboxes.get(peer) is outbox:
                del self._outboxes[peer]
            if self.closed:
                return
        if self._outboxes:
            self._try_later()
