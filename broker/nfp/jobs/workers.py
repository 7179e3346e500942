"""Workers come, are heard, fall silent, leave, come back (NFP, "Opening and Closing a Connection", "Keepaliving").

A worker is *alive* while its connection stands and something of it was heard within one hold time; *lost* for a grace
period when the connection breaks; *expected* for one hold time after a restart of the broker; then it is dead, and what
it had goes to others. One timer for each worker: nothing here is done for all workers at a time.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Iterable
from math import ceil
from typing import Final, NamedTuple

from broker.nfp import bodies
from broker.nfp.contract import FEATURES, NotStored, Peer
from broker.nfp.frames import Packet
from broker.nfp.jobs import client_requests, closed_jobs, worker_messages
from broker.nfp.jobs.machine import CURRENT

# a compiled NamedTuple needs the types of its fields
from broker.nfp.jobs.model import Attempt, Timer, WorkerEntry, disconnect
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.names import Dialect
from broker.nfp.opening import HeldJob, WorkerOpen
from broker.nfp.records import WorkerLeft, WorkerSeen
from broker.rates import Throttle

OFFERED_MAX: Final = 200_000
"""Jobs, tasks and resources in all OPENs whose READY has not come: anybody may send one, workers send READY at once.
When there are more, the oldest OPENs are dropped."""
DISCONNECT_S: Final = 1.0
"""A worker has so long to take its DISCONNECT and end the connection. Nothing tells of a process that is frozen while
its kernel goes on."""
TOLD_S: Final = 1.0
"""An unregistered worker is told to register once in so long: it may have sent a lot before it hears it."""
GRID_S: Final = 1 / 16
"""Workers are looked at at multiples of this: what is due waits so long at most for the others."""
_GOODBYE: Final = "said goodbye"
_LOST: Final = "was lost"
_SILENT: Final = "was silent too long"
_LOSSES: Final = frozenset({_LOST, _SILENT})
"""Why a worker is dead that may have been ended by what it ran."""


class _Offer(NamedTuple):
    open: WorkerOpen
    timer: Timer
    weight: int


class Workers:
    """Who is there."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._registry = jobs.registry
        self._offers: dict[Peer, _Offer] = {}
        self._offers_weight = 0
        self._told = Throttle(TOLD_S)
        self._ended: set[Peer] = set()
        """Connections that were told DISCONNECT for an unexpected command, until they are lost."""

    # -- coming ---------------------------------------------------------------------------------

    def of(self, peer: Peer) -> WorkerEntry | None:
        """The worker that is registered on this very connection."""
        worker = self._registry.workers.get(peer.name)
        return worker if worker is not None and worker.peer is peer else None

    def open(self, peer: Peer, offer: WorkerOpen, now: float) -> bool:
        """OPEN of a worker: kept until its READY, for one hold time at most. After READY it is unexpected: False."""
        worker = self.of(peer)
        if worker is not None:
            self._dismiss_unexpected(worker, peer, "OPEN after READY", now)
            return False
        if peer in self._ended:
            self._offend(peer, "OPEN after DISCONNECT")
            return False
        self._take_offer(peer)
        if not (peer.principal.owner or self._jobs.access.may_work(peer.principal)):
            return True  # its READY will be refused
        weight = 1 + len(offer.jobs) + len(offer.tasks) + len(offer.resources)
        while self._offers and self._offers_weight + weight > OFFERED_MAX:
            self._take_offer(next(iter(self._offers)))
        timer = self._jobs.timers.at(now + self._jobs.config.hold_s, self._never_came, peer)
        self._offers[peer] = _Offer(offer, timer, weight)
        self._offers_weight += weight
        return True

    def _never_came(self, peer: Peer, now: float) -> None:
        """Without its OPEN a late READY would register a worker that counts on what it has offered."""
        self._take_offer(peer)
        peer.cut("no READY after OPEN")

    def _take_offer(self, peer: Peer) -> WorkerOpen:
        """What its OPEN said, which is forgotten."""
        offer = self._offers.pop(peer, None)
        if offer is None:
            return WorkerOpen()
        self._jobs.timers.cancel(offer.timer)
        self._offers_weight -= offer.weight
        return offer.open

    def ready(self, peer: Peer, packet: Packet, now: float) -> None:
        """READY: registers, once for each connection."""
        who, service = peer.principal, packet.service
        worker = self._registry.workers.get(peer.name)
        if worker is not None and worker is self.of(peer):
            self._dismiss_unexpected(worker, peer, "a second READY", now)
            return
        if peer in self._ended:
            self._offend(peer, "READY after DISCONNECT")
            return
        others = worker is not None and worker.key != who.key
        if others and worker is not None and worker.peer is not None:
            self._refuse(peer, packet, f"the name {peer.name} belongs to another key")
            return
        if not self._jobs.access.may_offer(who, service):
            self._refuse(peer, packet, f"this key may not offer {service}")
            return
        if worker is not None and (others or worker.service.name != service):
            # who is away: names are proven before this
            self._bury(worker, "was somebody else" if others else f"offers {service} now", now)
            worker = None
        offer = self._take_offer(peer)
        if worker is None:
            worker = WorkerEntry(
                peer.name, self._registry.service(service, now), packet.dialect, who.key, now
            )
            self._registry.add(worker)
        self._register(worker, peer, packet, offer, now)

    def _refuse(self, peer: Peer, packet: Packet, reason: str) -> None:
        self._jobs.counts.refused += 1
        self._jobs.on_refused(errno.EPERM)
        disconnect(peer, packet.dialect, packet.service, reason)

    def _register(
        self, worker: WorkerEntry, peer: Peer, packet: Packet, offer: WorkerOpen, now: float
    ) -> None:
        jobs, config, deployed = self._jobs, self._jobs.config, packet.dialect is Dialect.NORFAB
        worker.speak(packet.dialect, offer.features & FEATURES)
        worker.holder = peer.principal.holder
        worker.tasks = offer.tasks
        self._registry.announce(worker, offer.resources)
        worker.slots = min(offer.credits or (config.credits if deployed else 1), config.credits_max)
        worker.tx = worker.rx = 0
        worker.sent = now
        if worker.lists:
            worker.ahead = config.ahead
        else:  # who names a limit is given no more, and the text's workers get one job at a time
            worker.ahead = config.ahead * worker.slots if deployed and not offer.credits else 0
        self._registry.arrive(worker, peer, now)
        jobs.journal.put(WorkerSeen(worker.name, packet.service, packet.dialect, worker.key))
        self._arm(worker, now)
        self._reconcile(worker, offer, now)
        client_requests.settle_gathered(jobs, worker, now)
        jobs.freed.append(worker)

    # -- what it still has ----------------------------------------------------------------------

    def _reconcile(self, worker: WorkerEntry, offer: WorkerOpen, now: float) -> None:
        """It was here before: what does it still have? Its OPEN says it, or it is asked for each job."""
        jobs = self._jobs
        self._registry.unclaim(worker)
        missing: list[Attempt] = []
        for uuid, attempt in list(worker.attempts.items()):
            attempt.heard = now
            attempt.asked = 0.0
            if attempt.state == "stopping":
                jobs.move(attempt, "lose")
            elif not worker.lists:
                worker_messages.ask(attempt, now)
            elif uuid not in offer.jobs:
                missing.append(attempt)
        jobs.give_back_lost(missing, "came back without the job", now)
        if not worker.lists:
            return
        may_begin = []
        for uuid, held in offer.jobs.items():
            if self._holds(worker, uuid, held, now):
                may_begin.append(uuid)
            closed_jobs.put_back(jobs)  # it may list all there are
        if may_begin:
            worker.tell(bodies.CONFIRMED, may_begin, jobs.journal.position)

    def _holds(self, worker: WorkerEntry, uuid: str, held: HeldJob, now: float) -> bool:
        """What is true of a job that ``worker`` lists. True: it is this worker's, has not begun, and may."""
        jobs, registry = self._jobs, self._registry
        waits, done = held.state == "waiting", held.state == "done"
        job = jobs.by_uuid.get(uuid)
        if done and job is not None and job.state == "stored":
            jobs.acknowledge(worker, uuid)  # nobody waits for its result: it need not be read
            return False
        try:
            job = closed_jobs.read(jobs, uuid)
        except NotStored:  # it says so again when it is back
            jobs.counts.unroutable += 1
            return False
        part = job.given_to(worker.name) if job is not None else None
        if job is None or part is None:
            registry.claim(worker, uuid)
            part = job.parts.get("") if job is not None else None
            if part is not None and part.queue is not None and registry.claimant(part) is worker:
                jobs.withdraw(part)
                jobs.place(part, now, front=True)
            return False
        if done and part.state == "final":
            jobs.acknowledge(worker, uuid)
            return False
        attempt = worker.attempts.get(uuid) or jobs.attempt_at(part, worker, now)
        if attempt.state in CURRENT:
            if not waits or jobs.asks_first(attempt):
                jobs.accept(attempt)
            if done:
                jobs.move(attempt, "announce")
        elif not done:
            jobs.cancel(attempt, now)
            return False
        if done and not worker.pushes:  # who pushes it sends it anyway
            worker_messages.ask(attempt, now)
        return waits

    # -- being there ----------------------------------------------------------------------------

    def hear(self, worker: WorkerEntry, now: float) -> None:
        """Any frame of it (NFP, "Keepaliving": any command acts as a keepalive)."""
        worker.heard = now
        self._unchoke(worker)

    def _unchoke(self, worker: WorkerEntry) -> None:
        if worker.choked:
            worker.choked = False
            self._jobs.free(worker)

    def _arm(self, worker: WorkerEntry, now: float) -> None:
        config, timers = self._jobs.config, self._jobs.timers
        if worker.state == "alive":
            when = max(now, min(worker.sent + config.keepalive_s, worker.heard + config.hold_s))
        else:
            when = worker.since + (config.grace_s if worker.state == "lost" else config.hold_s)
        timers.cancel(worker.timer)
        # on a grid: a crowd of workers wakes the broker a few times a second, not once for each of them
        worker.timer = timers.at(ceil(when / GRID_S) * GRID_S, self._look, worker)

    def _look(self, worker: WorkerEntry, now: float) -> None:
        worker.timer = None
        config = self._jobs.config
        if worker.peer is None:
            self._bury(worker, _LOST, now)
            return
        # sums, as the timer was set with: the difference may be less than an interval that is over, by rounding
        if now >= worker.heard + config.hold_s:
            self._dismiss(worker, f"nothing heard for {now - worker.heard:.1f} s", now)
            self._bury(worker, _SILENT, now)
            return
        if now >= worker.sent + config.keepalive_s:
            worker.tx += worker.keepalive()
            worker.sent = now
        worker_messages.look_after(self._jobs, worker, now)
        self._unchoke(worker)
        self._arm(worker, now)

    def _dismiss(self, worker: WorkerEntry, reason: str, now: float) -> None:
        """DISCONNECT to a worker that is there: it has to end the connection, or to register anew on it."""
        assert worker.peer is not None
        disconnect(worker.peer, worker.dialect, worker.service.name, reason)
        self._jobs.timers.at(now + DISCONNECT_S, self._cut_unregistered, worker.peer)

    def _cut_unregistered(self, peer: Peer, now: float) -> None:
        """Cut who was told to come back and did not: it may be frozen, and nobody else could have its name."""
        if peer.alive and self.of(peer) is None:
            peer.cut("still there after DISCONNECT, and not registered")

    # -- going ----------------------------------------------------------------------------------

    def invite(self, peer: Peer, packet: Packet, now: float) -> None:
        """Somebody speaks as a worker that is none here: DISCONNECT makes it register at once."""
        if peer in self._ended:
            self._offend(peer, f"{packet.command.name} after DISCONNECT")
            return
        self._jobs.counts.unexpected += 1
        if self._told.admits(peer.name, now):
            disconnect(peer, packet.dialect, packet.service or "unknown", "not registered")
            self._jobs.offended(peer, "unexpected", f"{packet.command.name} without READY")

    def _dismiss_unexpected(self, worker: WorkerEntry, peer: Peer, what: str, now: float) -> None:
        """A valid command at a wrong time: DISCONNECT, and nothing more to it (NFP, "Opening and Closing").

        It has to come back on a new connection; whatever it says on this one counts against it.
        """
        self._dismiss(worker, what, now)
        self._ended.add(peer)
        self._lose(worker, now)
        self._offend(peer, what)

    def _offend(self, peer: Peer, what: str) -> None:
        self._jobs.counts.unexpected += 1
        self._jobs.offended(peer, "unexpected", what)

    def leave(self, worker: WorkerEntry, now: float) -> None:
        """DISCONNECT. Our workers mean it; deployed ones reconnect at once and still run what they have."""
        if worker.lists:
            self._bury(worker, _GOODBYE, now)
        else:
            self._lose(worker, now)

    def lose(self, peer: Peer, now: float) -> None:
        """The connection is lost."""
        self._take_offer(peer)
        self._ended.discard(peer)
        worker = self.of(peer)
        if worker is not None:
            self._lose(worker, now)
            seen = WorkerSeen(worker.name, worker.service.name, worker.dialect, worker.key, lost=True)
            self._jobs.journal.put(seen)

    def _lose(self, worker: WorkerEntry, now: float) -> None:
        """Nothing can be sent to it any more; it may be back within its grace."""
        self._registry.leave(worker, now)
        client_requests.will_not_answer(self._jobs, worker)
        self._arm(worker, now)

    def _bury(self, worker: WorkerEntry, why: str, now: float) -> None:
        """It is dead: what it has goes to others."""
        jobs = self._jobs
        self._registry.leave(worker, now)
        client_requests.will_not_answer(jobs, worker)
        jobs.timers.cancel(worker.timer)
        worker.timer = None
        jobs.counts.died += why != _GOODBYE
        for attempt in list(worker.attempts.values()):
            if attempt.state == "stopping":
                jobs.move(attempt, "lose")
        jobs.give_back_lost(list(worker.attempts.values()), why, now, suspect=why in _LOSSES)
        expected = worker.state == "expected"
        self._registry.remove(worker)
        jobs.journal.put(WorkerLeft(worker.name))
        if expected:
            jobs.no_longer_meant(worker, now)

    def disconnect(self, names: Iterable[str] | None, reason: str, now: float) -> list[str]:
        """DISCONNECT these workers, all of them with None; those that are waited for are not there."""
        workers = self._registry.workers
        found = []
        for name in list(workers) if names is None else names:
            worker = workers.get(name)
            if worker is not None and worker.peer is not None:
                found.append(name)
                self._dismiss(worker, reason, now)
                self._lose(worker, now)
        return found

    def expect(self, seen: WorkerSeen, now: float) -> None:
        """After a restart: this worker was there before and may be back within a hold time.

        One that was lost by then has its grace, and does not count for "all".
        """
        service = self._registry.service(seen.service, now)
        worker = WorkerEntry(seen.name, service, seen.dialect, seen.key, now)
        if seen.lost:
            worker.step("leave")
        self._registry.add(worker)
        self._arm(worker, now)
