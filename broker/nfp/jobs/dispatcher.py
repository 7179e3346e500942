"""The dispatcher: the walk of a request from a client to workers and of their results back.

A POST is checked and turned into a job with one part for each worker it is for (``client_requests``). A part goes to a
worker with a free credit, which is an attempt at it, or waits in a fair queue (``schedule``). What the worker says
about it (``worker_messages``) is passed to the client in the client's dialect (``told``), and the first final result is
recorded. Workers that come and go are ``workers``'s, a broker that was restarted ``closed_jobs``'s. Which states all of
them may be in stands in ``machine``.

Nothing recurses: credits that return and parts that come back are noted in ``Jobs`` and served at the end of each
call (``Jobs.settle``).
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from broker.nfp.access import Access
from broker.nfp.contract import Journal, NotStored, Offended, OnJobEvent, Peer, ignore, unnoticed
from broker.nfp.frames import Packet
from broker.nfp.jobs import client_requests, closed_jobs, views, worker_messages
from broker.nfp.jobs.config import DispatchConfig
from broker.nfp.jobs.model import Job, WorkerEntry
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.jobs.views import (
    ClientView,
    JobFilter,
    JobSearch,
    JobView,
    ServiceView,
    Tell,
    WorkerView,
)
from broker.nfp.jobs.workers import Workers
from broker.nfp.names import Command
from broker.nfp.opening import WorkerOpen
from broker.nfp.principal import Principal
from broker.nfp.records import Snapshot, StoredJob

_OF_CLIENTS: Final = {
    Command.POST: client_requests.post,
    Command.GET: client_requests.get,
    Command.DELETE: client_requests.delete,
    Command.PUT: client_requests.put,
}
_OF_WORKERS: Final = {
    Command.RESPONSE: worker_messages.response,
    Command.EVENT: worker_messages.event,
    Command.STREAM: worker_messages.stream,
}
_READY: Final = Command.READY
"""A look into an enum costs more than the comparison that follows."""


class Dispatcher:
    """Jobs of all clients and workers of one broker.

    Call ``tick`` at the end of every turn, before the store's commit, and again at the time it returned. ``now`` is
    monotonic seconds above 0 everywhere.

    Args:
        config: limits and intervals.
        journal: what is put there becomes durable; answers that depend on it are sent with its ``position``.
        access: who may do what.
        happened: told of everything that happens to jobs.
        offended: called as ``offended(peer, kind, text)`` when a worker speaks about jobs it was never given
            ("forged") or at a wrong time ("unexpected").
        on_refused: told the errno of each request that is refused, before it is answered.
        on_worker_change: told of workers that come and go, see ``Registry``.
    """

    def __init__(
        self,
        config: DispatchConfig,
        journal: Journal,
        access: Access,
        happened: OnJobEvent,
        offended: Offended = ignore,
        *,
        on_refused: Callable[[int], None] = unnoticed,
        on_worker_change: Callable[[WorkerEntry, bool], None] | None = None,
    ) -> None:
        self._jobs = jobs = Jobs(config, journal, access, happened, offended, on_refused, on_worker_change)
        self._workers = Workers(jobs)
        self.counts = jobs.counts
        self.tasks = jobs.tasks

    # -- packets --------------------------------------------------------------------------------

    def client(self, peer: Peer, packet: Packet, now: float) -> None:
        """POST, GET, DELETE or PUT of a client to an ordinary service; nothing else is passed here."""
        act = _OF_CLIENTS.get(packet.command)
        if act is not None:
            try:
                closed_jobs.read(self._jobs, packet.uuid)
            except NotStored as error:
                client_requests.unread(self._jobs, peer, packet, str(error))
                return
            act(self._jobs, peer, packet, now)
        self._end(now)

    def worker(self, peer: Peer, packet: Packet, now: float) -> None:
        """READY, KEEPALIVE, DISCONNECT, RESPONSE, EVENT or STREAM of a worker."""
        command, jobs = packet.command, self._jobs
        if command is _READY:
            self._workers.ready(peer, packet, now)
            self._end(now)
            return
        worker = self._workers.of(peer)
        if worker is None:
            if command is not Command.DISCONNECT:
                self._workers.invite(peer, packet, now)
            return
        self._workers.hear(worker, now)
        act = _OF_WORKERS.get(command)
        if act is not None:
            try:
                closed_jobs.read(jobs, packet.uuid)
            except NotStored:  # it says so again when it is back
                jobs.counts.unroutable += 1
                return
            act(jobs, peer, worker, packet, now)
        elif command is Command.KEEPALIVE:
            worker.rx += 1
        elif command is Command.DISCONNECT:
            self._workers.leave(worker, now)
        self._end(now)

    def _end(self, now: float) -> None:
        """What was said has been acted on."""
        self._jobs.settle(now)
        closed_jobs.put_back(self._jobs)

    def worker_opened(self, peer: Peer, offer: WorkerOpen, now: float) -> bool:
        """What a worker's OPEN said; used when its READY comes.

        False: after READY it is unexpected, DISCONNECT was the answer, and nothing more is to be said to it.
        """
        return self._workers.open(peer, offer, now)

    def client_seen(self, peer: Peer, now: float) -> None:
        """A (re)connected client spoke first or sent OPEN: what is pushed goes there now, and what it is owed."""
        client = self._jobs.registry.client_of(peer, now)
        if client.owed:
            closed_jobs.pay(self._jobs, client, now)

    def has_room(self, peer: Peer, now: float) -> None:
        """``peer``, which had no room for something, has some: more of what it is owed goes there."""
        client = self._jobs.registry.client_at(peer)
        if client is not None and client.owed:
            closed_jobs.pay(self._jobs, client, now)

    def peer_gone(self, peer: Peer, now: float) -> None:
        """The connection of a client or worker is lost; results that were queued for it are owed again."""
        for uuid in peer.unsent:
            job = self._jobs.by_uuid.get(uuid)
            if job is not None and job.client.peer is peer:
                if job.state == "stored":
                    job.client.owed[uuid] = {}
                for part in job.parts.values():
                    if part.state == "final":
                        job.client.owe(part)
        client = self._jobs.registry.client_at(peer)
        if client is not None:
            client.peer = None
            self._jobs.registry.tidy_client(client)
        self._workers.lose(peer, now)
        self._jobs.settle(now)

    def disconnect_workers(self, names: Iterable[str] | None, reason: str, now: float) -> list[str]:
        """DISCONNECT these workers, or all (None). Returns the names of those that were there.

        They are lost: who registers again within the grace keeps what it has.
        """
        self._jobs.send_acknowledgements(now, at_once=True)
        found = self._workers.disconnect(names, reason, now)
        self._jobs.settle(now)
        return found

    def relay_mmi(self, peer: Peer, packet: Packet, now: float) -> None:
        """Pass a request for ``mmi.service.worker`` to the named workers, as MMI.

        One answer {worker: what it said} goes back within ``relay_s``; 400 when none of them can be asked, 408 when
        none answered.
        """
        client_requests.manage(self._jobs, peer, packet, now)

    # -- time and store -------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """End of a turn: send what was collected, run due timers. Returns when to call again at the latest, or inf."""
        jobs = self._jobs
        if jobs.timers.due <= now:
            jobs.timers.run(now)
            jobs.settle(now)
        again = jobs.send_acknowledgements(now) if jobs.safe else inf
        return min(again, closed_jobs.end_turn(jobs, now), jobs.timers.due)

    def restore(self, snapshot: Snapshot, now: float) -> None:
        """Take up what the store kept; once, before anything else."""
        jobs = self._jobs
        for name in snapshot.known:
            jobs.registry.remember(name, now)
        for seen in snapshot.workers:
            self._workers.expect(seen, now)
        found = [*(closed.job for closed in snapshot.closed), *snapshot.jobs]
        for stored in sorted(found, key=lambda each: each.age_s, reverse=True):
            jobs.by_uuid[stored.added.uuid] = self._restored(stored, now)
        for closed in snapshot.closed:
            closed_jobs.remember(jobs, jobs.by_uuid[closed.job.added.uuid], closed, now)
        for stored in snapshot.jobs:
            closed_jobs.resume(jobs, jobs.by_uuid[stored.added.uuid], stored, now)
        jobs.settle(now)

    def _restored(self, stored: StoredJob, now: float) -> Job:
        """A job of before; who its holder is tell the present rules, None where the name alone does not (a userid)."""
        added, access, principal = stored.added, self._jobs.access, None
        kind, _, name = added.holder.partition(":")
        if stored.state == "open" and kind in ("key", "peer"):
            principal = access.principal_of(name, "") if kind == "key" else access.principal_of("", name)
        client = self._jobs.registry.absent_client(added.client, added.holder, added.dialect)
        return Job(added, client, principal, now - stored.age_s)

    def unstored(self, uuids: Iterable[str], error: str, now: float) -> None:
        """The store could not keep these new jobs: they are gone, and their clients are answered 500.

        What waits in peers' queues for the commit of these jobs must have been dropped before.
        """
        for uuid in uuids:
            client_requests.unstored(self._jobs, uuid, error)
        self._jobs.settle(now)

    # -- views ----------------------------------------------------------------------------------

    def workers(self, now: float) -> list[WorkerView]:
        """Every worker that is there or waited for."""
        registry, config = self._jobs.registry, self._jobs.config
        return [views.worker_view(worker, registry, config, now) for worker in registry.workers.values()]

    def services(self) -> list[ServiceView]:
        """Every service with workers or waiting requests."""
        return [views.service_view(service) for service in self._jobs.registry.services.values()]

    def clients(self, now: float) -> list[ClientView]:
        """Everybody who is there and has spoken, or has a job that is remembered."""
        return [views.client_view(client, now) for client in self._jobs.registry.clients.values()]

    def search(
        self, which: JobFilter, may_see: Callable[[str], bool], limit: int, now: float, tell: Tell
    ) -> JobSearch:
        """Jobs that people look for; whoever asks has it take its steps."""
        return JobSearch(self._jobs, which, may_see, limit, now, tell)

    def find(self, uuid: str, now: float) -> JobView | None:
        """A job with the results that are recorded so far, in the order of its parts; None: it is not known.

        Raises:
            NotStored: it is in the store only, which cannot be read.
        """
        job = closed_jobs.read(self._jobs, uuid)
        if job is None:
            return None
        found = views.job_view(job, self._jobs.config.result_ttl_s, now)
        closed_jobs.put_back(self._jobs)
        return found

    def results(self, uuid: str) -> list[bytes]:
        """The recorded results so far of a job that is in memory, in the order of its parts; else []."""
        job = self._jobs.by_uuid.get(uuid)
        return [part.body for part in job.parts.values() if part.ended] if job is not None else []

    def knows_worker(self, name: str) -> bool:
        """True when a worker of that name is, or was, there."""
        return self._jobs.registry.knows(name)

    def remembers(self, identity: bytes, holder: str) -> bool:
        """True when this client has a job that is remembered."""
        client = self._jobs.registry.clients.get((identity, holder))
        return client is not None and bool(client.open or client.kept)

    def may_read(self, principal: Principal, holder: str) -> bool:
        """True when ``principal`` may fetch results of jobs of ``holder``."""
        return self._jobs.access.may_read(principal, holder)
