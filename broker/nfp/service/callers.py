"""Who asks: a peer of the NFP broker for each caller, and its packets to whoever follows the job.

All sessions of a userid with the same standing are one caller, so that a job belongs to the person and not to a
connection; who shares a userid with others is another one with each request. A caller nobody waits for is forgotten
when ``IDLE_MAX`` others came after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.principal import Principal
from broker.nfp.server.broker import NfpBroker
from broker.nfp.service.job_stream import JobStream
from broker.nfp.targets import ALL, Target

FEATURES: Final = frozenset({"push"})
IDLE_MAX: Final = 256
"""Callers kept although nobody of them waits: a dashboard's user comes back every few seconds."""


class Caller:
    """One caller.

    Attributes:
        principal: who it is.
        name: its identity at the NFP broker. peer: how it is connected there.
        streams: by uuid.
        bodies: what was submitted under each of these: service, target, body.
    """

    def __init__(self, broker: NfpBroker, principal: Principal, number: int) -> None:
        self.principal = principal
        self.streams: dict[str, list[JobStream]] = {}
        self.bodies: dict[str, tuple[str, Target, bytes]] = {}
        self.name = f"flux:{principal.userid}:{principal.standing}{f':{number}' if number else ''}"
        self.peer = broker.local_peer(principal, self.name, self._received, FEATURES)
        self.peer.on_lost = self._lost

    def send(
        self, command: Command, stream: JobStream, target: Target, body: bytes = b"", service: str = ""
    ) -> None:
        """A request about the stream's job."""
        packet = Packet(
            Sender.CLIENT,
            command,
            service=service or stream.service,
            target=target,
            uuid=stream.uuid,
            body=body,
        )
        self.peer.submit(packet)

    def cancel(self, stream: JobStream) -> None:
        """DELETE its job."""
        self.send(Command.DELETE, stream, ALL)

    @contextmanager
    def receiving(self, stream: JobStream) -> Iterator[JobStream]:
        """What comes for its job goes to ``stream`` in the block, too."""
        mine = self.streams.setdefault(stream.uuid, [])
        mine.append(stream)
        try:
            yield stream
        finally:
            mine.remove(stream)
            if not mine:
                self.streams.pop(stream.uuid, None)
                self.bodies.pop(stream.uuid, None)

    def _received(self, packet: Packet) -> None:
        for stream in list(self.streams.get(packet.uuid, ())):
            stream.received(packet)

    def _lost(self, why: str) -> None:
        for stream in [each for mine in self.streams.values() for each in mine]:
            stream.failed(f"the NFP broker has left: {why}")


class Callers:
    """All of them; ``close`` ends them."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self._callers: dict[tuple[Principal, int], Caller] = {}
        self._strangers = 0

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, principal: Principal) -> Caller:
        """The one of ``principal``."""
        number = 0
        if principal.nobody:
            self._strangers = number = self._strangers + 1
        known = self._callers.pop((principal, number), None)
        if known is None or not known.peer.alive:
            known = Caller(self._broker, principal, number)
            self._trim()
        self._callers[principal, number] = known  # behind all others: the latest
        return known

    def _trim(self) -> None:
        idle = [who for who, caller in self._callers.items() if not caller.streams]
        for who in idle[: max(0, len(idle) - IDLE_MAX)]:
            self._callers.pop(who).peer.close()

    def close(self) -> None:
        """Forget everybody."""
        for caller in self._callers.values():
            caller.peer.close()
        self._callers.clear()
