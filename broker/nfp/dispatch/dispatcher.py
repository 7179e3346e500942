"""The dispatcher: the walk of a request from a client to workers and of their results back.

A POST is checked and turned into an order with one part for each worker it is for (``requests``). A part goes to a
worker with a free credit, or waits in a fair queue (``scheduler``). What the worker says about it (``progress``) is
passed to the client in the client's dialect (``responses``), and the first final result is recorded (``results``). Time
limits are ``expiry``'s, workers that come and go ``liveness``'s, a broker that was restarted ``restore``'s.

Nothing recurses: credits that return and parts that come back are noted in ``State`` and served at the end of each
call (``Scheduler.settle``).
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import inf
from typing import Final

from broker.nfp.access import Access
from broker.nfp.contract import Journal, OnJobEvent, Peer
from broker.nfp.dispatch import stored_jobs, views
from broker.nfp.dispatch.config import DispatchConfig
from broker.nfp.dispatch.expiry import Expiry
from broker.nfp.dispatch.foreign_jobs import ForeignJobs
from broker.nfp.dispatch.liveness import Liveness
from broker.nfp.dispatch.model import FINAL, WorkerEntry
from broker.nfp.dispatch.progress import Progress
from broker.nfp.dispatch.relays import Relays
from broker.nfp.dispatch.requests import Requests
from broker.nfp.dispatch.restore import Restore
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.scheduler import Scheduler
from broker.nfp.dispatch.search import JobFilter, JobSearch, Tell
from broker.nfp.dispatch.state import Offended, State, ignore
from broker.nfp.dispatch.stored_jobs import HeldRequest, StoredJobs
from broker.nfp.dispatch.views import ClientView, FoundJob, JobView, ResultView, ServiceView, WorkerView
from broker.nfp.frames import Packet
from broker.nfp.names import Command
from broker.nfp.opening import WorkerOpen
from broker.nfp.principal import Principal
from broker.nfp.records import JobRow, Snapshot

_OfWorker = Callable[[Peer, WorkerEntry, Packet, float], None]
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
    """

    def __init__(
        self,
        config: DispatchConfig,
        journal: Journal,
        access: Access,
        happened: OnJobEvent,
        offended: Offended = ignore,
    ) -> None:
        self._state = state = State(config, journal, access, happened, offended)
        self.counts = state.counts
        self.tasks = state.tasks
        self._results = results = Results(state)
        foreign = ForeignJobs(state)
        self._scheduler = scheduler = Scheduler(state, results, foreign)
        state.check = Expiry(state, results, scheduler).check
        self._relays = relays = Relays(state)
        self._requests = requests = Requests(state, results, scheduler, relays)
        progress = Progress(state, results, scheduler, relays, foreign)
        self._stored = stored = StoredJobs(state, results)
        self._liveness = Liveness(state, results, scheduler, requests, progress, relays, foreign, stored)
        self._restore = Restore(state, results, scheduler, self._liveness)
        self._of_clients = {
            Command.POST: requests.post,
            Command.GET: requests.get,
            Command.DELETE: requests.delete,
            Command.PUT: requests.put,
        }
        self._of_workers = {
            Command.RESPONSE: progress.response,
            Command.EVENT: progress.event,
            Command.STREAM: progress.stream,
        }

    def listen(
        self, refused: Callable[[int], None], moved: Callable[[WorkerEntry, bool], None] | None
    ) -> None:
        """Have somebody told of refused requests (``State.refused``) and of workers that come and go (``moved``)."""
        self._state.refused = refused
        self._state.registry.moved = moved

    # -- packets --------------------------------------------------------------------------------

    def client(self, peer: Peer, packet: Packet, now: float) -> None:
        """POST, GET, DELETE or PUT of a client to an ordinary service; nothing else is passed here."""
        act = self._of_clients.get(packet.command)
        if act is not None:
            if self._state.unread(packet.uuid):
                refuse = partial(self._requests.unread, peer, packet)
                self._stored.hold(peer, packet, partial(act, peer, packet), refuse, now)
                return
            act(peer, packet, now)
        self._scheduler.settle(now)

    def worker(self, peer: Peer, packet: Packet, now: float) -> None:
        """READY, KEEPALIVE, DISCONNECT, RESPONSE, EVENT or STREAM of a worker."""
        command = packet.command
        if command is _READY:
            self._liveness.ready(peer, packet, now)
            self._scheduler.settle(now)
            return
        worker = self._liveness.of(peer)
        if worker is None:
            if command is not Command.DISCONNECT:
                self._liveness.unregistered(peer, packet, now)
            return
        self._liveness.heard(worker, now)
        act = self._of_workers.get(command)
        if act is not None:
            if self._state.unread(packet.uuid):
                again = partial(self._said_again, act, peer, packet)
                self._stored.hold(peer, packet, again, self._liveness.unread, now)
                return
            act(peer, worker, packet, now)
        elif command is Command.KEEPALIVE:
            worker.rx += 1
        elif command is Command.DISCONNECT:
            self._liveness.goodbye(worker, now)
        self._scheduler.settle(now)

    def _said_again(self, act: _OfWorker, peer: Peer, packet: Packet, now: float) -> None:
        """What a worker said about a job that was read since."""
        worker = self._liveness.of(peer)
        if worker is not None:
            act(peer, worker, packet, now)

    def worker_opened(self, peer: Peer, offer: WorkerOpen, now: float) -> bool:
        """What a worker's OPEN said; used when its READY comes.

        False: after READY it is unexpected, DISCONNECT was the answer, and nothing more is to be said to it.
        """
        return self._liveness.opened(peer, offer, now)

    def client_seen(self, peer: Peer, now: float) -> None:
        """A (re)connected client spoke first or sent OPEN: what is pushed goes there now, and what it is owed."""
        client = self._state.clients.of(peer, now)
        if client.owed:
            self._stored.pay(client)

    def has_room(self, peer: Peer) -> None:
        """``peer``, which had no room for something, has some: more of what it is owed goes there."""
        client = self._state.clients.at(peer)
        if client is not None and client.owed:
            self._stored.pay(client)

    def peer_gone(self, peer: Peer, now: float) -> None:
        """The connection of a client or worker is lost; results that were queued for it are owed again."""
        for uuid in peer.unsent:
            order = self._state.orders.get(uuid)
            if order is not None and order.client.peer is peer:
                if order.stored:
                    order.client.owed[uuid] = {}
                for part in order.parts.values():
                    if part.state == FINAL:
                        order.client.owe(part)
        self._stored.gone(peer)
        self._state.clients.gone(peer)
        self._liveness.gone(peer, now)
        self._scheduler.settle(now)

    def disconnect_workers(self, names: Iterable[str] | None, reason: str, now: float) -> list[str]:
        """DISCONNECT these workers, or all (None). Returns the names of those that were there.

        They are lost: who registers again within the grace keeps what it has.
        """
        self._results.send_acknowledgements(now, at_once=True)
        found = self._liveness.disconnect(names, reason, now)
        self._scheduler.settle(now)
        return found

    def relay_mmi(self, peer: Peer, packet: Packet, now: float) -> None:
        """Pass a request for ``mmi.service.worker`` to the named workers, as MMI.

        One answer {worker: what it said} goes back within ``relay_s``; 400 when none of them can be asked, 408 when
        none answered.
        """
        self._relays.management(peer, packet, now)

    # -- time and store -------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """End of a turn: send what was collected, run due timers. Returns when to call again at the latest, or inf."""
        state = self._state
        if state.timers.due <= now:
            state.timers.run(now)
            self._scheduler.settle(now)
        again = self._results.send_acknowledgements(now) if state.safe else inf
        return min(again, self._results.sweep(now), state.timers.due)

    def restore(self, snapshot: Snapshot, now: float) -> None:
        """Take up what the store kept; once, before anything else."""
        self._restore.take(snapshot, now)
        self._scheduler.settle(now)

    def read_with(self, wanted: Callable[[], None]) -> None:
        """Have ``wanted`` called whenever ``to_read`` may have something new."""
        self._stored.wanted = wanted

    def to_read(self) -> list[str]:
        """Closed jobs that are to be read from the store next; [] when nobody waits for any."""
        return self._stored.to_read()

    def was_read(self, uuids: Collection[str], rows: Iterable[JobRow], now: float) -> None:
        """``rows`` is what the store has of the jobs ``uuids``, which ``to_read`` told."""
        self._stored.was_read(uuids, rows, now)
        self._scheduler.settle(now)

    def unstored(self, uuids: Iterable[str], error: str, now: float) -> None:
        """The store could not keep these new jobs: they are gone, and their clients are answered 500.

        What waits in peers' queues for the commit of these jobs must have been dropped before.
        """
        for uuid in uuids:
            self._requests.unstored(uuid, error)
        self._scheduler.settle(now)

    # -- views ----------------------------------------------------------------------------------

    def workers(self, now: float) -> list[WorkerView]:
        """Every worker that is there or waited for."""
        registry, config = self._state.registry, self._state.config
        return [views.worker_view(worker, registry, config, now) for worker in registry.workers.values()]

    def services(self) -> list[ServiceView]:
        """Every service with workers or waiting requests."""
        return [views.service_view(service) for service in self._state.registry.services.values()]

    def clients(self, now: float) -> list[ClientView]:
        """Everybody who is there and has spoken, or has a job that is remembered."""
        return [views.client_view(client, now) for client in self._state.clients]

    def search(
        self,
        which: JobFilter,
        may_see: Callable[[str], bool],
        limit: int,
        now: float,
        tell: Tell,
    ) -> JobSearch:
        """Jobs that people look for; whoever asks has it take its steps."""
        return JobSearch(self._state, which, may_see, limit, now, tell)

    def find(self, uuid: str, now: float, then: Callable[[FoundJob | str | None], None]) -> None:
        """Call ``then`` with a job, at once or when it was read: None when it is not known, a text when that failed."""
        if self._state.unread(uuid):
            again = partial(self.find, uuid, then=then)
            self._stored.later(HeldRequest(None, uuid, again, then, now + stored_jobs.PATIENCE_S), now)
        else:
            view = self.job(uuid, now)
            then(FoundJob(view, self.results(uuid)) if view is not None else None)

    def job(self, uuid: str, now: float) -> JobView | None:
        """A job that is in memory; else None, see ``find``."""
        order = self._state.orders.get(uuid)
        if order is None or order.stored:
            return None
        return views.job_view(order, self._state.config.result_ttl_s, now)

    def results(self, uuid: str) -> list[ResultView]:
        """The recorded results so far of a job that is in memory, in the order of its parts; else []."""
        order = self._state.orders.get(uuid)
        return views.result_views(order) if order is not None else []

    def knows_worker(self, name: str) -> bool:
        """True when a worker of that name is, or was, there."""
        return self._state.registry.knows(name)

    def remembers(self, identity: bytes, holder: str) -> bool:
        """True when this client has a job that is remembered."""
        return self._state.clients.has(identity, holder)

    def may_read(self, principal: Principal, holder: str) -> bool:
        """True when ``principal`` may fetch results of jobs of ``holder``."""
        return self._state.access.may_read(principal, holder)
