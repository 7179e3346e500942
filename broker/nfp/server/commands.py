"""What the commands of clients and workers lead to (NFP, "NFP/Client", "NFP/Worker").

OPEN and requests to the broker's own services are answered here; all others are the dispatcher's.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Final

from broker.nfp import bodies, opening
from broker.nfp.access import Access
from broker.nfp.contract import FEATURES, Answer, Call, Later, Peer
from broker.nfp.dispatch import Dispatcher
from broker.nfp.dispatch.state import unnoticed
from broker.nfp.frames import Packet, answer_packet
from broker.nfp.management.internal_service import InternalService, refusal
from broker.nfp.names import ASKED_BY_MMI, MMI_WORKER, SEED_CODES, Code, Command, Dialect, Sender
from broker.safe_text import about

log = logging.getLogger("headgate")
_OPEN: Final = Command.OPEN
_MMI: Final = Command.MMI
_CLIENT: Final = Sender.CLIENT
CLIENT_FEATURES: Final = FEATURES & {"push"}
WORKER_FEATURES: Final = FEATURES - {"push"}


class Commands:
    """Acts on valid packets.

    Args:
        dispatcher: takes what is about jobs and workers. access: the rules. services: the broker's own.
        opened: what its OPEN says to everybody; with another epoch peers begin anew.
        refused: told the errno of each request that is refused here, before it is answered.

    Attributes:
        denied: requests to the broker's own services, and to the workers' management, that the rules refused.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        access: Access,
        services: Iterable[InternalService],
        *,
        opened: opening.BrokerOpen,
        refused: Callable[[int], None] = unnoticed,
    ) -> None:
        self._dispatcher = dispatcher
        self._access = access
        self._services = {service.name: service for service in services}
        self._opened = opened
        self._refused = refused
        self.denied = 0

    def handle(self, peer: Peer, packet: Packet, now: float) -> None:
        """Act on ``packet``."""
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

    def greet(self, peer: Peer, packet: Packet, now: float) -> None:
        """Have what is pushed to this client go to its new connection, of which ``packet`` is the first message."""
        if packet.command is not _OPEN:
            peer.features = _unsaid(peer, packet)
            self._dispatcher.client_seen(peer, now)

    def failed(self, peer: Peer, packet: Packet, error: Exception) -> None:
        """Answer 500 to a client, which waits, because the broker failed at ``packet``; workers expect no answer."""
        if packet.sender is _CLIENT and packet.command is not _OPEN:
            answer(peer, packet, refusal(f"the broker failed: {type(error).__name__}", Code.ERROR))

    # -- OPEN ----------------------------------------------------------------------------------

    def _open_client(self, peer: Peer, packet: Packet, now: float) -> None:
        asked = opening.read_client(packet.body).features
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
            self._refused(errno.EOPNOTSUPP)
            text = f"{packet.service} takes no jobs: it is asked by {asks.name}, not {packet.command.name}"
            answer(peer, packet, refusal(text))
        elif packet.service == MMI_WORKER:
            self._manage_workers(peer, packet, now)
        else:
            said = self._ask(peer, packet)
            if isinstance(said, Answer):
                answer(peer, packet, said)
            else:
                said(lambda late: answer(peer, packet, late))

    def _manage_workers(self, peer: Peer, packet: Packet, now: float) -> None:
        """Workers get it as MMI whichever dialect it came in: so the rules are asked here."""
        refused = self._denied(peer, packet.service, bodies.read_request(packet.data).task)
        if refused is not None:
            answer(peer, packet, refused)
            return
        self._dispatcher.relay_mmi(peer, packet, now)

    def _denied(self, peer: Peer, service: str, task: str) -> Answer | None:
        if self._access.may_call(peer.principal, service, task):
            return None
        self.denied += 1
        self._refused(errno.EPERM)
        return refusal(self._access.denial(peer.principal, service, task))

    def _ask(self, peer: Peer, packet: Packet) -> Answer | Later:
        service = self._services.get(packet.service)
        if service is None:
            return refusal(f"this broker has no service {packet.service}")
        raw = packet.data
        asked = bodies.read_request(raw)
        refused = self._denied(peer, packet.service, asked.task)
        if refused is not None:
            return refused
        call = Call(packet.service, asked.task, asked.args, asked.kwargs, packet.uuid, peer, raw)
        try:
            return service.call(call)
        except Exception as error:
            log.exception("%s: %s %s failed", peer.name, packet.service, asked.task)
            return refusal(about(error), Code.ERROR)


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
