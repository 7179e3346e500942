"""How a worker is written to: the text's form of requests, or deployed NorFab's with an address."""

# compiled: mypyc

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet, answer_packet
from broker.nfp.names import MMI_WORKER, Command, Dialect, Sender
from broker.nfp.targets import ANY

_BROKER: Final = Sender.BROKER


class WorkerConnection(ABC):
    """One connection of a worker; every method tells whether the packet was queued.

    Attributes:
        tokens: the address of each request carries its attempt; of others only from the second attempt on.
        cancels: it understands DELETE.
        pushes: it sends results unasked; others say that a result is ready, and are asked for it.
        records: it wants to hear when a result is safe.
        managed: it answers requests for the workers' management.
        lists: its OPEN lists the jobs it holds, and it begins what must not be run twice once that is confirmed.
        strict: it reads every body as a JSON object, and breaks at anything else.
        unknown: what it answers to a GET of a job it does not know.
    """

    dialect: ClassVar[Dialect]

    def __init__(self, peer: Peer, service: str, features: frozenset[str]) -> None:
        self.peer = peer
        self.service = service
        self.cancels = "delete" in features
        self.pushes = self.records = self.tokens = "recorded" in features
        self.lists = self.managed = "jobs" in features
        self.strict = not self.pushes
        self.unknown = frozenset({404})

    @abstractmethod
    def request(self, command: Command, uuid: str, address: bytes, body: Body, after: int = 0) -> bool:
        """A request; ``address`` comes back with what the worker says about it, where the dialect has addresses."""

    def keepalive(self) -> bool:
        """NFP, "Keepaliving"."""
        packet = Packet(_BROKER, Command.KEEPALIVE, dialect=self.dialect, service=self.service)
        return self.peer.send(packet)

    def disconnect(self, reason: str) -> bool:
        """To a peer that may have to prove its key again: nothing of ours is in it but ``reason``."""
        return self.peer.send(disconnect(self.dialect, self.service, reason))

    def recorded(self, uuids: list[str], after: int) -> bool:
        """The results of these jobs are safe."""
        return self._tell(bodies.RECORDED, uuids, after)

    def confirm(self, uuids: list[str], after: int) -> bool:
        """These jobs are the worker's, and may begin; a worker that does not ask for that is told nothing."""
        return self.lists and self._tell(bodies.CONFIRMED, uuids, after)

    def _tell(self, text: str, uuids: list[str], after: int) -> bool:
        packet = answer_packet(
            Command.RESPONSE, self.dialect, self.service, uuids[0], 200, bodies.uuids(uuids)
        )
        packet.status_text = text
        return self.peer.send(packet, after)


class NorfabConnection(WorkerConnection):
    """Deployed NorFab's form, with the client's address."""

    dialect: ClassVar[Dialect] = Dialect.NORFAB

    def request(self, command: Command, uuid: str, address: bytes, body: Body, after: int = 0) -> bool:
        """A request with its address."""
        return self.peer.send(Packet(_BROKER, command, client=address, uuid=uuid, body=body), after)


class TextConnection(WorkerConnection):
    """The text's form: the same frames as a client's, target ``any``. It has no PUT.

    Its worker's management is a service that is asked by POST (NFP, "Worker Management Interface").
    """

    dialect: ClassVar[Dialect] = Dialect.SEED

    def __init__(self, peer: Peer, service: str, features: frozenset[str]) -> None:
        super().__init__(peer, service, features)
        self.cancels = self.pushes = self.managed = True
        self.strict = False
        self.unknown = frozenset({400, 404})

    def request(self, command: Command, uuid: str, address: bytes, body: Body, after: int = 0) -> bool:
        """A request, if the text has the command."""
        service = self.service
        if command is Command.MMI:
            command, service = Command.POST, MMI_WORKER
        if command > Command.EVENT:
            return False
        packet = Packet(
            _BROKER,
            command,
            dialect=Dialect.SEED,
            service=service,
            target=ANY,
            uuid=uuid,
            body=body,
        )
        return self.peer.send(packet, after)


def connection_of(peer: Peer, dialect: Dialect, service: str, features: frozenset[str]) -> WorkerConnection:
    """How the worker behind ``peer`` is written to."""
    kind = NorfabConnection if dialect is Dialect.NORFAB else TextConnection
    return kind(peer, service, features)


def disconnect(dialect: Dialect, service: str, reason: str) -> Packet:
    """DISCONNECT, with ``reason`` where the dialect has a body (NFP, "DISCONNECT")."""
    body = reason.encode() if dialect is Dialect.SEED else None
    return Packet(_BROKER, Command.DISCONNECT, dialect=dialect, service=service, body=body)
