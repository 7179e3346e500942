"""Who is there: workers by name, by service and by resource, and the clients that are owed something."""

# compiled: mypyc

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from math import inf
from typing import Final

from broker.nfp.contract import Peer
from broker.nfp.jobs.model import Client, FairQueue, Part, Service, WorkerEntry
from broker.nfp.names import Dialect
from broker.nfp.records import KNOWN_MAX

EVERY_SERVICE: Final = "all"
"""Deployed NorFab's name for every service together."""
CLAIMS_MAX: Final = 200_000
"""Of all workers together; more than brokers take open jobs. What comes beyond is not remembered."""


class Registry:
    """All workers, services and clients of the broker.

    A client is its identity together with who it is: whoever takes over the name without being the same person is
    another client, and is sent nothing of the first one's.

    Args:
        on_change: told of a worker that has come (True; its ``peer`` is the new one), or is about to be gone
            (False).

    Attributes:
        workers: by name.
        services: by name; those with nothing in them are removed.
        resources: by name of a resource, the workers that announced it, by their names.
        mailboxes: by name of a worker, requests that wait for just this one.
        claims: by uuid of a job that nobody gave a worker here, the worker that has said that it holds it.
        away: by name, since when a worker that is remembered is not there.
        ended: by name, how many parts of jobs ended at a worker since the start, by how they ended; the latest names.
        clients: by identity and holder.
    """

    def __init__(self, on_change: Callable[[WorkerEntry, bool], None] | None) -> None:
        self._on_change = on_change
        self.workers: dict[str, WorkerEntry] = {}
        self.services: dict[str, Service] = {}
        self.resources: dict[str, dict[str, WorkerEntry]] = {}
        self.mailboxes: dict[str, FairQueue[Part]] = {}
        self.claims: dict[str, WorkerEntry] = {}
        self.away: OrderedDict[str, float] = OrderedDict()
        self.ended: OrderedDict[str, Counter[str]] = OrderedDict()
        self.clients: dict[tuple[bytes, str], Client] = {}

    # -- services -------------------------------------------------------------------------------

    def service(self, name: str, now: float) -> Service:
        """The service of that name, made if need be."""
        service = self.services.get(name)
        if service is None:
            service = self.services[name] = Service(name, now)
        return service

    def tidy(self, service: Service) -> None:
        """Remove ``service`` when nothing is left in it."""
        if not service.workers and not service.queue and not service.gathering:
            self.services.pop(service.name, None)

    def queue_of(self, part: Part, now: float) -> FairQueue[Part]:
        """Where ``part`` waits, made if need be: the mailbox of its worker, or the queue of the service."""
        name = part.name
        if not name:
            return self.service(part.job.service, now).queue
        box = self.mailboxes.get(name)
        if box is None:
            box = self.mailboxes[name] = FairQueue()
        return box

    def began(self, service: str) -> float:
        """Since when somebody of ``service`` is there or waited for; inf when nobody is."""
        names: Collection[str] = self.services if service == EVERY_SERVICE else (service,)
        found = (self.services[name] for name in names if name in self.services)
        return min((each.began for each in found if each.workers), default=inf)

    def absent_since(self, part_name: str, service: str) -> float | None:
        """Since when nobody is there who could take a part; None when somebody is."""
        if part_name:
            worker = self.workers.get(part_name)
            if worker is None:
                return self.away.get(part_name, -inf)
            return None if worker.peer is not None else worker.since
        found = self.services.get(service)
        if found is None:
            return -inf
        return None if found.alive else found.absent_since

    def targets(self, service: str) -> Collection[WorkerEntry]:
        """The workers that ``all`` of a service means; those of every service for the service "all"."""
        if service == EVERY_SERVICE:
            return self.workers.values()
        found = self.services.get(service)
        return found.workers.values() if found is not None else ()

    def named(self, name: str, service: str) -> list[WorkerEntry]:
        """The worker of that name, else the workers of ``service`` that manage a resource of that name."""
        worker = self.workers.get(name)
        if worker is not None:
            return [worker]
        managing = self.resources.get(name, {})
        return [each for each in managing.values() if service in (each.service.name, EVERY_SERVICE)]

    # -- workers --------------------------------------------------------------------------------

    def add(self, worker: WorkerEntry) -> None:
        """A worker that was not there is waited for, or comes."""
        self.workers[worker.name] = worker
        if not worker.service.workers:
            worker.service.began = worker.since
        worker.service.workers[worker.name] = worker

    def arrive(self, worker: WorkerEntry, peer: Peer, now: float) -> None:
        """``worker`` is at ``peer`` from now on."""
        if worker.peer is None:
            worker.service.alive += 1
        worker.peer = peer
        worker.step("arrive")
        worker.since = worker.heard = now
        worker.choked = False
        self.away.pop(worker.name, None)
        self._refresh_limits(worker, 2)
        if self._on_change is not None:
            self._on_change(worker, True)

    def leave(self, worker: WorkerEntry, now: float) -> None:
        """``worker`` cannot be written to any more."""
        if worker.peer is None:
            return
        if self._on_change is not None:
            self._on_change(worker, False)
        worker.peer = None
        worker.step("leave")
        worker.since = now
        worker.service.alive -= 1
        if not worker.service.alive:
            worker.service.absent_since = now
        self._refresh_limits(worker, 1)

    def remove(self, worker: WorkerEntry) -> None:
        """It is waited for no longer; its name stays known."""
        worker.step("bury")
        self.announce(worker, ())
        self.unclaim(worker)
        del self.workers[worker.name]
        del worker.service.workers[worker.name]
        for those in (worker.service.idle, worker.service.ready, worker.service.ahead):
            those.pop(worker, None)
        self.remember(worker.name, worker.since)
        self.tidy(worker.service)

    def announce(self, worker: WorkerEntry, resources: tuple[str, ...]) -> None:
        """``worker`` manages these resources from now on."""
        for name in worker.resources:
            managing = self.resources.get(name)
            if managing is not None and managing.pop(worker.name, None) is not None and not managing:
                del self.resources[name]
        worker.resources = resources
        for name in resources:
            self.resources.setdefault(name, {})[worker.name] = worker

    def claim(self, worker: WorkerEntry, uuid: str) -> None:
        """``worker`` says that it holds a job that nobody gave it here: another broker did, or a store that was lost.

        Whoever submits such a job again must not have it run twice (NFP, "Reliability"): it goes to this worker.
        """
        if len(self.claims) < CLAIMS_MAX:
            worker.claims.add(uuid)
            self.claims.setdefault(uuid, worker)

    def unclaim(self, worker: WorkerEntry) -> None:
        """It is gone, or says anew what it holds."""
        for uuid in worker.claims:
            if self.claims.get(uuid) is worker:
                del self.claims[uuid]
        worker.claims.clear()

    def claimant(self, part: Part) -> WorkerEntry | None:
        """Who is there, could be given ``part``, which is for any, and says that it has the job."""
        worker = self.claims.get(part.job.uuid) if self.claims and not part.name else None
        if worker is None or worker.peer is None or worker.service.name != part.job.service:
            return None
        return worker

    def remember(self, name: str, since: float) -> None:
        """``name`` was a worker's, and is not there since then."""
        self.away[name] = since
        self.away.move_to_end(name)
        if len(self.away) > KNOWN_MAX:
            self.away.popitem(last=False)

    def knows(self, name: str) -> bool:
        """True when a worker of that name is, or was, there."""
        return name in self.workers or name in self.away

    def count(self, name: str, state: str) -> None:
        """A part of a job ended in ``state`` at the worker ``name``, which may be lost or come back later."""
        counts = self.ended.get(name)
        if counts is None:
            counts = self.ended[name] = Counter()
            if len(self.ended) > KNOWN_MAX:
                self.ended.popitem(last=False)
        counts[state] += 1

    def _refresh_limits(self, worker: WorkerEntry, alive: int) -> None:
        """``worker`` has come or left; where so many are there now, the others' limits have changed, too."""
        service = worker.service
        for each in service.workers.values() if service.alive == alive else (worker,):
            self.refresh(each)

    def refresh(self, worker: WorkerEntry) -> None:
        """After a change of ``worker``: has it a free slot, or room for one more?"""
        service, busy = worker.service, worker.busy
        there = worker.peer is not None and not worker.choked
        _keep(service.idle, worker, there and busy < worker.slots)
        _keep(service.ready, worker, there and worker.slots <= busy < worker.limit)
        _keep(service.ahead, worker, there and busy > worker.slots)

    # -- clients --------------------------------------------------------------------------------

    def client_of(self, peer: Peer, now: float) -> Client:
        """The client behind ``peer``, which is where its pushes go from now on."""
        key = (peer.identity, peer.principal.holder)
        client = self.clients.get(key)
        if client is None:
            client = self.clients[key] = Client(*key, peer.name, peer.dialect)
        client.peer = peer
        client.dialect, client.features = peer.dialect, peer.features
        client.seen = now
        return client

    def client_at(self, peer: Peer) -> Client | None:
        """The client whose pushes go to ``peer`` at present."""
        client = self.clients.get((peer.identity, peer.principal.holder))
        return client if client is not None and client.peer is peer else None

    def absent_client(self, identity: bytes, holder: str, dialect: Dialect) -> Client:
        """A client that the store tells of."""
        client = self.clients.get((identity, holder))
        if client is None:
            name = identity.decode("utf-8", "replace")
            client = self.clients[identity, holder] = Client(identity, holder, name, dialect)
        return client

    def tidy_client(self, client: Client) -> None:
        """Forget ``client`` when it is not there and nothing of it is remembered."""
        if client.peer is None and not client.open and not client.kept:
            self.clients.pop((client.identity, client.holder), None)


def _keep(those: dict[WorkerEntry, None], worker: WorkerEntry, belongs: bool) -> None:
    if not belongs:
        those.pop(worker, None)
    elif worker not in those:
        those[worker] = None
