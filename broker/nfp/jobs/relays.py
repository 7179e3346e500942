"""Requests that are passed to workers and are no jobs: the workers' management.

What is passed on is remembered until every worker has answered, or has had time enough; nothing else that a worker
says about such an id goes anywhere.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Packet, answer_packet
from broker.nfp.jobs.model import WorkerEntry
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.jobs.timers import Timer
from broker.nfp.names import FINAL_CODES, Command
from broker.nfp.targets import Target

RELAYS_MAX: Final = 4096
"""Passed requests that wait for answers; management by people stays far below."""


class Relay:
    """One passed request.

    Attributes:
        unanswered: workers that have not answered.
        answers: what the others answered.
    """

    def __init__(self, peer: Peer, packet: Packet) -> None:
        self.peer = peer
        self.packet = packet
        self.unanswered: dict[str, None] = {}
        self.answers: dict[str, bytes] = {}
        self.timer: Timer | None = None


class Relays:
    """All passed requests, by uuid."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._waiting: dict[str, Relay] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._waiting

    def management(self, peer: Peer, packet: Packet, now: float) -> None:
        """A request for ``mmi.service.worker``: one answer, an object of what each worker said."""
        workers = [
            worker
            for worker in self._meant(packet.target)
            if worker.connection is not None and worker.connection.managed
        ]
        error = self._unfit(packet)
        if not error and not workers:
            error = "none of the workers named is there and has a management interface"
        if error:
            self._jobs.responders.of(peer).refused(peer, packet, 400, error)
            return
        self._pass(Relay(peer, packet), workers, now)

    def _unfit(self, packet: Packet) -> str:
        jobs = self._jobs
        if packet.uuid in self._waiting or packet.uuid in jobs.by_uuid:
            return "this uuid is in use"
        return "too many requests wait for workers" if len(self._waiting) >= RELAYS_MAX else ""

    def _meant(self, target: Target | None) -> list[WorkerEntry]:
        registry = self._jobs.registry
        if target is not None and target.names:
            return [registry.workers[name] for name in target.names if name in registry.workers]
        meant = [worker for worker in registry.workers.values() if worker.connection is not None]
        return meant[:1] if target is not None and target.kind == "any" else meant

    def _pass(self, relay: Relay, workers: list[WorkerEntry], now: float) -> None:
        packet = relay.packet
        self._waiting[packet.uuid] = relay
        token = bodies.make_token(relay.peer.identity, 0)
        for worker in workers:
            connection = worker.connection
            if connection is not None and connection.request(Command.MMI, packet.uuid, token, packet.body):
                relay.unanswered[worker.name] = None
                worker.sent = now
        relay.timer = self._jobs.timers.at(now + self._jobs.config.relay_s, self._over, relay)
        if not relay.unanswered:
            self._end(relay)

    def answered(self, worker: WorkerEntry, packet: Packet) -> bool:
        """A RESPONSE of ``worker``: True when it belongs to a passed request."""
        relay = self._waiting.get(packet.uuid)
        if relay is None or worker.name not in relay.unanswered:
            return False
        if packet.status not in FINAL_CODES:
            return True  # there is more to come
        del relay.unanswered[worker.name]
        relay.answers[worker.name] = packet.data
        if not relay.unanswered:
            self._end(relay)
        return True

    def gone(self, worker: WorkerEntry) -> None:
        """``worker`` will not answer."""
        for relay in [relay for relay in self._waiting.values() if worker.name in relay.unanswered]:
            del relay.unanswered[worker.name]
            if not relay.unanswered:
                self._end(relay)

    def _over(self, relay: Relay, now: float) -> None:
        self._end(relay)

    def _end(self, relay: Relay) -> None:
        self._jobs.timers.cancel(relay.timer)
        del self._waiting[relay.packet.uuid]
        if relay.answers:
            self._answer(relay, bodies.aggregate(relay.answers))
        else:
            error = f"no worker answered within {self._jobs.config.relay_s:g} s"
            self._jobs.responders.of(relay.peer).refused(relay.peer, relay.packet, 408, error)

    def _answer(self, relay: Relay, body: bytes) -> None:
        """RESPONSE; a request by the command MMI is answered by MMI as well, which deployed clients wait for."""
        asked, peer = relay.packet, relay.peer
        commands = [Command.RESPONSE]
        if asked.command is Command.MMI:
            commands.append(Command.MMI)
        for command in commands:
            peer.send(answer_packet(command, asked.dialect, asked.service, asked.uuid, 200, body))
