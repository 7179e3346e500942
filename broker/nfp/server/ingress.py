"""From frames to commands: who speaks, whether it is valid, and whose turn it is then (NFP, "NFP messages").

What a router asks and tells about connections is answered here, in the order of a connection's life::

    known            may its key have a connection? asked at the end of the handshake
    arrived          it is there, and says nothing yet
    authenticate     the first message: whose name is it?
    handle           every message: decoded, counted if it is invalid, passed to ``Commands``
    gone             the connection is lost
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker.nfp.access import Access
from broker.nfp.dispatch import Dispatcher
from broker.nfp.frames import Body, InvalidPacket, Packet, decode
from broker.nfp.management import EventBus
from broker.nfp.names import CLIENT_OF_WORKER, Sender
from broker.nfp.principal import Principal
from broker.nfp.records import JobRow
from broker.nfp.server.commands import Commands
from broker.nfp.server.disconnects import Disconnects
from broker.nfp.server.flusher import Flusher
from broker.nfp.server.invalid_messages import InvalidMessages
from broker.nfp.server.name_pins import NamePins
from broker.nfp.server.outbox import QueuedPeer
from broker.nfp.server.peers import RouterPeer, name_of
from broker.nfp.server.recording import Recording

log = logging.getLogger("headgate")


class Ingress:
    """Takes what peers send, across sockets or in this process.

    Args:
        commands: acts on valid packets. access: the rules. name_pins: who owns which name. dispatcher, event_bus: told
            of lost connections. invalid_messages: counts them. disconnects: told which workers are back. flusher: ends
            a turn. in_use: whether a name is connected at present. recording: what passes is recorded there; None:
            nothing is.
    """

    def __init__(
        self,
        commands: Commands,
        *,
        access: Access,
        name_pins: NamePins,
        dispatcher: Dispatcher,
        event_bus: EventBus,
        invalid_messages: InvalidMessages,
        disconnects: Disconnects,
        flusher: Flusher,
        in_use: Callable[[str], bool],
        recording: Recording | None = None,
    ) -> None:
        self._commands = commands
        self._access = access
        self._name_pins = name_pins
        self._dispatcher = dispatcher
        self._event_bus = event_bus
        self._invalid_messages = invalid_messages
        self._disconnects = disconnects
        self._flusher = flusher
        self._in_use = in_use
        self._recording = recording
        self.arrived = disconnects.arrived

    # -- who it is -----------------------------------------------------------------------------

    def known(self, key: str) -> bool:
        """Tell whether a CURVE key ("" in plaintext) is anybody's who may connect."""
        return self._access.principal_of(key, "") is not None

    def authenticate(self, identity: bytes, key: str, address: str) -> Principal | None:
        """Tell who speaks for the first time on a connection; None, and a line in the log: the name is not theirs."""
        name = name_of(identity)
        principal = self._access.principal_of(key, name)
        if principal is None:
            return None
        if not self._name_pins.fits(name, key):
            owner = self._name_pins.key_of(name) or "a peer in this process"
            how = "nfp.keys gives the name to" if self._access.keys_of(name) else "the name belongs to"
            log.warning("%s: refused as %r: %s %s, not to key %r", address, name, how, owner, key)
            return None
        if name.encode() != identity and self._in_use(name):
            log.warning(
                "%s: refused: its identity is written like the name %r, which is in use", address, name
            )
            return None
        return principal

    def expect_clients(self, rows: Iterable[JobRow]) -> None:
        """Keep the names of the clients that have these jobs of an earlier run for the keys they had."""
        for row in rows:
            if row.added.holder.startswith("key:") and not _is_made_up(row.added.client):
                self._name_pins.expect(name_of(row.added.client), row.added.holder.removeprefix("key:"))

    def _greet(self, peer: QueuedPeer[Any], packet: Packet, now: float) -> bool:
        """Pin the name of a peer whose first valid message is ``packet``; False: no room for it, or the peer left."""
        peer.greeted = True
        key, worker = peer.principal.key, packet.sender is Sender.WORKER
        if not _is_made_up(peer.identity):
            lasting = worker or peer.name.endswith(CLIENT_OF_WORKER) or self._access.is_listed(key)
            if not self._name_pins.pin(peer.name, key, lasting=lasting):
                peer.cut(f"no room for one more name, of its key {key!r} or at all")
                return False
        if worker:
            peer.worker = True
            self._disconnects.spoke(peer.name)
        else:
            self._commands.greet(peer, packet, now)
        return peer.alive

    # -- messages ------------------------------------------------------------------------------

    def handle(self, peer: RouterPeer, frames: Sequence[Body], now: float) -> None:
        """Act on one message of a socket; never raises."""
        try:
            packet = decode(frames)
            if packet.sender not in peer.senders:
                raise InvalidPacket("role", f"{packet.sender.value!r} is not spoken here")
        except InvalidPacket as error:
            if self._recording is not None:
                self._recording.invalid(peer, error.kind, frames)
            self.invalid(peer, error.kind, str(error), now)
            return
        self.take(peer, packet, frames, now)

    def take(self, peer: QueuedPeer[Any], packet: Packet, frames: Sequence[Body] | None, now: float) -> None:
        """Act on a packet, which came as ``frames`` or from this process (None); never raises."""
        recording = self._recording
        if recording is not None:
            recording.came(peer, packet, frames)
        peer.dialect = packet.dialect
        try:
            if peer.greeted or self._greet(peer, packet, now):
                self._commands.handle(peer, packet, now)
        except InvalidPacket as error:
            if recording is not None:
                recording.refused(errno.EPROTO)
            self.invalid(peer, error.kind, str(error), now)
        except Exception as error:
            self._invalid_messages.failures += 1
            log.exception("%s: %r could not be handled", peer.name, packet)
            try:
                self._commands.failed(peer, packet, error)
            except Exception:
                log.exception("%s could not be told so", peer.name)
        if recording is not None:
            recording.done()

    def invalid(self, peer: QueuedPeer[Any], kind: str, text: str, now: float) -> None:
        """Drop a message, count it, and cut who sends too many."""
        log.debug("%s: dropped: %s", peer.name, text)
        if self._invalid_messages.add(peer.invalid, kind, now):
            peer.cut(f"more than {self._invalid_messages.most} invalid messages, the last one: {text}")

    # -- connections ---------------------------------------------------------------------------

    def has_room(self, peer: QueuedPeer[Any]) -> None:
        """Send ``peer`` what it is owed: its queue is at most half full again, after something found no room."""
        if peer.alive:
            self._dispatcher.has_room(peer, self._flusher.clock.now())
            self._flusher.soon()

    def gone(self, peer: QueuedPeer[Any], now: float) -> None:
        """Take note that a connection is lost; everything that came over it was handled."""
        try:
            self._dispatcher.peer_gone(peer, now)
            if self._recording is not None:
                self._recording.gone(peer)
            self._name_pins.left(peer.name)
            self._event_bus.gone(peer)
        except Exception:
            log.exception("the loss of %r could not be handled", peer)


def _is_made_up(identity: bytes) -> bool:
    """Names that a ROUTER gives to peers without one are nobody's."""
    return len(identity) == 5 and identity[:1] == b"\0"
