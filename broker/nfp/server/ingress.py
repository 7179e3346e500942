"""From frames to commands: who speaks, whether it is valid, and what it leads to (NFP, "NFP messages", "NFP/Client",
"NFP/Worker").

What a router asks and tells about connections is answered here, in the order of a connection's life::

    known            may its key have a connection? asked at the end of the handshake
    authenticate     the first message: whose name is it?
    handle           every message: decoded, counted if it is invalid; OPEN and requests to the broker's own services
                     are answered, all others are the dispatcher's
    gone             the connection is lost
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker import __version__
from broker.nfp import bodies, opening
from broker.nfp.contract import FEATURES, Answer, Call, Peer
from broker.nfp.frames import Body, InvalidPacket, Packet, answer_packet, decode
from broker.nfp.management.questions import refusal
from broker.nfp.names import (
    ASKED_BY_MMI,
    CLIENT_OF_WORKER,
    MMI_WORKER,
    SEED_CODES,
    Code,
    Command,
    Dialect,
    Sender,
)
from broker.nfp.principal import Principal
from broker.nfp.records import StoredJob
from broker.nfp.server.names import name_of
from broker.nfp.server.turn import QueuedPeer
from broker.rates import Bucket, Throttle

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker
    from broker.nfp.server.router import RouterPeer

log = logging.getLogger("headgate")
_OPEN: Final = Command.OPEN
_MMI: Final = Command.MMI
_CLIENT: Final = Sender.CLIENT
CLIENT_FEATURES: Final = FEATURES & {"push"}
WORKER_FEATURES: Final = FEATURES - {"push"}
FORGIVE_S: Final = 30.0
"""One invalid message is forgiven after so long: a peer with a rare flaw is served for ever, a flood is not (NFP:
"treating that peer as invalid")."""
WARN_EVERY_S: Final = 10.0
"""Who was refused tries again for ever; one line in so long for each address says so."""


class Ingress:
    """Takes what peers send, across sockets or in this process.

    Args:
        broker: whose it is: its rules, names, jobs, services, and what is recorded.

    Attributes:
        invalid: invalid messages by class, as ``InvalidPacket.kind`` and the dispatcher name them. cut: connections
            that were cut for them. failures: valid messages that the broker failed at.
        denied: requests to the broker's own services, and to the workers' management, that the rules refused.
    """

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self._access = broker.access
        self._dispatcher = broker.dispatcher
        self._name_owners = broker.name_owners
        self._recording = broker.recording
        settings = broker.settings
        self._opened = opening.BrokerOpen(
            "headgate",
            __version__,
            settings.keepalive_ms,
            settings.multiplier,
            epoch=broker.epoch,  # with another one peers begin anew
            message_bytes=settings.message_bytes_max,
        )
        self._invalid_max = settings.invalid_max
        self._lines = Throttle(WARN_EVERY_S)
        self.invalid: Counter[str] = Counter()
        self.cut = 0
        self.failures = 0
        self.denied = 0

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
        if not self._name_owners.fits(name, key):
            owner = self._name_owners.key_of(name) or "a peer in this process"
            how = "nfp.keys gives the name to" if self._access.keys_of(name) else "the name belongs to"
            self._warn("%s: refused as %r: %s %s, not to key %r", address, name, how, owner, key)
            return None
        if name.encode() != identity and self._broker.is_connected(name):
            self._warn(
                "%s: refused: its identity is written like the name %r, which is in use", address, name
            )
            return None
        return principal

    def _warn(self, text: str, address: str, *about: object) -> None:
        if self._lines.admits((address, text), self._broker.clock.now()):
            log.warning(text, address, *about)

    def expect_clients(self, jobs: Iterable[StoredJob]) -> None:
        """Keep the names of the clients that have these jobs of an earlier run for the keys they had."""
        for job in jobs:
            if job.added.holder.startswith("key:") and not _is_made_up(job.added.client):
                self._name_owners.expect(name_of(job.added.client), job.added.holder.removeprefix("key:"))

    def _greet(self, peer: QueuedPeer[Any], packet: Packet, now: float) -> bool:
        """Pin the name of a peer whose first valid message is ``packet``; False: no room for it, or the peer left."""
        peer.greeted = True
        key, worker = peer.principal.key, packet.sender is Sender.WORKER
        if not _is_made_up(peer.identity):
            lasting = worker or peer.name.endswith(CLIENT_OF_WORKER) or self._access.is_listed(key)
            if not self._name_owners.pin(peer.name, key, lasting=lasting):
                peer.cut(f"no room for one more name, of its key {key!r} or at all")
                return False
        if worker:
            peer.worker = True
            self._broker.expected.pop(peer.name, None)
        elif packet.command is not _OPEN:  # what is pushed to this client goes to its new connection
            peer.features = _unsaid(peer, packet)
            self._dispatcher.client_seen(peer, now)
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
            self.drop(peer, error.kind, str(error), now)
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
                self._act(peer, packet, now)
        except InvalidPacket as error:
            self._refuse(errno.EPROTO)
            self.drop(peer, error.kind, str(error), now)
        except Exception as error:
            self.failures += 1
            log.exception("%s: %r could not be handled", peer.name, packet)
            try:
                if (
                    packet.sender is _CLIENT and packet.command is not _OPEN
                ):  # it waits; a worker expects no answer
                    answer(peer, packet, refusal(f"the broker failed: {type(error).__name__}", Code.ERROR))
            except Exception:
                log.exception("%s could not be told so", peer.name)
        if recording is not None:
            recording.done()

    def drop(self, peer: QueuedPeer[Any], kind: str, text: str, now: float) -> None:
        """Drop an invalid message, count it, and cut who sends too many."""
        log.debug("%s: dropped: %s", peer.name, text)
        self.invalid[kind] += 1
        if peer.tolerance is None:
            peer.tolerance = Bucket(1 / FORGIVE_S, self._invalid_max, now)
        if peer.tolerance.take(now):
            self.cut += 1
            peer.cut(f"more than {self._invalid_max} invalid messages, the last one: {text}")

    def _act(self, peer: Peer, packet: Packet, now: float) -> None:
        command, service = packet.command, packet.service
        if packet.sender is not _CLIENT:
            if command is _OPEN:
                self._open_worker(peer, packet, now)
            else:
                self._dispatcher.worker(peer, packet, now)
        elif command is _OPEN:
            self._open_client(peer, packet, now)
        elif service in ASKED_BY_MMI:
            self._question(peer, packet, now)
        elif command is _MMI:
            answer(peer, packet, refusal(f"{packet.service} is not managed by MMI"))
        else:
            self._dispatcher.client(peer, packet, now)

    # -- OPEN ----------------------------------------------------------------------------------

    def _open_client(self, peer: Peer, packet: Packet, now: float) -> None:
        asked = opening.read_client(packet.body)
        peer.features = _unsaid(peer, packet) if asked is None else asked & CLIENT_FEATURES
        self._answer_open(peer, packet)
        self._dispatcher.client_seen(peer, now)

    def _open_worker(self, peer: Peer, packet: Packet, now: float) -> None:
        offer = opening.read_worker(packet.body)
        peer.features = offer.features & WORKER_FEATURES
        if self._dispatcher.worker_opened(peer, offer, now):
            self._answer_open(peer, packet)

    def _answer_open(self, peer: Peer, packet: Packet) -> None:
        body = opening.write(self._opened._replace(features=peer.features))
        peer.send(Packet(Sender.BROKER, Command.OPEN, dialect=packet.dialect, body=body))

    # -- the broker's own services --------------------------------------------------------------

    def _question(self, peer: Peer, packet: Packet, now: float) -> None:
        """A request to a service that takes no jobs; by a command of jobs it is refused and does nothing.

        Clients send a job's POST again, ask for its result with GET and end it with DELETE: each of these would do
        once more what was asked for.
        """
        asks = Command.POST if packet.dialect is Dialect.SEED else Command.MMI
        if packet.command is not asks:
            self._refuse(errno.EOPNOTSUPP)
            text = f"{packet.service} takes no jobs: it is asked by {asks.name}, not {packet.command.name}"
            answer(peer, packet, refusal(text))
            return
        service, asked = packet.service, bodies.read_request(packet.data)
        if not self._access.may_call(peer.principal, service, asked.task):
            self.denied += 1
            self._refuse(errno.EPERM)
            answer(peer, packet, refusal(self._access.denial(peer.principal, service, asked.task)))
        elif service == MMI_WORKER:  # workers get it as MMI whichever dialect it came in
            self._dispatcher.relay_mmi(peer, packet, now)
        else:
            call = Call(service, asked.task, asked.args, asked.kwargs, packet.uuid, peer)
            self._broker.questions.ask(call, partial(answer, peer, packet))

    def _refuse(self, errnum: int) -> None:
        if self._recording is not None:
            self._recording.refused(errnum)

    # -- connections ---------------------------------------------------------------------------

    def has_room(self, peer: QueuedPeer[Any]) -> None:
        """Send ``peer`` what it is owed: its queue is at most half full again, after something found no room."""
        if peer.alive:
            self._dispatcher.has_room(peer, self._broker.clock.now())
            self._broker.event_bus.has_room(peer)
            self._broker.turn.soon()

    def gone(self, peer: QueuedPeer[Any], now: float) -> None:
        """Take note that a connection is lost; everything that came over it was handled."""
        try:
            self._dispatcher.peer_gone(peer, now)
            if self._recording is not None:
                self._recording.gone(peer)
            self._name_owners.left(peer.name)
            self._broker.event_bus.unsubscribe(peer)
            self._broker.questions.leave(peer)
        except Exception:
            log.exception("the loss of %r could not be handled", peer)


def _is_made_up(identity: bytes) -> bool:
    """Names that a ROUTER gives to peers without one are nobody's."""
    return len(identity) == 5 and identity[:1] == b"\0"


def _unsaid(peer: Peer, packet: Packet) -> frozenset[str]:
    """Features of a client that names none: in the text's dialect events and results reach it as they come.

    (NFP, "EVENT", "RESPONSE": "Broker relays".) A REQ would take one of them for the answer to its next request.
    """
    return CLIENT_FEATURES if packet.dialect is Dialect.SEED and not peer.lockstep else frozenset()


def answer(peer: Peer, packet: Packet, said: Answer) -> None:
    """Answer what one of the broker's own services was asked.

    Deployed NorFab's clients wait for the command MMI and take the RESPONSE in front of it for the end of a job; both
    are sent to everybody who writes in that dialect, as its broker does. The text knows RESPONSE only, and one of it.
    """
    status = said.status
    if packet.dialect is Dialect.SEED and status not in SEED_CODES:
        status = Code.ERROR
    commands = (Command.RESPONSE,) if packet.dialect is Dialect.SEED else (Command.RESPONSE, Command.MMI)
    for command in commands:
        peer.send(answer_packet(command, packet.dialect, packet.service, packet.uuid, status, said.body))
