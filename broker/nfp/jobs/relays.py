"""Requests that are passed to workers and are no jobs: the workers' management, and owners asking workers for old jobs.

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
from broker.nfp.names import FINAL_CODES, Command, Dialect
from broker.nfp.targets import Target

RELAYS_MAX: Final = 4096
"""Passed requests that wait for answers; management by people stays far below."""


class Relay:
    """One passed request.

    Attributes:
        unanswered: workers that have not answered.
        answers: what the others answered; empty when answers are passed on one by one.
    """

    def __init__(self, peer: Peer, packet: Packet, *, one_by_one: bool) -> None:
        self.peer = peer
        self.packet = packet
        self.unanswered: dict[str, None] = {}
        self.answers: dict[str, bytes] = {}
        self.one_by_one = one_by_one
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
        relay = Relay(peer, packet, one_by_one=False)
        self._pass(relay, Command.MMI, workers, now)

    def get(self, peer: Peer, packet: Packet, now: float) -> bool:
        """A GET of a job that is not known here, from an owner. False: nobody was asked."""
        workers = [
            worker
            for worker in self._meant(packet.target, packet.service)
            if worker.connection is not None and worker.dialect is Dialect.NORFAB
        ]
        if self._unfit(packet) or not workers:
            return False
        relay = Relay(peer, packet, one_by_one=True)
        names = [worker.name for worker in workers]
        self._answer(relay, 202, bodies.dispatched(packet.uuid, packet.service, "", names))
        self._pass(relay, Command.GET, workers, now)
        return True

    def _unfit(self, packet: Packet) -> str:
        jobs = self._jobs
        if packet.uuid in self._waiting or packet.uuid in jobs.by_uuid:
            return "this uuid is in use"
        return "too many requests wait for workers" if len(self._waiting) >= RELAYS_MAX else ""

    def _meant(self, target: Target | None, service: str = "all") -> list[WorkerEntry]:
        registry = self._jobs.registry
        if target is not None and target.names:
            return [registry.workers[name] for name in target.names if name in registry.workers]
        meant = [worker for worker in registry.targets(service) if worker.connection is not None]
        return meant[:1] if target is not None and target.kind == "any" else meant

    def _pass(self, relay: Relay, command: Command, workers: list[WorkerEntry], now: float) -> None:
        packet = relay.packet
        self._waiting[packet.uuid] = relay
        token = bodies.make_token(relay.peer.identity, 0)
        for worker in workers:
            connection = worker.connection
            if connection is not None and connection.request(command, packet.uuid, token, packet.body):
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
        if packet.status not in FINAL_CODES and not relay.one_by_one:
            return True  # there is more to come
        del relay.unanswered[worker.name]
        if relay.one_by_one:
            self._answer(relay, packet.status, packet.data)
        else:
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
        if relay.one_by_one:
            return
        if relay.answers:
            self._answer(relay, 200, bodies.aggregate(relay.answers))
        else:
            error = f"no worker answered within {self._jobs.config.relay_s:g} s"
            self._jobs.responders.of(relay.peer).refused(relay.peer, relay.packet, 408, error)

    def _answer(self, relay: Relay, code: int, body: bytes) -> None:
        """RESPONSE; a request by the command MMI is answered by MMI as well, which deployed clients wait for."""
        asked, peer = relay.packet, relay.peer
        commands = [Command.RESPONSE]
        if asked.command is Command.MMI:
            commands.append(Command.MMI)
        for command in commands:
            peer.send(answer_packet(command, asked.dialect, asked.service, asked.uuid, code, body))
