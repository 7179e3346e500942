"""One message of a peer: decoded, refused, or handed to the family it belongs to (NFP, "NFP messages")."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from broker.nfp.contract import Peer
from broker.nfp.frames import Body, InvalidPacket, Packet, decode
from broker.nfp.names import Sender
from broker.nfp.server.invalid_messages import InvalidCount, InvalidMessages

if TYPE_CHECKING:
    from broker.nfp.server.recording import Recording

log = logging.getLogger("headgate")


class Judged(Peer, Protocol):
    """A peer whose invalid messages count."""

    invalid: InvalidCount
    greeted: bool
    worker: bool
    address: str

    @property
    def transport(self) -> int:
        """How it is connected, as the journal numbers it."""

    def cut(self, why: str) -> None:
        """End its connection."""


class Family(Protocol):
    """What clients send, or what workers send."""

    def handle(self, peer: Peer, packet: Packet, now: float) -> None:
        """Act on ``packet``."""

    def broke(self, peer: Peer, packet: Packet, error: Exception) -> None:
        """Acting on it failed: tell the peer what it needs to know."""


class Ingress:
    """From frames to families.

    Args:
        clients: what clients send goes here, None where workers only are let in. workers: the same for workers.
        invalid_messages: those of the whole broker. greet: told of each peer once, after its first valid message.

    Attributes:
        recording: what comes is recorded there; None while nothing is.
    """

    def __init__(
        self,
        clients: Family | None,
        workers: Family | None,
        invalid_messages: InvalidMessages,
        greet: Greet,
    ) -> None:
        self._families = {Sender.CLIENT: clients, Sender.WORKER: workers}
        self._invalid_messages = invalid_messages
        self._greet = greet
        self.recording: Recording | None = None

    def handle(self, peer: Judged, frames: Sequence[Body], now: float) -> None:
        """Act on one message; never raises."""
        try:
            packet = decode(frames)
        except InvalidPacket as error:
            if self.recording is not None:
                self.recording.invalid(peer, error.kind, frames)
            self.invalid(peer, error.kind, str(error), now)
            return
        family = self._families.get(packet.sender)
        if family is None:
            if self.recording is not None:
                self.recording.invalid(peer, "role", frames)
            self.invalid(peer, "role", f"{packet.sender.value!r} is not spoken here", now)
            return
        recording = self.recording
        if recording is not None:
            recording.came(peer, packet, frames)
        self.hand_on(peer, packet, family, now)
        if recording is not None:
            recording.done()

    def hand_on(self, peer: Judged, packet: Packet, family: Family, now: float) -> None:
        """Act on a packet."""
        peer.dialect = packet.dialect
        try:
            if not peer.greeted:
                peer.greeted = True
                self._greet(peer, packet, now)
                if not peer.alive:  # it was cut
                    return
            family.handle(peer, packet, now)
        except InvalidPacket as error:
            if self.recording is not None:
                self.recording.refused(errno.EPROTO)
            self.invalid(peer, error.kind, str(error), now)
        except Exception as error:
            self._invalid_messages.failures += 1
            log.exception("%s: %r could not be handled", peer.name, packet)
            try:
                family.broke(peer, packet, error)
            except Exception:
                log.exception("%s could not be told so", peer.name)

    def invalid(self, peer: Judged, kind: str, text: str, now: float) -> None:
        """Drop a message, count it, and cut who sends too many."""
        log.debug("%s: dropped: %s", peer.name, text)
        if self._invalid_messages.add(peer.invalid, kind, now):
            peer.cut(f"more than {self._invalid_messages.most} invalid messages, the last one: {text}")


class Greet(Protocol):
    """See ``Ingress``."""

    def __call__(self, peer: Judged, packet: Packet, now: float) -> None: ...  # noqa: D102
